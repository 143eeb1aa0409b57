// The job table: pg-boss in the schema `pgboss` of our own database, over our own pool, so that a job is sent and
// completed inside the transaction of whoever asks. Nobody else knows pg-boss. A claim is an attempt: whatever settles a
// job names the attempt it was fetched in, and one that lost its claim settles nothing. Its own pace (`work()`), cron and
// migrations stay off; dead workers are found by `recover`.

import { type Kysely, sql } from 'kysely'
import type pg from 'pg'
import type { PgBoss } from 'pg-boss'
import { v7 as uuidv7 } from 'uuid'
import {
  attemptsMax,
  deadLetterOf,
  heartbeatSeconds,
  type QueueName,
  queues,
} from '../domain/queues.ts'
import { redact } from '../domain/redact.ts'
import type { Db, Schema, Tx } from './schema.ts'
import { transaction } from './transaction.ts'

const schema = 'pgboss'
/** Finished jobs can be looked at for a day. */
const finishedSeconds = 86_400
/** pg-boss deletes jobs that waited this long. Ours are worth more than the disk: ten years. */
const waitingSeconds = 10 * 365 * 86_400
const stackMax = 4096

export type NewJob = {
  /** A second job with the same id in its queue is not made: what is sent again under one id is sent once. */
  id?: string
  data: object
  /** Not before so many ms from now. */
  delayMs?: number
  /** Higher first. */
  priority?: number
}

export type Job<T = unknown> = {
  id: string
  queue: QueueName
  data: T
  /** From 1. */
  attempt: number
  attemptsMax: number
  createdAt: Date
}

/** What became of a job that failed. `lost`: another worker has it by now, and nothing was changed. */
export type Failed = 'retry' | 'dead' | 'lost'

/** A job whose worker showed no sign of life or took too long. */
export type Recovered = { job: Job; became: Failed; why: string }

export type Jobs = {
  /** In the order given. Inside a transaction they come to be with its commit. */
  send(on: Db | Tx, queue: QueueName, jobs: readonly NewJob[]): Promise<void>
  /** Claims up to `batchMax` jobs that are due, the oldest, in their order. They stay ours while `touch` says so. */
  fetch(queue: QueueName, batchMax: number): Promise<Job[]>
  /** @returns how many were still ours */
  complete(on: Db | Tx, queue: QueueName, jobs: readonly Job[]): Promise<number>
  /** Keeps the error with the job, and runs it again after `delayMs` or moves it to the dead letter queue. */
  fail(job: Job, error: unknown, next: { delayMs: number } | 'dead'): Promise<Failed>
  /** Gives jobs back without spending an attempt, due after `delayMs`. */
  release(queue: QueueName, jobs: readonly Job[], delayMs?: number): Promise<void>
  /** Tells that we are still at work. @returns how many are still ours */
  touch(queue: QueueName, jobs: readonly Job[]): Promise<number>
  /** Fails, at most 100 at once, the jobs of workers that died: each spent an attempt and runs again now, or is dead. */
  recover(queue: QueueName): Promise<Recovered[]>
  close(): Promise<void>
}

export type JobsOptions = {
  db: Db
  pool: pg.Pool
  /** Whether this process takes part in the upkeep of the job table: statistics, deletion of old jobs. */
  upkeep?: boolean
  /** Faults of the upkeep. */
  onError?: (error: Error) => void
}

/** Creates or updates the job table and every queue. For `migrate`, which runs it once at a time. */
export async function installJobs(pool: pg.Pool): Promise<void> {
  const boss = await createBoss(pool, { migrate: true, supervise: false })
  let fault: Error | undefined
  boss.on('error', (error) => {
    fault ??= error
  })
  await boss.start()
  try {
    for (const queue of queues) {
      const dead = deadLetterOf(queue.name)
      await putQueue(boss, dead, { retryLimit: 0 })
      await putQueue(boss, queue.name, {
        retryLimit: attemptsMax(queue) - 1,
        expireInSeconds: queue.expireInSeconds,
        heartbeatSeconds,
        deadLetter: dead,
      })
    }
  } finally {
    await boss.stop({ graceful: true })
  }
  if (fault) throw fault
}

