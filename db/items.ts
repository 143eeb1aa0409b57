// Items: made, changed and deleted together with the jobs that follow from it, read, and found by their words. A version
// is never given twice, nor to a deleted item again: whoever comes late with an older one changes nothing.

import { sql } from 'kysely'
import { v7 as uuidv7 } from 'uuid'
import { AppError } from '../domain/errors.ts'
import { folded, type ItemJob, imageUrlOf } from '../domain/items.ts'
import type { QueueName } from '../domain/queues.ts'
import type { Db, Tx } from './schema.ts'
import { sendInTransaction } from './sends.ts'

export type ItemContent = { title: string; description: string; image: string | null }

export type Requested = { requestId?: string | undefined; traceparent?: string | undefined }

/** What the API answers with. */
export type ItemBody = {
  item_id: string
  title: string
  description: string
  image?: string
  version: number
  /** Whether what is there now was embedded. */
  embedded: boolean
  created_at: string
  updated_at: string
}

export type ItemChanged = { item_id: string; version: number }

const jobOf = (type: ItemJob['type'], id: string, version: string, requested: Requested) => ({
  data: {
    type,
    item_id: id,
    version,
    ...(requested.requestId !== undefined && { request_id: requested.requestId }),
    ...(requested.traceparent !== undefined && { traceparent: requested.traceparent }),
  } satisfies ItemJob,
})

const queueOf = {
  IndexItem: 'search',
  EmbedItem: 'embed',
  RecomputeSimilar: 'similar',
} as const satisfies Record<ItemJob['type'], QueueName>

export async function sendItemJobs(
  tx: Tx,
  types: readonly ItemJob['type'][],
  items: readonly { id: string; version: string }[],
  requested: Requested = {},
): Promise<void> {
  if (items.length === 0) return
  for (const type of types) {
    const jobs = items.map(({ id, version }) => jobOf(type, id, version, requested))
    await sendInTransaction(tx, queueOf[type], jobs)
  }
}

const wordsOf = ({ title, description }: ItemContent) =>
  sql`item_words(${folded(title)}, ${folded(description)})`

export async function createItem(
  tx: Tx,
  content: ItemContent,
  requested: Requested,
): Promise<ItemChanged> {
  const id = uuidv7()
  const { rows } = await sql<{ version: string }>`
    with next as (select nextval('item_versions') as version)
    insert into items (id, title, description, image, search, version, content_version)
    select ${id}::uuid, ${content.title}, ${content.description}, ${content.image},
      ${wordsOf(content)}, version, version from next
    returning version`.execute(tx)
  return await follow(tx, id, rows[0]?.version as string, requested)
}

/** All of it anew. @returns ITEM_NOT_FOUND when there is none */
export async function putItem(
  tx: Tx,
  id: string,
  content: ItemContent,
  requested: Requested,
): Promise<ItemChanged | AppError> {
  const { rows } = await sql<{ version: string }>`
    update items set title = ${content.title}, description = ${content.description},
      image = ${content.image}, search = ${wordsOf(content)}, version = next.version, content_version = next.version,
      updated_at = clock_timestamp()
    from (select nextval('item_versions') as version
      from (select from items where id = ${id} for update) locked) next
    where id = ${id} returning items.version`.execute(tx)
  const [row] = rows
  return row === undefined ? noItem(id) : await follow(tx, id, row.version, requested)
}

async function follow(tx: Tx, id: string, version: string, requested: Requested) {
  await sendItemJobs(tx, ['EmbedItem', 'IndexItem'], [{ id, version }], requested)
  return { item_id: id, version: Number(version) }
}

/** Its row, embedding, code and list go at once; its jobs take it out of the index and out of the lists of others. */
export async function deleteItem(tx: Tx, id: string, requested: Requested): Promise<boolean> {
  const { rows } = await sql<{ version: string }>`
    with gone as (delete from items where id = ${id} returning id)
    select nextval('item_versions') as version from gone`.execute(tx)
  const [row] = rows
  if (row === undefined) return false
  const gone = [{ id, version: row.version }]
  await sendItemJobs(tx, ['IndexItem', 'RecomputeSimilar'], gone, requested)
  return true
}

export const noItem = (id: string): AppError =>
  new AppError('ITEM_NOT_FOUND', `there is no item ${id}`)

type Row = ItemContent & {
  id: string
  version: string
  embedded: boolean
  created_at: Date
  updated_at: Date
}

/** `isWhole`: also an image that the item holds itself. */
const bodyOf = (row: Row, isWhole: boolean): ItemBody => {
  const image = isWhole ? (row.image ?? undefined) : imageUrlOf(row.image)
  return {
    item_id: row.id,
    title: row.title,
    description: row.description,
    ...(image !== undefined && { image }),
    version: Number(row.version),
    embedded: row.embedded,
    created_at: row.created_at.toISOString(),
    updated_at: row.updated_at.toISOString(),
  }
}

