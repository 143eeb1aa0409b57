// Passes over a queue of the job table. `jobPass` hands jobs one by one to a handler, some at once, and settles each
// when it is done; `batchPass` hands a whole batch to one transaction that completes it too; `recoverPass` finds the
// jobs of workers that died. A job is run at least once: its handler must bear a second run. Nothing is lost: what a
// stopping worker did not begin goes back without an attempt spent, and so does what it had to drop.

import { setTimeout as sleep } from 'node:timers/promises'
import { Counter, Histogram } from 'prom-client'
import { createGroup } from '../db/group.ts'
import type { Failed, Job, Jobs } from '../db/jobs.ts'
import { pingDatabase } from '../db/open.ts'
import type { Db, Tx } from '../db/schema.ts'
import { CommitUnknown, isConnectionLost, transaction } from '../db/transaction.ts'
import { heartbeatSeconds, type QueueName, queues } from '../domain/queues.ts'
import { jobRetryDelayMs, jobSchedules } from '../domain/retries.ts'
import { describeError } from './log.ts'
import type { Loop, Pass } from './loop.ts'
import type { Worker } from './worker.ts'

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

const labelNames = ['queue'] as const
const done = new Counter({ name: 'jobs_completed_total', help: 'Jobs completed', labelNames })
const retried = new Counter({ name: 'jobs_retried_total', help: 'Failed attempts', labelNames })
const dead = new Counter({ name: 'jobs_dead_total', help: 'Jobs given up', labelNames })
const duration = new Histogram({
  name: 'jobs_duration_seconds',
  help: 'How long a handler took',
  labelNames,
  buckets: [0.005, 0.02, 0.1, 0.5, 2, 10, 60],
})

type Runtime = {
  jobs: Jobs
  queue: QueueName
  /** Jobs claimed at once, at most. */
  batchMax: number
  worker: Pick<Worker, 'log' | 'failed' | 'dying'>
}

export type JobPassOptions<T> = Runtime & {
  db: Db
  concurrency: number
  /** How many of `count` claimed jobs may begin now; the rest goes back, no attempt spent. Left out: all. */
  admit?(count: number): Promise<number>
  /** @throws when the payload is none of this queue's: such a job goes to the dead letter queue at once */
  decode(data: unknown): T
  /** The signal aborts when the job must be dropped: the grace is over, or its time is. */
  handle(job: Job<T>, signal: AbortSignal): Promise<void>
}

export function jobPass<T>(options: JobPassOptions<T>): Pass {
  const { jobs, queue, db, batchMax, concurrency, worker } = options
  // Completions that come while one is under way go together with the next.
  const completions = createGroup<Job, void>({
    commit: async (finished) => {
      await jobs.complete(db, queue, finished)
      return finished.map(() => undefined)
    },
    divides: () => false,
    // It is done already: refused for having waited, it would be done once more.
    waitMaxMs: Number.POSITIVE_INFINITY,
  })

  async function runOne(job: Job, signal: AbortSignal): Promise<void> {
    const end = duration.startTimer({ queue })
    try {
      await options.handle({ ...job, data: decodeJob(job, options.decode) }, signal)
    } catch (error) {
      end()
      return await untilSaid(signal, () => settleFailure(options, job, error))
    }
    end()
    await untilSaid(signal, () => completions.run(job))
    done.inc({ queue })
  }

  return async (stopping, handledMax) => {
    const claimedAt = performance.now()
    const batch = await jobs.fetch(queue, Math.min(batchMax, handledMax))
    if (batch.length === 0) return 0
    const { expiring, inHand } = hold(options, batch, claimedAt)
    const signal = AbortSignal.any([worker.dying, expiring])
    const waiting = [...batch]
    let admitted = 0
    const faults: unknown[] = []
    const lane = async () => {
      for (let job = next(); job !== undefined; job = next()) {
        await runOne(job, signal).catch((error) => faults.push(error))
        inHand.delete(job)
      }
    }
    const next = () => {
      const mayBegin = admitted > 0 && !stopping.aborted && !signal.aborted
      if (mayBegin) admitted--
      return mayBegin ? waiting.shift() : undefined
    }
    try {
      admitted = options.admit ? await options.admit(batch.length) : batch.length
      await Promise.all(Array.from({ length: Math.min(concurrency, batch.length) }, lane))
    } finally {
      await untilSaid(signal, () => jobs.release(queue, waiting)).finally(inHand.clear)
    }
    if (faults.length > 0) throw faults[0]
    return batch.length - waiting.length
  }
}

