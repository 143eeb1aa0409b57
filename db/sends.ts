// Appends to the job table, in one statement whatever their number, by send_jobs (0004_claims.sql): half the work of
// pg-boss's own insert, and nothing of it need be loaded.

import { sql } from 'kysely'
import type { QueueName } from '../domain/queues.ts'
import { newIds } from './ids.ts'
import type { Db, Tx } from './schema.ts'

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
