// The hot path of the job table: claim, complete, give back, show a sign of life, each one statement, whatever the
// planner thinks of the table (0003_jobs.sql). A claim is an attempt: whatever settles a job names the attempt it was
// claimed in, and one that lost its claim settles nothing.

import { sql } from 'kysely'
import { type QueueName, queueOf } from '../domain/queues.ts'
import type { Db, Tx } from './schema.ts'

export type Job<T = unknown> = {
  id: string
  queue: QueueName
  data: T
  /** From 1. */
  attempt: number
  attemptsMax: number
  createdAt: Date
}

type Row = {
  id: string
  data: unknown
  retry_count: number
  retry_limit: number
  priority: number
  created_ms: number
}

/** The oldest that are due, in their order; none of a paused queue. */
export async function claimJobs(db: Db, queue: QueueName, batchMax: number): Promise<Job[]> {
  const activeMax = queueOf(queue)?.activeMax ?? null
  const { rows } = await sql<Row>`
    select * from claim_jobs(${queue}, ${batchMax}::int, ${activeMax}::int)`.execute(db)
  return rows.sort(byAge).map((row) => toJob(queue, row))
}

/** One job that was in hand when its worker died: to be run while nothing else is. */
export async function claimSuspect(db: Db, queue: QueueName): Promise<Job | undefined> {
  const { rows } = await sql<Row>`select * from claim_suspect(${queue})`.execute(db)
  return rows[0] && toJob(queue, rows[0])
}

/** Whether `claimSuspect` would find one. */
export async function hasSuspects(db: Db, queue: QueueName): Promise<boolean> {
  const { rows } = await sql<{ found: boolean }>`select has_suspects(${queue}) as found`.execute(db)
  return rows[0]?.found === true
}

const byAge = (a: Row, b: Row): number =>
  b.priority - a.priority || a.created_ms - b.created_ms || (a.id < b.id ? -1 : 1)

const toJob = (queue: QueueName, row: Row): Job => ({
  id: row.id,
  queue,
  data: row.data,
  attempt: row.retry_count + 1,
  attemptsMax: row.retry_limit + 1,
  createdAt: new Date(row.created_ms),
})

const idsOf = (jobs: readonly Job[]) => sql`${jobs.map(({ id }) => id)}::uuid[]`
const countsOf = (jobs: readonly Job[]) => sql`${jobs.map(({ attempt }) => attempt - 1)}::int[]`

/** @returns how many were still ours */
export async function completeJobs(
  on: Db | Tx,
  queue: QueueName,
  jobs: readonly Job[],
): Promise<number> {
  const keep = queueOf(queue)?.keepFinished ?? true
  const { rows } = await sql<{ settled: number }>`
    select complete_jobs(${queue}, ${idsOf(jobs)}, ${countsOf(jobs)}, ${keep}) as settled`.execute(
    on,
  )
  return rows[0]?.settled ?? 0
}

/** A job that is not in this worker's hands any more: cancelled, or taken over, or settled meanwhile. */
export type Lost = { job: Job; cancelled: boolean }

/** Shows a sign of life. What is being settled at that moment counts as ours. @returns what is ours no more */
export async function touchJobs(db: Db, queue: QueueName, jobs: readonly Job[]): Promise<Lost[]> {
  const { rows } = await sql<{ place: string; cancelled: boolean }>`
    select place, cancelled from show_life(${queue}, ${idsOf(jobs)}, ${countsOf(jobs)})`.execute(db)
  return rows.map(({ place, cancelled }) => ({ job: jobs[Number(place) - 1] as Job, cancelled }))
}

export async function releaseJobs(
  db: Db,
  queue: QueueName,
  jobs: readonly Job[],
  delayMs: number,
): Promise<void> {
  await sql`
    select release_jobs(${queue}, ${idsOf(jobs)}, ${countsOf(jobs)}, ${delayMs}::float8)`.execute(
    db,
  )
}