export type BatchPassOptions<T> = Runtime & {
  db: Db
  decode(data: unknown): T
  /**
   * Does what the jobs ask for, all in `tx`, which completes them as well. When it throws, halves are tried, so that one
   * bad job fails alone. What it gives back is called once that is committed.
   */
  handle(tx: Tx, jobs: Job<T>[]): Promise<() => void>
}

export function batchPass<T>(options: BatchPassOptions<T>): Pass {
  const { jobs, queue, db, batchMax } = options

  async function runAll(batch: Job[]): Promise<void> {
    if (batch.length === 0) return
    try {
      const decoded = batch.map((job) => ({ ...job, data: decodeJob(job, options.decode) }))
      // READ COMMITTED: rows of the job table are claimed, and so ours alone; what is written has keys of its own.
      const isolation = 'read committed'
      const committed = await transaction(
        db,
        async (tx) => {
          const tell = await options.handle(tx, decoded)
          await jobs.complete(tx, queue, batch)
          return tell
        },
        { isolation },
      )
      committed()
      done.inc({ queue }, batch.length)
    } catch (error) {
      if (isConnectionLost(error) || error instanceof CommitUnknown) throw error
      if (batch.length === 1) return await settleFailure(options, batch[0] as Job, error)
      const half = batch.length >> 1
      await runAll(batch.slice(0, half))
      await runAll(batch.slice(half))
    }
  }

  return async (_stopping, handledMax) => {
    const claimedAt = performance.now()
    const batch = await jobs.fetch(queue, Math.min(batchMax, handledMax))
    if (batch.length === 0) return 0
    const { expiring, inHand } = hold(options, batch, claimedAt)
    const signal = AbortSignal.any([options.worker.dying, expiring])
    const end = duration.startTimer({ queue })
    try {
      await runAll(batch)
    } catch (error) {
      // Those that are settled stay settled. What cannot be given back is found by `recover`.
      await untilSaid(signal, () => jobs.release(queue, batch)).catch(() => {})
      throw error
    } finally {
      end()
      inHand.clear()
    }
    return batch.length
  }
}

const sayAgainMs = { first: 100, most: 2000 }

/**
 * Says to the database what became of jobs, again and again while it is away: that a job is done must not be forgotten,
 * or it runs once more, nor one that was not begun lose an attempt. Until they are taken from us.
 */
async function untilSaid(signal: AbortSignal, say: () => Promise<void>): Promise<void> {
  for (let waitMs = sayAgainMs.first; ; waitMs = Math.min(2 * waitMs, sayAgainMs.most)) {
    try {
      return await say()
    } catch (error) {
      const isAway = isConnectionLost(error) || error instanceof CommitUnknown
      if (signal.aborted || !isAway) throw error
      await sleep(waitMs, undefined, { signal }).catch(() => {})
    }
  }
}

/** How often each worker looks for jobs of dead ones. With the heartbeat: they run again within 15 s. */
const recoverEveryMs = 5000

/**
 * The upkeep of a queue, for the list of loops beside its pass. While the database was away nobody could show a sign of
 * life: when it is back they get the time for one before the lack of it counts.
 */
