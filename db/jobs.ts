// The job table as workers use it: sent and completed inside the transaction of whoever asks, claimed in batches, failed
// with a record. What stands in db/jobTable.ts, claims.ts, failures.ts and wake.ts is put together here.

import type pg from 'pg'
import type { PgBoss } from 'pg-boss'
import type { QueueName } from '../domain/queues.ts'
import {
  claimJobs,
  claimSuspect,
  completeJobs,
  hasSuspects,
  type Job,
  type Lost,
  releaseJobs,
  touchJobs,
} from './claims.ts'
import { type Failed, type Failure, failJob, type Recovered, recoverJobs } from './failures.ts'
import { createBoss } from './jobTable.ts'
import { tidyJobs } from './jobUpkeep.ts'
import type { Db, Tx } from './schema.ts'
import { type NewJob, sendJobs } from './sends.ts'
import { afterCommit, transaction } from './transaction.ts'
import { createWaker } from './wake.ts'

export type { Job, Lost } from './claims.ts'
export type { Failed, Failure, Recovered } from './failures.ts'
export type { NewJob } from './sends.ts'

export type Jobs = {
  /**
   * In the order given. Inside a transaction they come to be with its commit. Workers that wait are woken then, when it
   * is one of transaction().
   */
  send(on: Db | Tx, queue: QueueName, jobs: readonly NewJob[]): Promise<void>
  /** Claims up to `batchMax` jobs that are due, the oldest, in their order. They stay ours while `touch` says so. */
  fetch(queue: QueueName, batchMax: number): Promise<Job[]>
  /** Whether there are jobs that must run alone. */
  suspects(queue: QueueName): Promise<boolean>
  /** One of them. The caller has nothing else in hand, and begins nothing else until it is settled. */
  fetchSuspect(queue: QueueName): Promise<Job | undefined>
  /** @returns how many were still ours */
  complete(on: Db | Tx, queue: QueueName, jobs: readonly Job[]): Promise<number>
  /** Keeps the error, and runs the job again after `delayMs` or moves it to the dead letter queue. */
  fail(job: Job, error: unknown, next: Failure['next'], kind?: Failure['kind']): Promise<Failed>
  /** Gives jobs back without spending an attempt, due after `delayMs`. */
  release(queue: QueueName, jobs: readonly Job[], delayMs?: number): Promise<void>
  /** Tells that we are still at work. @returns those that are ours no more */
  touch(queue: QueueName, jobs: readonly Job[]): Promise<Lost[]>
  /** Fails, at most 100 at once, the jobs of workers that died and those that took too long. */
  recover(queue: QueueName): Promise<Recovered[]>
  /** Deletes what is old and keeps the statistics fresh, a bounded piece. @returns how many rows went */
  tidy(): Promise<number>
  close(): Promise<void>
}

export type JobsOptions = { db: Db; pool: pg.Pool }

/** Opens nothing yet: the first call connects, and each call tries again after a failure. */
export function openJobs({ db, pool }: JobsOptions): Jobs {
  const waker = createWaker(db)
  let boss: PgBoss | undefined
  let starting: Promise<PgBoss> | undefined

  async function start(): Promise<PgBoss> {
    if (boss === undefined) {
      boss = await createBoss(pool, { migrate: false })
      // Supervision is off: what it says here it throws as well.
      boss.on('error', () => {})
    }
    return await boss.start()
  }

  /** One start for all who wait for it; the next call tries again when it failed. */
  function ready(): Promise<PgBoss> {
    starting ??= start().catch((error) => {
      starting = undefined
      throw error
    })
    return starting
  }

  return {
    async send(on, queue, jobs) {
      if (jobs.length === 0) return
      await sendJobs(on, queue, jobs)
      if (jobs.every(({ delayMs = 0 }) => delayMs > 0)) return
      if (on.isTransaction) afterCommit(on as Tx, () => waker.wake(queue))
      else waker.wake(queue)
    },

    fetch: (queue, batchMax) => claimJobs(db, queue, batchMax),
    suspects: (queue) => hasSuspects(db, queue),
    fetchSuspect: (queue) => claimSuspect(db, queue),

    async complete(on, queue, jobs) {
      return jobs.length === 0 ? 0 : await completeJobs(on, queue, jobs)
    },

    async fail(job, error, next, kind = next === 'dead' ? 'hopeless' : 'failed') {
      const boss = await ready()
      const failure = { error, kind, next }
      return await transaction(db, (tx) => failJob(boss, tx, job, failure), readCommitted)
    },

    async release(queue, jobs, delayMs = 0) {
      if (jobs.length === 0) return
      await releaseJobs(db, queue, jobs, delayMs)
      if (delayMs === 0) waker.wake(queue)
    },

    async touch(queue, jobs) {
      return jobs.length === 0 ? [] : await touchJobs(db, queue, jobs)
    },

    async recover(queue) {
      const boss = await ready()
      return await transaction(db, (tx) => recoverJobs(boss, tx, queue), readCommitted)
    },

    tidy: () => tidyJobs(db),

    async close() {
      await waker.close()
      const started = await starting?.catch(() => undefined)
      await started?.stop({ graceful: false, close: false })
    },
  }
}

const readCommitted = { isolation: 'read committed' } as const
