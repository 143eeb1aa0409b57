// Opens the pool every other file of this layer is handed. A broken idle connection is dropped and never reaches the
// process as an uncaught error; the next statement opens a new one.

import { Kysely, PostgresDialect } from 'kysely'
import pg from 'pg'
import type { Db, Schema } from './schema.ts'

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
  /** Told of a connection that broke while idle. */
  onIdleError?: (error: Error) => void
}

export function openDatabase({ url, name, poolMax = 10, onIdleError }: OpenOptions): Database {
  const pool = new pg.Pool({
    connectionString: url,
    application_name: `flotilla:${name}`,
    max: poolMax,
    connectionTimeoutMillis: 10_000,
    idleTimeoutMillis: 60_000,
    keepAlive: true,
    // A stalled transaction would hold the outbox's horizon back for everyone.
    idle_in_transaction_session_timeout: 60_000,
  })
  pool.on('error', (error) => onIdleError?.(error))
  // A connection that breaks while checked out fails its query and also emits: unheard, that would end the process.
  pool.on('connect', (client) => client.on('error', () => {}))
  const db = new Kysely<Schema>({ dialect: new PostgresDialect({ pool }) })
  return { db, pool, close: () => db.destroy() }
}

/** @throws what keeps Postgres from answering */
export async function pingDatabase({ pool }: Database): Promise<void> {
  await pool.query('select')
}
