// The event loader's store: cursors and events of its sources. A page and its cursor are one transaction; the cursor moves
// only for who has its fence and knows where it stood, so that an instance that lost its lock stores nothing, whatever
// lock it was. Statements lock sources in the order of their names.

import { sql } from 'kysely'
import type pg from 'pg'
import {
  type Appended,
  type Cursor,
  countOf,
  type EventStore,
  type Events,
  Fenced,
  lastIdOf,
  noEvents,
  overlapBegin,
  type Page,
  type Source,
  SourceFault,
  someOf,
} from '../domain/loader.ts'
import { copyAfter, createCopier, quote } from './copy.ts'
import { createGroup } from './group.ts'
import type { Database } from './open.ts'
import type { Db } from './schema.ts'
import { sqlState } from './transaction.ts'

const target = 'loaded_events (source, id, payload)'

/** Groups of appends under way at once. Each is a connection, and a COPY of all that came while another was at it. */
const appendsMax = 3

type Appending = { source: string; cursor: Cursor; pages: readonly Page[] }
type Drawn = { source: string; holder: string }
type Quiet = { source: string; fence: bigint; newestId: bigint | undefined }

export function openEventStore({ db, pool }: Pick<Database, 'db' | 'pool'>): EventStore {
  const draws = createGroup({ commit: (asked: Drawn[]) => draw(db, asked), divides: () => false })
  const quiets = createGroup({ commit: (all: Quiet[]) => noteQuiet(db, all), divides: () => false })
  const appends = Array.from({ length: appendsMax }, () => {
    const toCopy = createCopier()
    return createGroup({
      commit: (all: Appending[]) => appendRising(pool, all, toCopy),
      // One that is fenced or that Postgres refuses fails alone.
      divides: (error) => /^(FL001|22|23|54)/.test(sqlState(error) ?? ''),
      groupMax: 64,
      waitMaxMs: 60_000,
    })
  })
  let turn = 0
  /** An idle one, or each in turn. */
  const lane = () => appends.find(({ idle }) => idle) ?? appends[turn++ % appendsMax]

  return {
    lastKnownId: (source, holder) => draws.run({ source, holder }),

    async append(source, cursor, pages) {
      try {
        if (source.overlap > 0) return await appendOverlapping(pool, source, cursor, pages)
        const group = lane() as (typeof appends)[number]
        return await group.run({ source: source.name, cursor, pages })
      } catch (error) {
        throw await explained(error, source.name, pool)
      }
    },

    nothing: (source, { fence }, newestId) => quiets.run({ source, fence, newestId }),

    async failed(source, { fence }, why) {
      const { rows } = await sql<{ failures: number }>`
        update loader_sources set failures = failures + 1, last_error = ${why.slice(0, 500)},
          failed_at = clock_timestamp()
        where name = ${source} and fence = ${fence} returning failures`.execute(db)
      return rows[0]?.failures
    },
  }
}

type CursorRow = {
  name: string
  last_id: string
  scan_id: string | null
  fence: string
  failures: number
  quiet_ms: number
  paused: boolean
}

/** A cursor that stays in the same hands is only read. */
async function draw(db: Db, asked: Drawn[]): Promise<(Cursor | undefined)[]> {
  const names = asked.map(({ source }) => source)
  const holder = asked[0]?.holder
  const columns = sql.raw(`name, last_id, scan_id, fence, failures, paused_at is not null as paused,
    1000 * extract(epoch from clock_timestamp() - coalesce(event_at, created_at))::float8 as quiet_ms`)
  const { rows } = await sql<CursorRow>`
    with others as materialized (
      select name from loader_sources
      where name = any(${names}) and owner is distinct from ${holder} order by name for update),
    taken as (
      update loader_sources set fence = fence + 1, owner = ${holder}
      where name in (select name from others) returning ${columns})
    select * from taken
    union all
    select ${columns} from loader_sources where name = any(${names}) and owner = ${holder}`.execute(
    db,
  )
  const byName = new Map(rows.map((row) => [row.name, toCursor(row)]))
  return names.map((name) => byName.get(name))
}

const toCursor = (row: CursorRow): Cursor => ({
  lastId: BigInt(row.last_id),
  afterId: BigInt(row.scan_id ?? row.last_id),
  fence: BigInt(row.fence),
  failures: row.failures,
  quietMs: row.quiet_ms,
  paused: row.paused,
})

/** Under the fence: what a new holder has noted is not overwritten. */
async function noteQuiet(db: Db, all: Quiet[]): Promise<undefined[]> {
  await sql`
    with ours as materialized (
      select s.name, q.newest from unnest(${all.map(({ source }) => source)}::text[],
        ${all.map(({ fence }) => fence)}::bigint[],
        ${all.map(({ newestId }) => newestId ?? null)}::bigint[]) as q (name, fence, newest)
      join loader_sources s on s.name = q.name and s.fence = q.fence
      order by s.name for update of s)
    update loader_sources s set ok_at = clock_timestamp(), failures = 0,
      newest_id = coalesce(ours.newest, s.newest_id)
    from ours where s.name = ours.name`.execute(db)
  return all.map(() => undefined)
}

type Move = { toId: bigint; scanId: bigint | undefined; added: number }

const moveText = (source: string, { fence, lastId }: Cursor, move: Move, pages: readonly Page[]) =>
  `call loader_move(${quote(source)}, ${fence}, ${lastId}, ${move.toId}, ${move.scanId ?? 'null'}, ` +
  `${move.added}, ${pages.at(-1)?.newestId ?? 'null'})`

