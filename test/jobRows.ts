// The rows of the job table for tests: all of them away, and time moved for those in hand.

import { sql } from 'kysely'
import type { Db } from '../db/schema.ts'

export async function emptyJobs(db: Db): Promise<void> {
  await sql`
    with waiting as (delete from pgboss.job), held as (delete from claims)
    delete from finished_jobs`.execute(db)
}

/** As if nobody had shown a sign of life for 11 s: more than a heartbeat. */
export async function loseLife(db: Db): Promise<void> {
  await sql`
    with held as (update claims set seen_at = seen_at - interval '11 s')
    update pgboss.job set heartbeat_on = heartbeat_on - interval '11 s'`.execute(db)
}

/** As if all in hand had been claimed so much earlier. */
export async function claimEarlier(db: Db, seconds: number): Promise<void> {
  await sql`
    with held as (update claims set taken_at = taken_at - ${seconds} * interval '1 s')
    update pgboss.job set started_on = started_on - ${seconds} * interval '1 s'`.execute(db)
}

/** `from ${everyJob}`: those that wait, those in hand and those that are done, as rows of pg-boss's table. */
export const everyJob = sql`(
  select id, name, state::text as state, data, retry_count, retry_limit, output, source_id, start_after,
    created_on, started_on, completed_on from pgboss.job
  union all
  select id, queue, 'active', data, retry_count, retry_limit, null, null, created_on, created_on,
    started_on, null
  from jobs_in_hand(array(select name from pgboss.queue))
  union all
  select id, queue, 'completed', data, attempts - 1, attempts_max - 1, null, null, created_at,
    created_at, started_at, finished_at
  from finished_jobs) job`
