// The jobs of test/servers/jobWorker.ts, and the table in which it writes down each run.

import { sql } from 'kysely'
import type { Jobs } from '../db/jobs.ts'
import type { Db } from '../db/schema.ts'
import { everyJob } from './jobRows.ts'
import type { TestJob } from './servers/jobWorker.ts'

export type Run = { n: number; job_id: string; attempt: number; pid: number; at: Date }

export const createRuns = (db: Db) =>
  sql`create table runs (n int, job_id uuid, attempt int, pid int, beside int,
    at timestamptz default clock_timestamp());
    create index on runs (job_id)`.execute(db)

export async function sendNumbered(
  db: Db,
  jobs: Jobs,
  count: number,
  dataOf: (n: number) => Partial<TestJob> = () => ({}),
): Promise<void> {
  const all = Array.from({ length: count }, (_, n) => ({ data: { n, ...dataOf(n) } }))
  await jobs.send(db, 'commands', all)
}

export async function readRuns(db: Db): Promise<Run[]> {
  const { rows } = await sql<Run>`select n, job_id, attempt, pid, at from runs order by at`.execute(
    db,
  )
  return rows
}

export async function countRuns(db: Db): Promise<number> {
  const { rows } = await sql<{ count: number }>`select count(*)::int as count from runs`.execute(db)
  return rows[0]?.count ?? 0
}

export type JobState = { id: string; n: number; state: string; attempts: number; begun: boolean }

/** Those of the queue, by n. */
export async function readStates(db: Db): Promise<JobState[]> {
  const { rows } = await sql<JobState>`
    select id, (data->>'n')::int as n, state::text, retry_count as attempts,
      started_on is not null as begun
    from ${everyJob} where name = 'commands' order by 2`.execute(db)
  return rows
}

/** Whether so many are done, and none is left. */
export async function areDone(db: Db, count: number): Promise<boolean> {
  const { rows } = await sql<{ done: number; left: number }>`
    select count(*) filter (where state = 'completed')::int as done,
      count(*) filter (where state in ('created', 'retry', 'active'))::int as left
    from ${everyJob} where name = 'commands'`.execute(db)
  return rows[0]?.done === count && rows[0].left === 0
}
