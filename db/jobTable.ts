// The making of the job table: pg-boss's schema `pgboss` and a queue for each of the catalogue. Nobody but this file
// and db/jobs.ts knows pg-boss. Its own pace (`work()`), cron, supervision and migrations stay off in workers: what it
// would fail by itself would have no record.

import type { Kysely } from 'kysely'
import type pg from 'pg'
import type { PgBoss } from 'pg-boss'
import { attemptsMax, deadLetterOf, heartbeatSeconds, queues } from '../domain/queues.ts'
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
      await putQueue(boss, dead, { retryLimit: 0 })
      await putQueue(boss, queue.name, {
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

/** A failed job waits as long as we say (db/failures.ts). */
async function putQueue(boss: PgBoss, name: string, settings: QueueSettings): Promise<void> {
  const { partition, ...rest } = settings
  const all = {
    ...rest,
    retryDelay: 0,
    retryBackoff: false,
    retentionSeconds: waitingSeconds,
    deleteAfterSeconds: finishedSeconds,
  }
  await boss.createQueue(name, { ...all, ...(partition && { partition }) })
  await boss.updateQueue(name, all)
}

type Executor = {
  executeSql(text: string, values?: unknown[]): Promise<{ rows: Record<string, unknown>[] }>
}

/** Statements without values go out as they are: pg-boss sends several in one. */
const overPool = (pool: pg.Pool): Executor => ({
  executeSql: (text, values) => pool.query(text, values),
})

/** What makes pg-boss work inside the caller's transaction. */
export const over = (on: Kysely<Schema>): Executor => ({
  async executeSql(text, values = []) {
    const query = { sql: text, parameters: values, query: { kind: 'RawNode' } } as const
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
