// How an attempt ends that did not succeed: with its record, in one transaction. The job runs again later, or lies in
// the dead letter queue with its audit. A death of its worker spends no attempt of the queue's schedule, as most who
// are in hand then have no part in it: those run again alone, and at the third death (deathsMax) a job is dead.

import { sql } from 'kysely'
import type { PgBoss } from 'pg-boss'
import { deadLetterOf, deathsMax } from '../domain/queues.ts'
import { type Audit, countDeaths, describeFailure, writeAttempt, writeAudit } from './attempts.ts'
import { type Job, openStaleClaims, readCancelled, takeOut } from './claims.ts'
import { nameForBoss, over } from './jobTable.ts'
import type { FailureKind, Tx } from './schema.ts'

/** What became of a job that failed. `lost`: another worker has it by now. As with `cancelled` nothing was changed. */
export type Failed = { became: 'retry' | 'lost' | 'cancelled' } | { became: 'dead'; audit: Audit }

/** A job whose worker showed no sign of life or took too long. */
export type Recovered = { job: Job; failed: Failed; why: string; kind: FailureKind }

export type Failure = { error: unknown; kind: FailureKind; next: { delayMs: number } | 'dead' }

/** What pg-boss fences a settlement with. */
const toClaim = ({ id, attempt }: Job) => ({ id, retryCount: attempt - 1 }) as never

export async function failJob(boss: PgBoss, tx: Tx, job: Job, failure: Failure): Promise<Failed> {
  const { queue, id } = job
  const { error, kind, next } = failure
  await takeOut(tx, job)
  const dead = next === 'dead' || (kind !== 'died' && job.attempt >= job.attemptsMax)
  // pg-boss moves a job to its dead letter queue when no retry is left; one more makes up for a death.
  const retryLimit = dead ? sql`retry_count` : sql`retry_limit + ${kind === 'died' ? 1 : 0}::int`
  await sql`update pgboss.job set retry_limit = ${retryLimit}
    where name = ${queue} and id = ${id} and state = 'active'
      and retry_count = ${job.attempt - 1}`.execute(tx)
  const output = describeFailure(error)
  const options = { db: over(tx) as never }
  const settled = await boss.fail(nameForBoss(queue), toClaim(job), output, options)
  // Not in pg-boss's types.
  if ((settled as unknown as { affected: number }).affected === 0) {
    return { became: (await readCancelled(tx, queue, [job])).has(id) ? 'cancelled' : 'lost' }
  }
  await writeAttempt(tx, { jobId: id, queue, attempt: job.attempt }, kind, error)
  if (dead) return { became: 'dead', audit: await bury(tx, job) }
  // Whose worker died is kept from everybody until it has run alone: `blocked` (claim_suspect, 0003_jobs.sql).
  await sql`
    update pgboss.job set start_after = clock_timestamp() + ${next.delayMs} * interval '1 ms',
      blocked = ${kind === 'died'}
    where name = ${queue} and id = ${id} and state = 'retry'`.execute(tx)
  return { became: 'retry' }
}

/** Finds what pg-boss just made of the job, by job_i12 (source_root_id). */
async function bury(tx: Tx, job: Job): Promise<Audit> {
  const { rows } = await sql<{ id: string }>`
    select d.id from pgboss.job j
    join pgboss.job d on d.source_root_id = coalesce(j.source_root_id, j.id)
      and d.name = ${deadLetterOf(job.queue)} and d.source_id = j.id
    where j.name = ${job.queue} and j.id = ${job.id}
    order by d.created_on desc limit 1`.execute(tx)
  // A queue without a dead letter queue of its own: the job lies where it was.
  const deadId = rows[0]?.id ?? job.id
  const key = { jobId: job.id, queue: job.queue, attempt: job.attempt }
  return await writeAudit(tx, key, deadId, typeOf(job.data))
}

/** A word, or nothing: whatever else a payload calls its type is not for people to read. */
export function typeOf(data: unknown): string | null {
  const { type } = (data ?? {}) as { type?: unknown }
  return typeof type === 'string' && /^[\w.:-]{1,100}$/.test(type) ? type : null
}

type Stale = { id: string; data: unknown; retryCount: number; retryLimit: number; createdAt: Date }

const recoverMax = 100

/**
 * Fails the jobs of workers that died, and those that took too long. By job_i14 (name, state); skips what another
 * process is settling or recovering.
 */
export async function recoverJobs(boss: PgBoss, tx: Tx, queue: string): Promise<Recovered[]> {
  await openStaleClaims(tx, queue)
  // Whatever the statistics say, few are active.
  await sql`set local enable_seqscan = off`.execute(tx)
  // Found after its time, whoever showed no sign of life any more died all the same.
  const { rows } = await sql<Stale & { late: boolean }>`
    select id, data, retry_count as "retryCount", retry_limit as "retryLimit",
      created_on as "createdAt",
      coalesce(heartbeat_on + heartbeat_seconds * interval '1 second' >= clock_timestamp(), true)
        as late
    from pgboss.job
    where name = ${queue} and state = 'active' and (
      heartbeat_on + heartbeat_seconds * interval '1 second' < clock_timestamp()
      or started_on + expire_seconds * interval '1 second' < clock_timestamp())
    limit ${recoverMax} for update skip locked`.execute(tx)
  const recovered: Recovered[] = []
  for (const { late, retryCount, retryLimit, ...row } of rows) {
    const job = { ...row, queue, attempt: retryCount + 1, attemptsMax: retryLimit + 1 } as Job
    const failure = late ? tookTooLong(job) : await diedWith(tx, job)
    const failed = await failJob(boss, tx, job, failure)
    recovered.push({ job, failed, why: String(failure.error), kind: failure.kind })
  }
  return recovered
}

function tookTooLong(job: Job): Failure {
  const error = 'it took longer than its queue allows'
  return { error, kind: 'late', next: job.attempt >= job.attemptsMax ? 'dead' : { delayMs: 0 } }
}

async function diedWith(tx: Tx, job: Job): Promise<Failure> {
  const { id: jobId, queue, attempt } = job
  const deaths = 1 + (await countDeaths(tx, { jobId, queue, attempt }))
  const error = `its worker died or lost the database (${deaths} of ${deathsMax} times)`
  return { error, kind: 'died', next: deaths >= deathsMax ? 'dead' : { delayMs: 0 } }
}
