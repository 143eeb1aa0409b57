// Waking workers that wait for jobs: NOTIFY from whoever made some, LISTEN in the worker. Only ever a hint that shortens
// the wait, which polling ends anyhow. It is sent after the commit and by itself, never inside a transaction that writes,
// and what comes within a few ms goes together: NOTIFY makes commits wait for each other (measured: 8.5k → 3.6k/s).

import { randomUUID } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import { sql } from 'kysely'
import pg from 'pg'
import type { Db, Tx } from './schema.ts'
import { afterCommit, poolOf } from './transaction.ts'

const channel = 'flotilla_jobs'
/** The word that tells every worker to look for a request to stop. No queue is called so. */
export const stopWord = '!stop'

/** For what an operator does. Others: createWaker. */
export async function notifyQueues(on: Db | Tx, queues: readonly string[]): Promise<void> {
  await sql`
    select pg_notify(${channel}, queue) from unnest(${[...queues]}::text[]) as queue`.execute(on)
}

export type Waker = { wake(queue: string): void; close(): Promise<void> }

/** The first wake-up goes out at once, those of the next `togetherMs` together. */
export function createWaker(db: Db, togetherMs = 4): Waker {
  const waiting = new Set<string>()
  let flushing: Promise<void> | undefined

  async function flush(): Promise<void> {
    while (waiting.size > 0) {
      const queues = [...waiting]
      waiting.clear()
      // Lost, it costs the wait of one poll.
      await notifyQueues(db, queues).catch(() => {})
      await sleep(togetherMs, undefined, { ref: false })
    }
    flushing = undefined
  }

  return {
    wake(queue) {
      waiting.add(queue)
      flushing ??= flush()
    },
    async close() {
      await flushing
    },
  }
}

/** Of a pool, for what is written without a queue of its own at hand. A sale writes in a stream: one word a while is enough. */
const wakers = new WeakMap<Db, Waker>()
const streamMs = 25

/** Wakes those who wait for `queue`, once the transaction is committed. */
export function wakeAfterCommit(tx: Tx, queue: string): void {
  const db = poolOf(tx)
  if (db === undefined) return
  afterCommit(tx, () => {
    const waker = wakers.get(db) ?? createWaker(db, streamMs)
    wakers.set(db, waker)
    waker.wake(queue)
  })
}

export type ListenerOptions = {
  /** Must lead to Postgres itself: a pooler that lends connections by the transaction passes no notifications on. */
  url: string
  name: string
  /** The pool that wake-ups are sent through, for the trial. */
  db: Db
  /** A queue's name or `stopWord`; undefined: some may have been missed. */
  onWord(word: string | undefined): void
  /** Told once a change: why nobody is woken. */
  onSilent(why: unknown): void
}

export type Listener = { close(): Promise<void> }

const retryMs = { first: 500, most: 30_000 }
const trialMs = 3000
/** A connection that died without a word is found by this. */
const aliveEveryMs = 30_000

/** Listens on a connection of its own, and opens another when it breaks. Never throws. */
export function openListener(options: ListenerOptions): Listener {
  const closing = new AbortController()
  const { signal } = closing
  let silent = false

  async function keepListening(): Promise<void> {
    for (let waitMs = retryMs.first; !signal.aborted; waitMs = Math.min(2 * waitMs, retryMs.most)) {
      try {
        await listen(options, signal, () => {
          waitMs = retryMs.first
          silent = false
        })
      } catch (error) {
        if (!silent && !signal.aborted) options.onSilent(error)
        silent = true
      }
      await sleep(waitMs, undefined, { signal, ref: false }).catch(() => {})
    }
  }

  const done = keepListening()
  return {
    async close() {
      closing.abort()
      await done
    },
  }
}

/** Until the connection breaks. @throws why it did */
async function listen(
  { url, name, db, onWord }: ListenerOptions,
  signal: AbortSignal,
  onHeard: () => void,
): Promise<void> {
  const client = new pg.Client({
    connectionString: url,
    application_name: `flotilla:${name}:listen`,
    connectionTimeoutMillis: 10_000,
    keepAlive: true,
  })
  const broken = Promise.withResolvers<never>()
  broken.promise.catch(() => {})
  client.on('error', broken.reject)
  client.on('end', () => broken.reject(new Error('the connection that listens was closed')))
  signal.addEventListener('abort', () => broken.reject(signal.reason), { once: true })
  const trial = `?${randomUUID()}`
  const heard = Promise.withResolvers<void>()
  client.on('notification', ({ payload = '' }) => {
    if (payload === trial) heard.resolve()
    else if (!payload.startsWith('?')) onWord(payload)
  })
  try {
    await Promise.race([client.connect(), broken.promise])
    await client.query(`listen ${channel}`)
    await notifyQueues(db, [trial])
    await Promise.race([heard.promise, broken.promise, unheard(signal)])
    onHeard()
    onWord(undefined)
    for (;;) {
      await Promise.race([sleep(aliveEveryMs, undefined, { signal, ref: false }), broken.promise])
      await Promise.race([client.query('select'), broken.promise, unheard(signal)])
    }
  } finally {
    await Promise.race([client.end(), sleep(1000, undefined, { ref: false })]).catch(() => {})
  }
}

async function unheard(signal: AbortSignal): Promise<never> {
  await sleep(trialMs, undefined, { signal, ref: false })
  throw new Error(
    'no notification came through: is this a pooler? DATABASE_DIRECT_URL must lead to Postgres itself',
  )
}
