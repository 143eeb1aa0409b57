// The making of the job table: pg-boss's schema `pgboss` and a queue for each of the catalogue. Nobody but this file
// and db/jobs.ts knows pg-boss. Its own pace (`work()`), cron, supervision and migrations stay off in workers: what it
// would fail by itself would have no record.

import type { Kysely } from 'kysely'
import type pg from 'pg'
import type { PgBoss } from 'pg-boss'
import {
  allQueueNames,
  attemptsMax,
  deadLetterOf,
  heartbeatSeconds,
  queues,
} from '../domain/queues.ts'
import type { Schema } from './schema.ts'

const schema = 'pgboss'
/** The version of pg-boss's tables that claim_jobs and its sisters (0003_jobs.sql) were written for. */
export const pgbossSchemaVersion = 46
/** Finished jobs can be looked at for a day. */
export const finishedSeconds = 86_400
/** pg-boss deletes jobs that waited this long. Ours are worth more than the disk: ten years. */
const waitingSeconds = 10 * 365 * 86_400

/** Creates or updates the job table and every queue. For `migrate`, which runs it once at a time. */
export async function installJobs(pool: pg.Pool): Promise<void> {
  const boss = await createBoss(pool, { migrate: true })
  let fault: Error | undefined
  boss.on('error', (error) => {
    fault ??= error
  })
  await boss.start()
  try {
    await checkVersion(pool)
    for (const queue of queues) {
      const dead = deadLetterOf(queue.name)
      await putQueue(pool, dead, { retryLimit: 0 })
      await putQueue(pool, queue.name, {
        retryLimit: attemptsMax(queue) - 1,
        expireInSeconds: queue.expireInSeconds,
        heartbeatSeconds,
        deadLetter: dead,
        ...(queue.partition ? { partition: true } : {}),
      })
    }
    await dropKeys(pool)
  } finally {
    await boss.stop({ graceful: true })
  }
  if (fault) throw fault
}

/**
 * The keys that lead from a job to its queue: checked for each job at its commit, they are half the work of sending one
 * (measured: 24 → 13 µs), and send_jobs asks for the queue anyhow.
 */
async function dropKeys(pool: pg.Pool): Promise<void> {
  const { rows } = await pool.query<{ statement: string }>(`
    select format('alter table %s drop constraint %I', conrelid::regclass, conname) as statement
    from pg_constraint where contype = 'f' and conname in ('q_fkey', 'dlq_fkey')
      and connamespace = '${schema}'::regnamespace and conparentid = 0`)
  for (const { statement } of rows) await pool.query(statement)
}

async function checkVersion(pool: pg.Pool): Promise<void> {
  const { rows } = await pool.query<{ version: number }>('select version from pgboss.version')
  const found = rows[0]?.version
  if (found === pgbossSchemaVersion) return
  throw new Error(
    `pg-boss made its schema ${found}, the claims were written for ${pgbossSchemaVersion}: ` +
      'compare claim_jobs and its sisters (db/migrations) with its plans.js, then change the number',
  )
}

type QueueSettings = {
  retryLimit: number
  expireInSeconds?: number
  heartbeatSeconds?: number
  deadLetter?: string
  partition?: boolean
}

/**
 * A failed job waits as long as we say (db/failures.ts). By pg-boss's own function in the database: its JavaScript takes
 * no name with a colon.
 */
async function putQueue(pool: pg.Pool, name: string, settings: QueueSettings): Promise<void> {
  const all = {
    ...settings,
    policy: 'standard',
    retryDelay: 0,
    retryBackoff: false,
    retentionSeconds: waitingSeconds,
    deleteAfterSeconds: finishedSeconds,
  }
  await pool.query(`select ${schema}.create_queue($1, $2::jsonb)`, [name, JSON.stringify(all)])
  const { retryLimit, expireInSeconds = null, heartbeatSeconds: beat = null } = settings
  await pool.query(
    `update ${schema}.queue set retry_limit = $2, expire_seconds = coalesce($3, expire_seconds),
      heartbeat_seconds = coalesce($4, heartbeat_seconds), dead_letter = coalesce($5, dead_letter),
      retry_delay = 0, retry_backoff = false, retention_seconds = $6, deletion_seconds = $7,
      updated_on = clock_timestamp()
    where name = $1`,
    [
      name,
      retryLimit,
      expireInSeconds,
      beat,
      settings.deadLetter ?? null,
      waitingSeconds,
      finishedSeconds,
    ],
  )
}

/** What pg-boss's JavaScript calls a queue: its names have no colons. In the database it is called by its own name. */
export const nameForBoss = (queue: string): string => queue.replaceAll(':', '/')

const ownNames = new Map(
  allQueueNames.filter((name) => name.includes(':')).map((name) => [nameForBoss(name), name]),
)

/** Of the values of a statement of pg-boss's. */
function inOwnNames(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(inOwnNames)
  return typeof value === 'string' ? (ownNames.get(value) ?? value) : value
}

type Executor = {
  executeSql(text: string, values?: unknown[]): Promise<{ rows: Record<string, unknown>[] }>
}

/** Statements without values go out as they are: pg-boss sends several in one. */
const overPool = (pool: pg.Pool): Executor => ({
  executeSql: (text, values) => pool.query(text, values?.map(inOwnNames)),
})

/** What makes pg-boss work inside the caller's transaction. */
export const over = (on: Kysely<Schema>): Executor => ({
  async executeSql(text, values = []) {
    const parameters = values.map(inOwnNames)
    const query = { sql: text, parameters, query: { kind: 'RawNode' } } as const
    const { rows } = await on.executeQuery({ ...query, queryId: { queryId: 'jobs' } } as never)
    return { rows: [...(rows as Record<string, unknown>[])] }
  },
})

/** Loaded when it is used: whoever only claims and completes does without its 6 MB. */
export async function createBoss(pool: pg.Pool, options: { migrate: boolean }): Promise<PgBoss> {
  const { PgBoss } = await import('pg-boss')
  const ours = { schema, schedule: false, supervise: false, registerInstance: false }
  return new PgBoss({ db: overPool(pool) as never, ...ours, ...options })
}