export function recoverLoop({
  jobs,
  queue,
  worker,
}: Pick<Runtime, 'jobs' | 'queue'> & {
  worker: Runtime['worker'] & Pick<Worker, 'database'>
}): Loop {
  let wasAway = false
  let patientUntil = 0
  const pass: Pass = async () => {
    if (wasAway) {
      await pingDatabase(worker.database)
      wasAway = false
      patientUntil = performance.now() + heartbeatSeconds * 1000
    }
    if (performance.now() < patientUntil) return 0
    const recovered = await jobs.recover(queue).catch((error) => {
      wasAway = isConnectionLost(error)
      throw error
    })
    for (const { job, became, why } of recovered) tellFailure(worker, job, became, why)
    return recovered.length
  }
  return { name: `${queue} recovery`, pass, idleMs: recoverEveryMs, upkeep: true }
}

function decodeJob<T>(job: Job, decode: (data: unknown) => T): T {
  try {
    return decode(job.data)
  } catch (cause) {
    const { message } = cause as Error
    throw new Unrecoverable(`the payload cannot be read: ${message}`, { cause })
  }
}

const marginMs = 1000

/** Shows that we are at work on the jobs, until the set is empty; `expiring` aborts just before they are taken away. */
function hold({ jobs, queue, worker }: Runtime, batch: Job[], claimedAt: number) {
  const inHand = new Set(batch)
  const seconds = queues.find(({ name }) => name === queue)?.expireInSeconds ?? 60
  const leftMs = seconds * 1000 - (performance.now() - claimedAt) - marginMs
  const beat = setInterval(
    () => {
      if (inHand.size === 0) return clearInterval(beat)
      jobs.touch(queue, [...inHand]).catch((error) => {
        worker.log.warn({ err: error, queue }, 'could not show a sign of life')
      })
    },
    (heartbeatSeconds * 1000) / 3,
  )
  return {
    inHand: {
      delete: (job: Job) => inHand.delete(job),
      clear() {
        inHand.clear()
        clearInterval(beat)
      },
    },
    expiring: AbortSignal.timeout(Math.max(0, Math.round(leftMs))),
  }
}

async function settleFailure(runtime: Runtime, job: Job, error: unknown): Promise<void> {
  const { jobs, queue, worker } = runtime
  if (error instanceof Postpone) return await jobs.release(queue, [job], error.delayMs)
  // It was dropped by us, and did not fail.
  if (worker.dying.aborted) return await jobs.release(queue, [job])
  const next = error instanceof Unrecoverable ? null : delayAfter(job, error)
  const became = await jobs.fail(job, error, next === null ? 'dead' : { delayMs: next })
  worker.failed(1)
  tellFailure(worker, job, became, error)
}

function delayAfter(job: Job, error: unknown): number | null {
  const queue = queues.find(({ name }) => name === job.queue)
  const schedule = jobSchedules[queue?.retry ?? 'background']
  const asked = error as { retryAfterMs?: unknown; extra?: { retryAfterMs?: unknown } } | null
  const retryAfterMs = Number(asked?.retryAfterMs ?? asked?.extra?.retryAfterMs ?? 0)
  return jobRetryDelayMs(schedule, job.attempt, retryAfterMs)
}

/** One line a failure; a job that is given up has the code that alerts are made of. */
function tellFailure({ log }: Runtime['worker'], job: Job, became: Failed, error: unknown): void {
  const { id, queue, attempt, attemptsMax } = job
  const data = (job.data ?? {}) as { type?: unknown; requestid?: unknown; request_id?: unknown }
  const told = {
    job_id: id,
    queue,
    type: data.type,
    attempt,
    attempts_max: attemptsMax,
    request_id: data.requestid ?? data.request_id,
    error: describeError(error),
  }
  if (became === 'dead') {
    dead.inc({ queue })
    log.error({ code: 'SASO-INFRA-9100', ...told }, 'a job is in the dead letter queue')
  } else if (became === 'retry') {
    retried.inc({ queue })
    log.warn(told, 'a job failed and will run again')
  } else log.warn(told, 'a job failed that another worker has taken over')
}