type QueueSettings = {
  retryLimit: number
  expireInSeconds?: number
  heartbeatSeconds?: number
  deadLetter?: string
}

/** A failed job waits as long as we say (`fail`); one whose worker died runs again at once. */
async function putQueue(boss: PgBoss, name: string, settings: QueueSettings): Promise<void> {
  const all = {
    ...settings,
    retryDelay: 0,
    retryBackoff: false,
    retentionSeconds: waitingSeconds,
    deleteAfterSeconds: finishedSeconds,
  }
  await boss.createQueue(name, all)
  await boss.updateQueue(name, all)
}

type Executor = {
  executeSql(text: string, values?: unknown[]): Promise<{ rows: Record<string, unknown>[] }>
}

/** Statements without values go out as they are: pg-boss sends several in one. */
const overPool = (pool: pg.Pool): Executor => ({
  executeSql: (text, values) => pool.query(text, values),
})

const over = (on: Kysely<Schema>): Executor => ({
  async executeSql(text, values = []) {
    const query = { sql: text, parameters: values, query: { kind: 'RawNode' } } as const
    const { rows } = await on.executeQuery({ ...query, queryId: { queryId: 'jobs' } } as never)
    return { rows: [...(rows as Record<string, unknown>[])] }
  },
})

/** Loaded when it is used: whoever only knows our types, such as the wait for a schema, does without its 6 MB. */
async function createBoss(
  pool: pg.Pool,
  options: { migrate: boolean; supervise: boolean },
): Promise<PgBoss> {
  const { PgBoss } = await import('pg-boss')
  const ours = { schema, schedule: false, registerInstance: false }
  return new PgBoss({ db: overPool(pool) as never, ...ours, ...options })
}

/** Opens nothing yet: the first call connects, and each call tries again after a failure. */
export function openJobs({ db, pool, upkeep = false, onError }: JobsOptions): Jobs {
  let boss: PgBoss | undefined
  let starting: Promise<PgBoss> | undefined

  async function start(): Promise<PgBoss> {
    if (boss === undefined) {
      boss = await createBoss(pool, { migrate: false, supervise: upkeep })
      boss.on('error', (error) => onError?.(error))
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
      await (await ready()).insert(queue, jobs.map(toInsert), { db: over(on) as never })
    },

    async fetch(queue, batchMax) {
      const boss = await ready()
      const rows = await boss.fetch(queue, { batchSize: batchMax, includeMetadata: true })
      return rows.sort(byAge).map((row) => ({
        id: row.id,
        queue,
        data: row.data,
        attempt: row.retryCount + 1,
        attemptsMax: row.retryLimit + 1,
        createdAt: row.createdOn,
      }))
    },

    async complete(on, queue, jobs) {
      if (jobs.length === 0) return 0
      const boss = await ready()
      const done = await boss.complete(queue, jobs.map(toClaim), null, { db: over(on) as never })
      return affected(done)
    },

    async fail(job, error, next) {
      const boss = await ready()
      return await transaction(db, (tx) => failOne(boss, tx, job, error, next), readCommitted)
    },

    async release(queue, jobs, delayMs = 0) {
      if (jobs.length === 0) return
      // Without started_on the next claim does not count as a new attempt.
      await sql`
        update pgboss.job set started_on = null, heartbeat_on = null,
          state = (case when retry_count = 0 then 'created' else 'retry' end)::pgboss.job_state,
          start_after = clock_timestamp() + ${delayMs} * interval '1 ms'
        where ${ours(queue, jobs)}`.execute(db)
    },

    async touch(queue, jobs) {
      if (jobs.length === 0) return 0
      return affected(await (await ready()).touch(queue, jobs.map(toClaim)))
    },

    async recover(queue) {
      const boss = await ready()
      return await transaction(db, (tx) => recoverSome(boss, tx, queue), readCommitted)
    },

    async close() {
      const started = await starting?.catch(() => undefined)
      await started?.stop({ graceful: false, close: false })
    },
  }
}

