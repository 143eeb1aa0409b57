// Passes over a queue of the job table. `jobPass` hands jobs one by one to a handler, some at once, and settles each
// when it is done; `batchPass` hands a whole batch to one transaction that completes it too; `recoverLoop` finds the
// jobs of workers that died. A job is run at least once: its handler must bear a second run. Nothing is lost: what a
// stopping worker did not begin goes back without an attempt spent, and so does what it had to drop.

import { Counter, Histogram } from 'prom-client'
import type { Job, Recovered } from '../db/jobs.ts'
import { readClockMs } from '../db/open.ts'
import type { Tx } from '../db/schema.ts'
import { CommitUnknown, isConnectionLost, transaction } from '../db/transaction.ts'
import { heartbeatSeconds } from '../domain/queues.ts'
import { traceparentIn } from '../domain/traces.ts'
import { createAcks, untilSaid } from './acks.ts'
import { countFailuresOf, Postpone, settleFailure, tellFailure, Unrecoverable } from './failures.ts'
import type { Held } from './held.ts'
import type { Loop, Pass } from './loop.ts'
import { createPipeline, type Runtime, type Settle } from './pipeline.ts'
import { beginSpanBy, messaging, type Span } from './trace.ts'
import type { Worker } from './worker.ts'

export { Postpone, RetryAfter, Unrecoverable } from './failures.ts'

const labelNames = ['queue'] as const
const done = new Counter({ name: 'jobs_completed_total', help: 'Jobs completed', labelNames })
const duration = new Histogram({
  name: 'jobs_duration_seconds',
  help: 'How long a handler took',
  labelNames,
  buckets: [0.005, 0.02, 0.1, 0.5, 2, 10, 60],
})

/** A job as a handler gets it, with this run's part of the trace that its payload belongs to. */
export type Traced<T> = Job<T> & { span: Span }

/** A queue in which nothing happened yet shows 0. */
function countJobsOf(queue: string): void {
  done.inc({ queue }, 0)
  duration.zero({ queue })
  countFailuresOf(queue)
}

export type JobPassOptions<T> = Runtime & {
  concurrency: number
  /** @throws when the payload is none of this queue's: such a job goes to the dead letter queue at once */
  decode(data: unknown): T
  /** The signal aborts when the job must be dropped: the grace is over, its time is, or somebody cancelled it. */
  handle(job: Traced<T>, signal: AbortSignal): Promise<void>
}

export function jobPass<T>(options: JobPassOptions<T>): Pass {
  const { jobs, queue, db, batchMax, concurrency, worker } = options
  countJobsOf(queue)
  const took = duration.labels(queue)
  // Spares making one for each job where the handler does not even name it.
  const takesSignal = options.handle.length !== 1
  const acks = createAcks<{ job: Job; settle: Settle }>({
    async say(group) {
      const finished = group.map(({ job }) => job)
      await untilSaid(worker.dying, () => jobs.complete(db, queue, finished))
      done.inc({ queue }, group.length)
    },
    settled(group, fault) {
      group[0]?.settle(
        group.map(({ job }) => job),
        fault,
      )
    },
  })

  async function run([first]: Held[], settle: Settle): Promise<void> {
    const held = first as Held
    const { job } = held
    const begunAt = performance.now()
    const span = beginProcess(job)
    try {
      const signal = takesSignal ? held.signal : worker.dying
      await options.handle({ ...job, data: decodeJob(job, options.decode), span }, signal)
      span.end()
    } catch (error) {
      span.end(error instanceof Postpone ? undefined : { error })
      took.observe((performance.now() - begunAt) / 1000)
      await untilSaid(held.signal, () => settleFailure(options, held, error))
      return settle([job])
    }
    took.observe((performance.now() - begunAt) / 1000)
    // The lane goes on while this is on its way, but not without end.
    acks.add({ job, settle })
    while (acks.waiting > 2 * batchMax) await acks.next()
  }

  return createPipeline({ ...options, lanes: concurrency, takeMax: 1, run })
}

export type BatchPassOptions<T> = Runtime & {
  decode(data: unknown): T
  /**
   * Does what the jobs ask for, all in `tx`, which completes them as well. When it throws, or one of them was cancelled
   * meanwhile, halves are tried, so that one bad job fails alone. What it gives back is called once that is committed.
   */
  handle(tx: Tx, jobs: Traced<T>[]): Promise<() => void>
}

