// The vectors of items: each stored with its code and with the jobs that follow from it, if the item is still what was
// embedded. Vectors of one model have one number of dimensions, that of the first.

import { sql } from 'kysely'
import { codeOf, fromBytes, toBytes } from '../domain/vectors.ts'
import { sendItemJobs } from './items.ts'
import type { Tx } from './schema.ts'

export type NewEmbedding = {
  itemId: string
  contentVersion: string
  model: string
  /** Of length 1. */
  vector: Float32Array
}

type Space = {
  id: number
  dimensions: number
  generation: number
  centre: Buffer | null
  next_generation: number | null
  next_centre: Buffer | null
}

/**
 * In a transaction that is READ COMMITTED.
 * @returns stale: the item is gone or changed, and what it is now has a job of its own; a number: how many dimensions the
 * model's vectors have, and this one has not
 */
export async function storeEmbedding(
  tx: Tx,
  embedding: NewEmbedding,
  requested: { requestId?: string | undefined; traceparent?: string | undefined } = {},
): Promise<'stored' | 'stale' | number> {
  const { itemId, contentVersion, vector } = embedding
  const space = await spaceOf(tx, embedding)
  if (space.dimensions !== vector.length) return space.dimensions
  const { rows } = await sql<{ version: string }>`
    update items set version = nextval('item_versions')
    where id = ${itemId} and content_version = ${contentVersion} returning version`.execute(tx)
  const version = rows[0]?.version
  if (version === undefined) return 'stale'
  await sql`
    insert into item_embeddings (item_id, space_id, content_version, vector)
    values (${itemId}, ${space.id}, ${contentVersion}, ${toBytes(vector)})
    on conflict (item_id) do update set space_id = excluded.space_id,
      content_version = excluded.content_version, vector = excluded.vector,
      embedded_at = clock_timestamp()`.execute(tx)
  await saveCodes(tx, space, itemId, vector)
  const changed = [{ id: itemId, version }]
  await sendItemJobs(tx, ['IndexItem', 'RecomputeSimilar'], changed, requested)
  return 'stored'
}

/** Held until the end: whoever makes the codes anew begins when those who know nothing of it are done. */
async function spaceOf(tx: Tx, { model, vector }: NewEmbedding): Promise<Space> {
  const find = () =>
    sql<Space>`
      select id, dimensions, generation, centre, next_generation, next_centre
      from item_spaces where model = ${model} for share`.execute(tx)
  const found = (await find()).rows[0]
  if (found) return found
  await sql`
    insert into item_spaces (model, dimensions) values (${model}, ${vector.length})
    on conflict do nothing`.execute(tx)
  return (await find()).rows[0] as Space
}

/** reach -1: who is like it is found out by its own job, which is on its way. */
async function saveCodes(tx: Tx, space: Space, itemId: string, vector: Float32Array) {
  const codes = [{ generation: space.generation, code: codeOf(vector, centred(space.centre)) }]
  if (space.next_generation !== null) {
    const code = codeOf(vector, centred(space.next_centre))
    codes.push({ generation: space.next_generation, code })
  }
  await sql`delete from item_codes where item_id = ${itemId}`.execute(tx)
  await sql`
    insert into item_codes (space_id, generation, item_id, code)
    select ${space.id}, c.generation, ${itemId}, ('x' || c.code)::bit(2048)
    from json_to_recordset(${JSON.stringify(codes)}::json) as c (generation integer, code text)`.execute(
    tx,
  )
}

const centred = (centre: Buffer | null) => (centre === null ? undefined : fromBytes(centre))