const readCommitted = { isolation: 'read committed' } as const

type Aged = { priority: number; createdOn: Date; id: string }

const byAge = (a: Aged, b: Aged): number =>
  b.priority - a.priority || a.createdOn.getTime() - b.createdOn.getTime() || (a.id < b.id ? -1 : 1)

/** A UUID v7 tells the order of jobs that were sent together, and so have one created_on. */
const toInsert = ({ id = uuidv7(), data, delayMs, priority }: NewJob) => ({
  id,
  data,
  ...(priority === undefined ? {} : { priority }),
  ...(delayMs === undefined ? {} : { startAfter: `${Math.round(delayMs)} milliseconds` }),
})

/** What pg-boss fences a settlement with. */
const toClaim = ({ id, attempt }: Job) => ({ id, retryCount: attempt - 1 }) as never

/** Not in pg-boss's types. */
const affected = (response: object): number => (response as { affected: number }).affected

const ours = (queue: QueueName, jobs: readonly Job[]) => sql<boolean>`
  name = ${queue} and state = 'active' and id = any(${jobs.map((job) => job.id)}::uuid[])
  and (id, retry_count) in (select * from unnest(${jobs.map((job) => job.id)}::uuid[],
    ${jobs.map((job) => job.attempt - 1)}::int[]))`

async function failOne(
  boss: PgBoss,
  tx: Tx,
  job: Job,
  error: unknown,
  next: { delayMs: number } | 'dead',
): Promise<Failed> {
  const { queue, id } = job
  if (next === 'dead') {
    // pg-boss moves a job to its dead letter queue when no retry is left.
    await sql`update pgboss.job set retry_limit = retry_count where ${ours(queue, [job])}`.execute(
      tx,
    )
  }
  const failed = await boss.fail(queue, toClaim(job), describe(error), { db: over(tx) as never })
  if (affected(failed) === 0) return 'lost'
  if (next === 'dead') return 'dead'
  const moved = await sql`
    update pgboss.job set start_after = clock_timestamp() + ${next.delayMs} * interval '1 ms'
    where name = ${queue} and id = ${id} and state = 'retry'`.execute(tx)
  return moved.numAffectedRows === 1n ? 'retry' : 'dead'
}

type Stale = { id: string; data: unknown; retryCount: number; retryLimit: number; createdOn: Date }

/** By the index job_i14 (name, state). Skips what another process is settling or recovering. */
async function recoverSome(boss: PgBoss, tx: Tx, queue: QueueName): Promise<Recovered[]> {
  const { rows } = await sql<Stale & { late: boolean }>`
    select id, data, retry_count as "retryCount", retry_limit as "retryLimit",
      created_on as "createdOn",
      started_on + expire_seconds * interval '1 second' < clock_timestamp() as late
    from pgboss.job
    where name = ${queue} and state = 'active' and (
      heartbeat_on + heartbeat_seconds * interval '1 second' < clock_timestamp()
      or started_on + expire_seconds * interval '1 second' < clock_timestamp())
    limit 100 for update skip locked`.execute(tx)
  const recovered: Recovered[] = []
  for (const row of rows) {
    const { id, data, retryCount, retryLimit, createdOn: createdAt } = row
    const attempt = retryCount + 1
    const job = { id, queue, data, attempt, attemptsMax: retryLimit + 1, createdAt }
    const why = row.late
      ? 'took longer than its queue allows'
      : 'its worker died or lost the database'
    const dead = retryCount >= retryLimit
    const became = await failOne(boss, tx, job, why, dead ? 'dead' : { delayMs: 0 })
    recovered.push({ job, became, why })
  }
  return recovered
}

/** What is kept of an error: no personal data, no secrets, the stack cut. */
function describe(error: unknown): object {
  if (!(error instanceof Error)) return { message: redact(String(error)) }
  const { name, message, stack = '' } = error
  const cause = error.cause instanceof Error ? { cause: redact(error.cause.message) } : {}
  return { name, message: redact(message), ...cause, stack: redact(stack).slice(0, stackMax) }
}
