// Appends to the job table, in one statement whatever their number, by send_jobs (0004_claims.sql): half the work of
// pg-boss's own insert, and nothing of it need be loaded.

import { sql } from 'kysely'
import type { QueueName } from '../domain/queues.ts'
import { newIds } from './ids.ts'
import type { Db, Tx } from './schema.ts'
import { wakeAfterCommit } from './wake.ts'

export type NewJob = {
  /** A second job with the same id in its queue is not made: what is sent again under one id is sent once. */
  id?: string
  data: object
  /** Not before so many ms from now. */
  delayMs?: number
  /** Higher first. */
  priority?: number
}

/** A UUID v7 tells the order of jobs that were sent together, and so have one created_on. */
export async function sendJobs(
  on: Db | Tx,
  queue: QueueName,
  jobs: readonly NewJob[],
): Promise<void> {
  const named = jobs.some(({ id }) => id !== undefined)
  const ids = newIds(jobs.length)
  await sql`
    select send_jobs(${queue}, ${jobs.map(({ id }, i) => id ?? ids[i])}::uuid[],
      ${jobs.map(({ data }) => JSON.stringify(data))}::text[],
      ${jobs.map(({ delayMs = 0 }) => delayMs)}::float8[],
      ${jobs.map(({ priority = 0 }) => priority)}::int[], ${named})`.execute(on)
}

/** For whoever has no `Jobs` at hand: in a transaction of transaction(), after which waiting workers are woken. */
export async function sendInTransaction(
  tx: Tx,
  queue: QueueName,
  jobs: readonly NewJob[],
): Promise<void> {
  if (jobs.length === 0) return
  await sendJobs(tx, queue, jobs)
  wakeAfterCommit(tx, queue)
}

/** Until a moment, by Postgres's clock, ms; 0: it is past. */
export async function readDelayMs(tx: Tx, at: string): Promise<number> {
  const { rows } = await sql<{ ms: number }>`
    select greatest(0, extract(epoch from ${at}::timestamptz - clock_timestamp()) * 1000)::float8
      as ms`.execute(tx)
  return rows[0]?.ms ?? 0
}
