// How the queues of the job table stand: read only, for people and for metrics.

import { sql } from 'kysely'
import { allQueueNames, deadLetterOf, queues } from '../domain/queues.ts'
import { readPaused } from './pauses.ts'
import { readWorkers } from './registry.ts'
import type { Db, Tx } from './schema.ts'
import { readByKey, transaction } from './transaction.ts'

export type QueueStats = {
  queue: string
  /** Due now. */
  ready: number
  /** Due later. */
  delayed: number
  active: number
  /** In the dead letter queue. */
  failed: number
  /** Age of the job that has been due longest, s; null: none is due. */
  oldest_seconds: number | null
  /** Nothing is claimed from it. */
  paused: boolean
}

type Row = { queue: string; ready: number; delayed: number; active: number; oldest: number | null }

/**
 * One row a queue of the catalogue, in its order, idle queues too. Exact: it reads the index job_i14 of all that waits,
 * and nothing of what is finished (measured with 1,000,000 of each: 0.4 s, 0.9 s when they are new to the cache). Its
 * states stand in the text, or the planner does not know that the index has them.
 */
export async function readQueueStats(db: Db): Promise<QueueStats[]> {
  const { rows } = await sql<Row>`
    select name as queue,
      count(*) filter (where state < 'active' and start_after <= now())::int as ready,
      count(*) filter (where state < 'active' and start_after > now())::int as delayed,
      count(*) filter (where state = 'active')::int as active,
      extract(epoch from now() - min(start_after)
        filter (where state < 'active' and start_after <= now()))::float8 as oldest
    from pgboss.job
    where name = any(${[...allQueueNames]}) and state in ('created', 'retry', 'active') group by name`.execute(
    db,
  )
  return toStats(rows, await readInHand(db), await readPaused(db))
}

/** Counts of `readQueueLevels` go no further. */
export const levelMax = 100_000
const levelsMaxMs = 2000

/**
 * The same for whoever asks often: counts stop at `levelMax`, so that it costs the same when millions wait (measured:
 * 35 ms). By the index job_i14 (name, state, blocked, start_after) alone, whatever the statistics say.
 * @throws when it takes longer than 2 s
 */
export async function readQueueLevels(db: Db): Promise<QueueStats[]> {
  return await transaction(
    db,
    async (tx) => {
      await readByKey(tx)
      await sql`set local statement_timeout = ${sql.lit(`${levelsMaxMs}ms`)}`.execute(tx)
      const { rows } = await sql<Row>`
        select n.name as queue, least(sum(r.n), ${levelMax})::int as ready,
          least(sum(d.n), ${levelMax})::int as delayed, max(a.n)::int as active,
          extract(epoch from clock_timestamp() - min(r.oldest))::float8 as oldest
        from unnest(${[...allQueueNames]}::text[]) as n (name)
        cross join (values ('created'::pgboss.job_state), ('retry')) as s (state)
        cross join (values (false), (true)) as b (blocked)
        cross join lateral (
          select count(*) as n, min(start_after) as oldest from (
            select start_after from pgboss.job j
            where j.name = n.name and j.state = s.state and j.blocked = b.blocked
              and j.state in ('created', 'retry', 'active', 'failed') and j.start_after <= now()
            order by j.start_after limit ${levelMax}) as due) as r
        cross join lateral (
          select count(*) as n from (
            select from pgboss.job j
            where j.name = n.name and j.state = s.state and j.blocked = b.blocked
              and j.state in ('created', 'retry', 'active', 'failed') and j.start_after > now()
            limit ${levelMax}) as later) as d
        cross join lateral (
          select count(*) as n from (
            select from pgboss.job j where j.name = n.name and j.state = 'active'
            limit ${levelMax}) as active) as a
        group by n.name`.execute(tx)
      return toStats(rows, await readInHand(tx), await readPaused(tx))
    },
    { isolation: 'read committed', maxAttempts: 1 },
  )
}

/** What workers have claimed and not settled, by queue: one row a claim, its payloads unread. */
async function readInHand(on: Db | Tx): Promise<Map<string, number>> {
  const { rows } = await sql<{ queue: string; count: number }>`
    select queue, sum(bit_count(~settled))::int as count from claims group by queue`.execute(on)
  return new Map(rows.map((row) => [row.queue, row.count]))
}

function toStats(
  rows: readonly Row[],
  held: ReadonlyMap<string, number>,
  paused: ReadonlyMap<string, Date>,
): QueueStats[] {
  const found = new Map(rows.map((row) => [row.queue, row]))
  return queues.map(({ name: queue }) => {
    const row = found.get(queue)
    const dead = found.get(deadLetterOf(queue))
    return {
      queue,
      ready: row?.ready ?? 0,
      delayed: row?.delayed ?? 0,
      active: (row?.active ?? 0) + (held.get(queue) ?? 0),
      failed: dead ? dead.ready + dead.delayed + dead.active : 0,
      oldest_seconds: row?.oldest ?? null,
      paused: paused.has(queue),
    }
  })
}

const rateSeconds = 60

/**
 * Jobs settled a second over the last minute, by queue: counted where finished ones are kept, by finished_jobs_at
 * (finished_at); else what the workers that are alive say.
 */
export async function readQueueRates(db: Db): Promise<Map<string, number>> {
  const kept = queues.filter(({ keepFinished }) => keepFinished).map(({ name }) => name)
  const counted = await sql<{ queue: string; done: number }>`
    select queue, sum(done)::int as done from (
      select queue, count(*) as done from finished_jobs
      where queue = any(${kept}) and finished_at > now() - ${rateSeconds} * interval '1 second'
      group by queue
      union all select queue, bit_count(finished) from claims where queue = any(${kept})) d
    group by queue`.execute(db)
  const done = new Map(counted.rows.map((row) => [row.queue, row.done / rateSeconds]))
  const alive = (await readWorkers(db)).filter((worker) => worker.alive)
  const said = (queue: string) =>
    alive.reduce((sum, { doing }) => sum + (doing.queues?.[queue]?.perSecond ?? 0), 0)
  return new Map(
    queues.map(({ name, keepFinished }) => [
      name,
      keepFinished ? (done.get(name) ?? 0) : said(name),
    ]),
  )
}