export function batchPass<T>(options: BatchPassOptions<T>): Pass {
  const { jobs, queue, db, batchMax, worker } = options
  countJobsOf(queue)

  async function runAll(batch: Begun[]): Promise<void> {
    if (batch.length === 0) return
    const ours = batch.map(({ held }) => held.job)
    try {
      const decoded = batch.map(({ held: { job }, span }) => ({
        ...job,
        data: decodeJob(job, options.decode),
        span,
      }))
      // READ COMMITTED: rows of the job table are claimed, and so ours alone; what is written has keys of its own.
      const isolation = 'read committed'
      const committed = await transaction(
        db,
        async (tx) => {
          const tell = await options.handle(tx, decoded)
          const completed = await jobs.complete(tx, queue, ours)
          if (completed < ours.length) throw new Error('it was taken from this worker')
          return tell
        },
        { isolation },
      )
      committed()
      done.inc({ queue }, batch.length)
      for (const { span } of batch) span.end()
    } catch (error) {
      if (isConnectionLost(error) || error instanceof CommitUnknown) throw error
      if (batch.length === 1) {
        const [{ held, span }] = batch as [Begun]
        span.end({ error })
        return await settleFailure(options, held, error)
      }
      const half = batch.length >> 1
      await runAll(batch.slice(0, half))
      await runAll(batch.slice(half))
    }
  }

  async function run(all: Held[], settle: Settle): Promise<void> {
    const batch = all.map(({ job }) => job)
    const begun = all.map((held) => ({ held, span: beginProcess(held.job) }))
    const end = duration.startTimer({ queue })
    try {
      await runAll(begun)
      settle(batch)
    } catch (error) {
      for (const { span } of begun) span.end({ error })
      // Those that are settled stay settled. What cannot be given back is found by `recover`.
      await untilSaid(worker.dying, () => jobs.release(queue, batch)).catch(() => {})
      throw error
    } finally {
      end()
    }
  }

  return createPipeline({ ...options, lanes: 1, takeMax: batchMax, run })
}

type Begun = { held: Held; span: Span }

function beginProcess({ id, queue, attempt, data }: Job): Span {
  const parent = traceparentIn(data)
  return beginSpanBy(parent, () => {
    const attributes = { ...messaging('process', queue, id), 'flotilla.job.attempt': attempt }
    return [`process ${queue}`, { kind: 'consumer', parent, attributes }]
  })
}

function decodeJob<T>(job: Job, decode: (data: unknown) => T): T {
  try {
    return decode(job.data)
  } catch (cause) {
    const { message } = cause as Error
    throw new Unrecoverable(`the payload cannot be read: ${message}`, { cause })
  }
}

/** How often each worker looks for jobs of dead ones. With the heartbeat: they run again within 15 s. */
const recoverEveryMs = 5000
/** Between two looks, by Postgres's clock: who looks no sooner was kept from it, and others from their signs of life. */
const standstillMs = recoverEveryMs + 2000
const tidyEveryMs = 60_000

/**
 * The upkeep of a queue, for the list of loops beside its pass. While the database was away or stood still, as with a
 * machine that was paused, nobody could show a sign of life: then all get the time for one before the lack of it counts.
 */
export function recoverLoop({
  jobs,
  queue,
  worker,
}: Pick<Runtime, 'jobs' | 'queue'> & {
  worker: Runtime['worker'] & Pick<Worker, 'database'>
}): Loop {
  let lookedMs = Number.POSITIVE_INFINITY
  let wasAway = false
  let isPatient = false
  let patientUntil = 0
  // Workers that start together do not tidy together.
  let tidyAt = performance.now() + tidyEveryMs * Math.random()

  async function look(): Promise<Recovered[]> {
    const nowMs = await readClockMs(worker.database)
    // Once: a worker that is late for each look recovers all the same.
    const stoodStill = nowMs > lookedMs + standstillMs && !isPatient
    if (wasAway || stoodStill) patientUntil = performance.now() + heartbeatSeconds * 1000
    lookedMs = nowMs
    wasAway = false
    isPatient = performance.now() < patientUntil
    return isPatient ? [] : await jobs.recover(queue)
  }

  const pass: Pass = async () => {
    const recovered = await look().catch((error) => {
      wasAway ||= isConnectionLost(error)
      throw error
    })
    for (const { job, failed, why, kind } of recovered) tellFailure(worker, job, failed, why, kind)
    if (performance.now() > tidyAt) {
      tidyAt = performance.now() + tidyEveryMs
      await jobs.tidy()
    }
    return recovered.length
  }
  return { name: `${queue} recovery`, pass, idleMs: recoverEveryMs, upkeep: true }
}
