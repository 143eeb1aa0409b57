// Opens the pool every other file of this layer is handed. A broken idle connection is dropped and never reaches the
// process as an uncaught error; the next statement opens a new one. A connection that swallows a statement and gives no
// answer, as one through a dead network does, is broken off after a while: nobody waits for it for ever. So is one whose
// server takes no writes any more: the next one may lead to a server that does.

import type { Socket } from 'node:net'
import { Kysely, PostgresDialect } from 'kysely'
import pg from 'pg'
import type { Db, Schema } from './schema.ts'
import { readOnlyState, sqlState } from './transaction.ts'

export type Database = {
  db: Db
  pool: pg.Pool
  close(): Promise<void>
}

export type OpenOptions = {
  url: string
  /** Shown in pg_stat_activity: `flotilla:<worker>`. */
  name: string
  /** Connections at most. */
  poolMax?: number
  /** How long one statement may take before its connection is given up; 0: as long as it likes. */
  statementMaxMs?: number
  /** Told of a connection that broke while idle. */
  onIdleError?: (error: Error) => void
}

/** Longer than a wait for a lock (8 s) and than the largest event takes to make. */
const defaultStatementMaxMs = 30_000

export function openDatabase(options: OpenOptions): Database {
  const { url, name, poolMax = 10, statementMaxMs = defaultStatementMaxMs, onIdleError } = options
  const pool = new pg.Pool({
    Client: watchful(statementMaxMs),
    connectionString: url,
    application_name: `flotilla:${name}`,
    max: poolMax,
    connectionTimeoutMillis: 10_000,
    idleTimeoutMillis: 60_000,
    keepAlive: true,
    keepAliveInitialDelayMillis: 10_000,
    // No setting of the session: a pooler lends another one to each transaction. They are made in transaction().
  })
  pool.on('error', (error) => onIdleError?.(error))
  // A connection that breaks while checked out fails its query and also emits: unheard, that would end the process.
  pool.on('connect', (client) => client.on('error', () => {}))
  const db = new Kysely<Schema>({ dialect: new PostgresDialect({ pool }) })
  return { db, pool, close: () => db.destroy() }
}

type Query = (...given: unknown[]) => unknown

/**
 * A client that breaks its connection when a statement gets no answer, and when the server was made a standby or is set
 * to read only, which a session does not outgrow. pg's own query_timeout gives a connection that waits back to the pool,
 * where the next statement waits behind the lost one.
 */
function watchful(maxMs: number): typeof pg.Client {
  return class extends pg.Client {
    override query = ((...given: unknown[]) => {
      const { stream } = (this as unknown as { connection: { stream: Socket } }).connection
      const giveUp = () => {
        stream.destroy(new Error(`Connection terminated: no answer within ${maxMs} ms`))
      }
      const timer = maxMs > 0 ? setTimeout(giveUp, maxMs) : undefined
      const done = (error?: unknown) => {
        clearTimeout(timer)
        if (sqlState(error) === readOnlyState) this.end().catch(() => {})
      }
      const callback = given.at(-1)
      if (typeof callback === 'function') {
        const answered: Query = (...answer) => {
          done(answer[0])
          return callback(...answer)
        }
        return (super.query as Query)(...given.slice(0, -1), answered)
      }
      const answer = (super.query as Query)(...given)
      if (answer instanceof Promise) answer.then(() => done(), done)
      else clearTimeout(timer)
      return answer
    }) as typeof pg.Client.prototype.query
  }
}

/** @throws what keeps Postgres from answering */
export async function pingDatabase({ pool }: Database): Promise<void> {
  await pool.query('select')
}

/** Postgres's time, ms since 1970. */
export async function readClockMs({ pool }: Database): Promise<number> {
  const { rows } = await pool.query<{ ms: number }>(
    `select 1000 * date_part('epoch', clock_timestamp()) as ms`,
  )
  return rows[0]?.ms ?? 0
}
