// How the queues of the job table stand: read only, for people and for metrics.

import { sql } from 'kysely'
import { deadLetterOf, queues } from '../domain/queues.ts'
import { readPaused } from './pauses.ts'
import { readWorkers } from './registry.ts'
import type { Db } from './schema.ts'

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

/** One row a queue of the catalogue, in its order, idle queues too. */
export async function readQueueStats(db: Db): Promise<QueueStats[]> {
  const names = queues.flatMap(({ name }) => [name, deadLetterOf(name)])
  const { rows } = await sql<Omit<QueueStats, 'failed' | 'paused'>>`
    select name as queue,
      count(*) filter (where state < 'active' and start_after <= clock_timestamp())::int as ready,
      count(*) filter (where state < 'active' and start_after > clock_timestamp())::int as delayed,
      count(*) filter (where state = 'active')::int as active,
      extract(epoch from clock_timestamp() - min(start_after)
        filter (where state < 'active' and start_after <= clock_timestamp()))::float8 as oldest_seconds
    from pgboss.job where name = any(${names}) and state <= 'active' group by name`.execute(db)
  const inHand = await sql<{ queue: string; count: number }>`
    select queue, sum(bit_count(~settled))::int as count from claims group by queue`.execute(db)
  const held = new Map(inHand.rows.map((row) => [row.queue, row.count]))
  const paused = await readPaused(db)
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
      oldest_seconds: row?.oldest_seconds ?? null,
      paused: paused.has(queue),
    }
  })
}

const rateSeconds = 60

/**
 * Jobs settled a second over the last minute, by queue: counted where finished ones are kept, by finished_jobs_at (queue,
 * finished_at); else what the workers that are alive say.
 */
export async function readQueueRates(db: Db): Promise<Map<string, number>> {
  const kept = queues.filter(({ keepFinished }) => keepFinished).map(({ name }) => name)
  const counted = await sql<{ queue: string; done: number }>`
    select queue, count(*)::int as done from finished_jobs
    where queue = any(${kept}) and finished_at > now() - ${rateSeconds} * interval '1 second'
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
