// transaction(): the one way to write. SERIALIZABLE with an 8 s lock_timeout, the whole function run again on a lock
// timeout, a deadlock or a serialization failure, and on nothing else. The function must therefore have no effect
// outside the database.

import { setTimeout as sleep } from 'node:timers/promises'
import { AbortedTransactionError, type IsolationLevel, sql } from 'kysely'
import { AppError } from '../domain/errors.ts'
import { retriedSqlStates, transactionAttemptsMax, transactionDelayMs } from '../domain/retries.ts'
import type { Db, Tx } from './schema.ts'

export const lockTimeout = '8s'
/** A stalled transaction would hold the outbox's horizon back for everyone. */
const idleTimeout = '60s'

export type TransactionOptions = {
  maxAttempts?: number
  isolation?: IsolationLevel
  /** For tests: the wait between attempts, and the dice. */
  wait?: (ms: number) => Promise<unknown>
  random?: () => number
}

/**
 * The connection broke while COMMIT was under way: the transaction may or may not have taken place. Whoever has an
 * idempotency record reads it to know.
 */
export class CommitUnknown extends Error {
  constructor(cause: unknown) {
    super('the connection was lost during COMMIT: the outcome is unknown', { cause })
    this.name = 'CommitUnknown'
  }
}

export function sqlState(error: unknown): string | undefined {
  const code = (error as { code?: unknown } | null)?.code
  return typeof code === 'string' && /^[0-9A-Z]{5}$/.test(code) ? code : undefined
}

const networkFaults = new Set(['ECONNREFUSED', 'ECONNRESET', 'EPIPE', 'ETIMEDOUT', 'ENOTFOUND'])

/** The server is a standby by now, or set to read only as one that runs out of disk may be. */
export const readOnlyState = '25006'

/**
 * Whether an error says that Postgres could not be reached, hung up, or cannot work now for want of disk, memory or
 * connections (classes 08, 53, 57P, 58) or as it takes no writes, rather than what it thought of a statement. The same
 * may go well later.
 */
export function isConnectionLost(error: unknown): boolean {
  // First: EPIPE has the form of an SQLSTATE.
  if (networkFaults.has(String((error as { code?: unknown } | null)?.code))) return true
  const state = sqlState(error)
  if (state !== undefined) return state === readOnlyState || /^(08|53|57P|58)/.test(state)
  return (
    error instanceof Error &&
    /Connection terminated|connection error|trying to connect|not queryable/i.test(error.message)
  )
}

const conflicts = new Map([...retriedSqlStates].map((state) => [state, 0]))

/** How often transactions of this process met a conflict since its start, by SQLSTATE. */
export const conflictsSoFar = (): ReadonlyMap<string, number> => conflicts

const afterwards = new WeakMap<Tx, (() => void)[]>()

const pools = new WeakMap<Tx, Db>()

/** What a transaction was begun on; undefined when it is not one of transaction(). */
export const poolOf = (tx: Tx): Db | undefined => pools.get(tx)

/** Calls `fn` when the transaction is committed, and never when it is not. It must not throw. */
export function afterCommit(tx: Tx, fn: () => void): void {
  afterwards.set(tx, [...(afterwards.get(tx) ?? []), fn])
}

/**
 * Runs `fn` in a transaction and gives what it gives.
 * @throws AppError LOCK_TIMEOUT when the last attempt met a conflict too
 * @throws CommitUnknown when the answer to COMMIT was lost
 */
export async function transaction<T>(
  db: Db,
  fn: (tx: Tx) => Promise<T>,
  options: TransactionOptions = {},
): Promise<T> {
  const { maxAttempts = transactionAttemptsMax, wait = sleep, random = Math.random } = options
  for (let attempt = 1; ; attempt++) {
    try {
      return await attemptOnce(db, fn, options.isolation ?? 'serializable')
    } catch (error) {
      const state = sqlState(error) ?? ''
      if (!retriedSqlStates.has(state)) throw error
      conflicts.set(state, (conflicts.get(state) ?? 0) + 1)
      if (attempt >= maxAttempts) {
        throw new AppError(
          'LOCK_TIMEOUT',
          `gave up after ${attempt} attempts: the rows are contended`,
          { retryAfterMs: 1000 },
          { cause: error },
        )
      }
      await wait(transactionDelayMs(attempt, random()))
    }
  }
}

async function attemptOnce<T>(db: Db, fn: (tx: Tx) => Promise<T>, isolation: IsolationLevel) {
  const tx = await db.startTransaction().setIsolationLevel(isolation).execute()
  pools.set(tx, db)
  let result: T
  try {
    // One round trip. Without sequential scans, as under SERIALIZABLE one conflicts with every writer of its table.
    await sql`set local lock_timeout = ${sql.lit(lockTimeout)}; set local enable_seqscan = off;
      set local idle_in_transaction_session_timeout = ${sql.lit(idleTimeout)}`.execute(tx)
    result = await fn(tx)
  } catch (error) {
    await tx
      .rollback()
      .execute()
      .catch(() => {})
    throw error
  }
  try {
    await tx.commit().execute()
    for (const tell of afterwards.get(tx) ?? []) tell()
    return result
  } catch (error) {
    // Kysely keeps the connection of a COMMIT that failed: only a rollback gives it back to the pool.
    await tx
      .rollback()
      .execute()
      .catch(() => {})
    // An answer with an SQLSTATE outside class 08 and 57 is Postgres's word that nothing was committed.
    const state = sqlState(error)
    if (error instanceof AbortedTransactionError) throw error
    if (state !== undefined && !/^(08|57)/.test(state)) throw error
    throw new CommitUnknown(error)
  }
}

/**
 * Keeps the planner on an index, in its order, until the transaction ends. A table that grew by a sale has the statistics
 * of an empty one: then it sorts the whole backlog for each batch (measured with 20,000 events waiting: 124 ms a batch, by
 * the key 1 ms). Without compilation too: what a plan is charged for a method it may not use and uses all the same is taken
 * for work worth compiling (measured: 300 to 400 ms to read some 50 rows).
 */
export async function readByKey(tx: Tx): Promise<void> {
  const methods = ['seqscan', 'bitmapscan', 'sort', 'hashjoin', 'mergejoin']
  const settings = ['jit', ...methods.map((method) => `enable_${method}`)]
  await sql`select set_config(name, 'off', true) from unnest(${settings}::text[]) as name`.execute(
    tx,
  )
}
