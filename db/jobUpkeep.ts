// The upkeep of the job table, in bounded pieces: finished jobs of more than a day go, histories of jobs that are gone,
// and the statistics follow a bulk load before autovacuum gets to it. Any number of processes may do it at once.

import { sql } from 'kysely'
import { allQueueNames } from '../domain/queues.ts'
import { pruneAttempts } from './attempts.ts'
import { finishedSeconds } from './jobTable.ts'
import type { Db } from './schema.ts'

const batchMax = 5000

/** @returns how many rows went */
export async function tidyJobs(db: Db): Promise<number> {
  await analyzeJobs(db)
  return (await pruneFinished(db)) + (await pruneJobs(db)) + (await pruneAttempts(db))
}

/** By finished_jobs_at (finished_at). */
async function pruneFinished(db: Db): Promise<number> {
  const result = await sql`
    delete from finished_jobs where ctid = any(array(
      select ctid from finished_jobs
      where finished_at < now() - ${finishedSeconds} * interval '1 second'
      order by finished_at limit ${batchMax}))`.execute(db)
  return Number(result.numAffectedRows ?? 0)
}

/** What was cancelled or failed, and jobs that ran alone. By job_i16 (name, completed_on). */
async function pruneJobs(db: Db): Promise<number> {
  let gone = 0
  for (const name of allQueueNames) {
    const result = await sql`
      delete from pgboss.job where name = ${name} and id = any(array(
        select id from pgboss.job
        where name = ${name} and completed_on < now() - ${finishedSeconds} * interval '1 second'
        limit ${batchMax} for update skip locked))`.execute(db)
    gone += Number(result.numAffectedRows ?? 0)
  }
  return gone
}

/** Autovacuum looks once a minute, and after a load it is late by as much as the load took. */
async function analyzeJobs(db: Db): Promise<void> {
  const { rows } = await sql<{ tables: string[] | null }>`
    select array_agg(relid::regclass::text) as tables from pg_stat_user_tables
    where (schemaname = 'pgboss' and relname ~ '^j(ob_common$|[0-9a-f]{56}$)'
        or relid = 'finished_jobs'::regclass)
      and n_mod_since_analyze > 50000 + n_live_tup / 5`.execute(db)
  for (const table of rows[0]?.tables ?? []) await sql.raw(`analyze ${table}`).execute(db)
}
