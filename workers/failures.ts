// What a handler may throw, and how a job that failed is settled and told of: one log line a failure. A job that is given
// up has the code that alerts are made of, and the same facts as its audit row.

import { Counter } from 'prom-client'
import type { Failed, Job } from '../db/jobs.ts'
import type { FailureKind } from '../db/schema.ts'
import { queueOf } from '../domain/queues.ts'
import { jobRetryDelayMs, jobSchedules } from '../domain/retries.ts'
import { traceIdOf, traceparentIn } from '../domain/traces.ts'
import type { Held } from './held.ts'
import { describeError } from './log.ts'
import type { Runtime } from './pipeline.ts'

/** Thrown by a handler: no repetition can mend it, to the dead letter queue at once. */
export class Unrecoverable extends Error {}

/** Thrown by a handler: not now, but after `delayMs`; no attempt is spent. */
export class Postpone extends Error {
  readonly delayMs: number
  constructor(delayMs: number, why: string) {
    super(why)
    this.delayMs = delayMs
  }
}

/** Thrown by a handler: the other side asks to be left alone so long. The queue's schedule may wait longer. */
export class RetryAfter extends Error {
  readonly retryAfterMs: number
  constructor(retryAfterMs: number, why: string) {
    super(why)
    this.retryAfterMs = retryAfterMs
  }
}

const retries = new Counter({
  name: 'jobs_retries_total',
  help: 'Attempts that failed and are followed by another, by how they failed',
  labelNames: ['queue', 'kind'] as const,
})
const dead = new Counter({
  name: 'jobs_dead_total',
  help: 'Jobs given up',
  labelNames: ['queue'] as const,
})

/** A queue in which nothing failed yet shows 0. */
export function countFailuresOf(queue: string): void {
  for (const kind of ['failed', 'died', 'late']) retries.inc({ queue, kind }, 0)
  dead.inc({ queue }, 0)
}

type Settled = Pick<Runtime, 'jobs' | 'queue' | 'worker'>

export async function settleFailure(
  { jobs, queue, worker }: Settled,
  { job, signal, taken }: Held,
  error: unknown,
): Promise<void> {
  // Told of when it was dropped; what its handler made of that is of no interest to anybody.
  if (taken === 'cancelled') return
  if (error instanceof Postpone) return await jobs.release(queue, [job], error.delayMs)
  // It was dropped by us, and did not fail.
  if (worker.dying.aborted) return await jobs.release(queue, [job])
  const hopeless = error instanceof Unrecoverable
  const delayMs = hopeless ? null : delayAfter(job, error)
  const next = delayMs === null ? 'dead' : { delayMs }
  const kind = hopeless ? 'hopeless' : signal.aborted ? 'late' : 'failed'
  const told = kind === 'late' ? tookTooLong(job, error) : error
  const failed = await jobs.fail(job, told, next, kind)
  if (failed.became === 'dead' || failed.became === 'retry') worker.failed(1)
  tellFailure(worker, job, failed, told, kind)
}

function tookTooLong({ queue }: Job, cause: unknown): Error {
  const seconds = queueOf(queue)?.expireInSeconds
  return new Error(`it took longer than its queue allows (${seconds} s)`, { cause })
}

/** By the attempts that are left: a death of its worker made one more, and spent none of the schedule. */
function delayAfter(job: Job, error: unknown): number | null {
  const schedule = jobSchedules[queueOf(job.queue)?.retry ?? 'background']
  const asked = error as { retryAfterMs?: unknown; extra?: { retryAfterMs?: unknown } } | null
  const retryAfterMs = Number(asked?.retryAfterMs ?? asked?.extra?.retryAfterMs ?? 0)
  const attempt = schedule.length - (job.attemptsMax - job.attempt) + 1
  return jobRetryDelayMs(schedule, Math.max(1, attempt), retryAfterMs)
}

/** One line a failure. */
export function tellFailure(
  { log }: Pick<Settled['worker'], 'log'>,
  job: Job,
  failed: Failed,
  error: unknown,
  kind: FailureKind,
): void {
  const { id, queue, attempt, attemptsMax } = job
  const data = (job.data ?? {}) as { requestid?: unknown; request_id?: unknown }
  const told = {
    job_id: id,
    queue,
    attempt,
    attempts_max: attemptsMax,
    request_id: data.requestid ?? data.request_id,
    trace_id: traceIdOf(traceparentIn(job.data)),
    error: describeError(error),
  }
  if (failed.became === 'dead') {
    const { code, deadJobId: dead_job_id, type, transport, attempts, errors, stack } = failed.audit
    dead.inc({ queue })
    log.error(
      { ...told, code, dead_job_id, type, transport, attempts, errors, stack },
      'a job is in the dead letter queue',
    )
  } else if (failed.became === 'retry') {
    retries.inc({ queue, kind })
    log.warn(told, 'a job failed and will run again')
  } else if (failed.became === 'cancelled') log.info(told, 'a job was cancelled while it ran')
  else log.warn(told, 'a job failed that another worker has taken over')
}