const columns = sql`
  i.id, i.title, i.description, i.image, i.version, i.created_at, i.updated_at,
  coalesce(e.content_version = i.content_version, false) as embedded`

export async function readItem(db: Db, id: string): Promise<ItemBody | undefined> {
  const { rows } = await sql<Row>`
    select ${columns} from items i left join item_embeddings e on e.item_id = i.id
    where i.id = ${id}`.execute(db)
  return rows[0] && bodyOf(rows[0], true)
}

/** Those of `ids` that are there, in their order. */
export async function readItems(db: Db, ids: readonly string[]): Promise<ItemBody[]> {
  if (ids.length === 0) return []
  const { rows } = await sql<Row>`
    select ${columns} from unnest(${[...ids]}::uuid[]) with ordinality as asked (id, place)
    join items i on i.id = asked.id left join item_embeddings e on e.item_id = i.id
    order by place`.execute(db)
  return rows.map((row) => bodyOf(row, false))
}

/** Of what a common word finds, so many are weighed: any of them are as good as the rest. */
const weighedMax = 10_000

/** By the words in it (items_search): the best first, of equals the newest. Quotes, `or` and - as on the web. */
export async function searchItems(
  db: Db,
  { q, limit, offset }: { q: string; limit: number; offset: number },
): Promise<ItemBody[]> {
  const { rows } = await sql<{ id: string }>`
    with asked as (
      select websearch_to_tsquery('simple', ${folded(q)}) || websearch_to_tsquery('english', ${folded(q)}) as query
    ), found as materialized (
      select i.id, i.search from items i, asked where i.search @@ asked.query limit ${weighedMax}
    )
    select found.id from found, asked
    order by ts_rank_cd(found.search, asked.query, 1) desc, found.id desc
    limit ${limit} offset ${offset}`.execute(db)
  return await readItems(
    db,
    rows.map(({ id }) => id),
  )
}

export type EmbedInput = ItemContent & { contentVersion: string }

/** What is to be embedded; undefined: the item is gone, or was embedded as it is by this model. */
export async function readEmbedInput(
  db: Db,
  id: string,
  model: string,
): Promise<EmbedInput | undefined> {
  const { rows } = await sql<EmbedInput>`
    select i.title, i.description, i.image, i.content_version as "contentVersion" from items i
    where i.id = ${id} and not exists (
      select from item_embeddings e join item_spaces s on s.id = e.space_id
      where e.item_id = i.id and e.content_version = i.content_version and s.model = ${model})`.execute(
    db,
  )
  return rows[0]
}

/** As a search index keeps it. */
export type IndexedItem = {
  id: string
  title: string
  description: string
  version: string
  space: number | null
  dimensions: number | null
  vector: Buffer | null
}

const indexed = sql`
  select i.id, i.title, i.description, i.version, e.space_id as space, s.dimensions, e.vector
  from items i left join item_embeddings e on e.item_id = i.id
  left join item_spaces s on s.id = e.space_id`

export async function readIndexed(db: Db, ids: readonly string[]): Promise<IndexedItem[]> {
  const { rows } = await sql<IndexedItem>`
    ${indexed} where i.id = any(${[...ids]}::uuid[])`.execute(db)
  return rows
}

/** The next of all, by their ids. */
export async function readIndexedAfter(
  db: Db,
  after: string | null,
  max: number,
): Promise<IndexedItem[]> {
  const from = after ?? '00000000-0000-0000-0000-000000000000'
  const { rows } = await sql<IndexedItem>`
    ${indexed} where i.id > ${from}::uuid order by i.id limit ${max}`.execute(db)
  return rows
}

export async function countItems(db: Db): Promise<number> {
  const { rows } = await sql<{ n: number }>`select count(*)::int as n from items`.execute(db)
  return rows[0]?.n ?? 0
}

/** The next batch of items that this model has not embedded as they are. @returns the last id, if there are more */
export async function enqueueUnembedded(
  tx: Tx,
  model: string | undefined,
  after: string | null,
  max: number,
): Promise<{ sent: number; last: string | null }> {
  const from = after ?? '00000000-0000-0000-0000-000000000000'
  const { rows } = await sql<{ id: string; version: string; lacks: boolean }>`
    select i.id, i.content_version as version, not exists (
      select from item_embeddings e join item_spaces s on s.id = e.space_id
      where e.item_id = i.id and e.content_version = i.content_version
        and (${model ?? null}::text is null or s.model = ${model ?? null})) as lacks
    from items i where i.id > ${from}::uuid order by i.id limit ${max}`.execute(tx)
  const lacking = rows.filter(({ lacks }) => lacks)
  await sendItemJobs(tx, ['EmbedItem'], lacking)
  return { sent: lacking.length, last: rows.length < max ? null : (rows.at(-1)?.id ?? null) }
}