const moved = (cursor: Cursor, { toId, scanId, added }: Move): Appended => {
  const quietMs = added > 0 ? 0 : cursor.quietMs
  const afterId = scanId ?? toId
  return { cursor: { ...cursor, lastId: toId, afterId, failures: 0, quietMs }, added }
}

async function appendRising(
  pool: pg.Pool,
  group: readonly Appending[],
  toCopy: ReturnType<typeof createCopier>,
): Promise<Appended[]> {
  const all = group.map(({ source, cursor, pages }) => {
    const events = pages.map((page) => page.events)
    const toId = lastIdOf(events.at(-1) ?? noEvents) ?? cursor.lastId
    const added = events.reduce((sum, one) => sum + countOf(one), 0)
    const move: Move = { toId, scanId: undefined, added }
    return { source, pages: events, move, text: moveText(source, cursor, move, pages) }
  })
  const inOrder = all.toSorted((a, b) => (a.source < b.source ? -1 : 1))
  await copyAfter(pool, inOrder.map(({ text }) => text).join('; '), target, toCopy(all))
  return group.map(({ cursor }, i) => moved(cursor, (all[i] as (typeof all)[number]).move))
}

/**
 * Of a source whose ids turn up out of order: what was seen within the window is dropped. The window is read page by
 * page, and again from its begin when an empty page tells its end, whatever size of page the source likes; what lies
 * before all that may still be read is forgotten. What was loaded before there was such a window, or a smaller one, or
 * before a reset, is looked up among the events.
 */
async function appendOverlapping(
  pool: pg.Pool,
  source: Source,
  cursor: Cursor,
  pages: readonly Page[],
): Promise<Appended> {
  const { name, overlap } = source
  const [page, ...others] = pages
  if (page === undefined || others.length > 0) throw new Error('a window is read page by page')
  const lastOfPage = lastIdOf(page.events) ?? cursor.afterId
  let toId = cursor.lastId
  if (lastOfPage > toId) toId = lastOfPage
  const begin = overlapBegin(toId, overlap)
  const scanId = countOf(page.events) > 0 ? lastOfPage : begin
  const client = await pool.connect()
  let fresh: Events
  let move: Move
  try {
    await client.query("begin; set local lock_timeout = '8s'")
    const { rows } = await client.query<{ id: string }>(
      `insert into loader_seen (source, id) select $1, * from unnest($2::bigint[])
       on conflict do nothing returning id`,
      [name, [...page.events.ids]],
    )
    const unseen = new Set(rows.map(({ id }) => BigInt(id)))
    const late = [...unseen].filter((id) => id <= cursor.lastId)
    if (late.length > 0) {
      const stored = await client.query<{ id: string }>(
        'select id from loaded_events where source = $1 and id = any($2::bigint[])',
        [name, late],
      )
      for (const { id } of stored.rows) unseen.delete(BigInt(id))
    }
    fresh = someOf(page.events, (id) => unseen.has(id))
    move = { toId, scanId, added: countOf(fresh) }
    await client.query(moveText(name, cursor, move, pages))
    await client.query(
      'delete from loader_seen where source = $1 and id <= least($2, $3::bigint)',
      [name, scanId, begin],
    )
    await client.query(
      `insert into ${target}
       select $1, id, payload::json from unnest($2::bigint[], $3::text[]) as e (id, payload)`,
      [name, [...fresh.ids], payloadsOf(fresh)],
    )
    await client.query('commit')
    client.release()
  } catch (error) {
    client.release(true)
    throw error
  }
  return moved(cursor, move)
}

const payloadsOf = ({ ids, body, spans }: Events): string[] => {
  const bytes = Buffer.from(body.buffer, body.byteOffset, body.byteLength)
  return Array.from(ids, (_, i) => bytes.toString('utf8', spans[2 * i], spans[2 * i + 1]))
}

/** What Postgres thinks of the events is the source's fault; of a missing partition, ours. */
async function explained(error: unknown, source: string, pool: pg.Pool): Promise<unknown> {
  const state = sqlState(error) ?? ''
  const { message, where } = error as Error & { where?: string }
  if (state === 'FL001') return new Fenced(source)
  if (state === '23514' && /no partition/.test(message)) {
    await makePartitions(pool)
    return error
  }
  if (!/^(22|23|54)/.test(state)) return error
  const line = /^COPY loaded_events, line (\d+)/m.exec(where ?? '')?.[1]
  const at = line === undefined ? '' : `event ${line}: `
  return new SourceFault(`${at}Postgres refuses it: ${message} (${state})`, 0, { cause: error })
}

/** How many days ahead there are partitions. */
const daysAhead = 3

export async function makePartitions(pool: pg.Pool): Promise<void> {
  await pool.query('select loader_partitions($1)', [daysAhead])
}

/**
 * Drops the partitions of events that were loaded more than `keepDays` ago.
 * @returns their names
 */
export async function dropPartitions(db: Db, keepDays: number): Promise<string[]> {
  const { rows } = await sql<{ name: string }>`
    select c.relname as name from pg_inherits i join pg_class c on c.oid = i.inhrelid
    where i.inhparent = 'loaded_events'::regclass and c.relname < 'loaded_events_' || to_char(
      (clock_timestamp() at time zone 'UTC')::date - ${keepDays}::int, 'YYYYMMDD')
    order by 1`.execute(db)
  for (const { name } of rows) {
    // It waits for those who read the table, and whoever appends waits behind it: not for long.
    await db.transaction().execute(async (tx) => {
      await sql`set local lock_timeout = '2s'`.execute(tx)
      await sql`drop table ${sql.id(name)}`.execute(tx)
    })
  }
  return rows.map(({ name }) => name)
}
