// Waking workers that wait for jobs: NOTIFY from whoever made some, LISTEN in the worker. Only ever a hint that shortens
// the wait, which polling ends anyhow. It is sent after the commit and by itself, never inside a transaction that writes,
// and what comes within a few ms goes together: NOTIFY makes commits wait for each other (measured: 8.5k → 3.6k/s).

import { setTimeout as sleep } from 'node:timers/promises'
import { sql } from 'kysely'
import pg from 'pg'
import type { Db, Tx } from './schema.ts'
import { afterCommit, poolOf } from './transaction.ts'

const channel = 'flotilla_jobs'
/** The word that tells every worker to look for a request to stop. No queue is called so. */
export const stopWord = '!stop'

/** Heard by whoever sent it, it proves that notifications come through. */
const trialWord = '?'
/** The word for the workers of a queue: something they may have in hand was taken back. */
export const heldWord = (queue: string): string => `!held ${queue}`

/** For what an operator does. Others: createWaker. */
export async function notifyQueues(on: Db | Tx, queues: readonly string[]): Promise<void> {
  await sql`
    select pg_notify(${channel}, queue) from unnest(${[...queues]}::text[]) as queue`.execute(on)
}

const againMs = 500
const triesMax = 20

export type Waker = { wake(queue: string): void; close(): Promise<void> }

/** The first wake-up goes out at once, those of the next `togetherMs` together. */
export function createWaker(db: Db, togetherMs = 4): Waker {
  const waiting = new Set<string>()
  let flushing: Promise<void> | undefined
  let closing = false

  async function flush(): Promise<void> {
    let failures = 0
    while (waiting.size > 0) {
      const queues = [...waiting]
      waiting.clear()
      const isSaid = await notifyQueues(db, queues).then(
        () => true,
        () => false,
      )
      failures = isSaid ? 0 : failures + 1
      // A pool that is short of connections has one later. Lost, it costs the wait of one poll.
      const again = !isSaid && failures < triesMax && !closing
      if (again) for (const queue of queues) waiting.add(queue)
      await sleep(isSaid ? togetherMs : againMs, undefined, { ref: false })
    }
    flushing = undefined
  }

  return {
    wake(queue) {
      waiting.add(queue)
      flushing ??= flush()
    },
    async close() {
      closing = true
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
  /** A queue's name, `stopWord` or a `heldWord`; undefined: some may have been missed. */
  onWord(word: string | undefined): void
  /** Told once a change: why nobody is woken. */
  onSilent(why: unknown): void
  /** For tests: how long a trial takes at first. */
  trialMs?: number
}

export type Listener = { close(): Promise<void> }

const retryMs = { first: 500, most: 30_000 }
/** One that is not heard so long proves nothing yet: a machine may be slow. It is repeated on the same connection. */
const trialMs = { first: 5000, most: 30_000 }
/** A connection that died without a word is found by this. */
const aliveMs = { every: 30_000, within: 10_000 }

/** Listens on a connection of its own, and opens another when it breaks. Never throws. */
export function openListener(options: ListenerOptions): Listener {
  const closing = new AbortController()
  const { signal } = closing
  let silent = false

  const onUnheard = (why: unknown) => {
    if (!silent && !signal.aborted) options.onSilent(why)
    silent = true
  }

  async function keepListening(): Promise<void> {
    for (let waitMs = retryMs.first; !signal.aborted; waitMs = Math.min(2 * waitMs, retryMs.most)) {
      const onHeard = () => {
        waitMs = retryMs.first
        silent = false
      }
      await listen(options, signal, onHeard, onUnheard).catch(onUnheard)
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
  options: ListenerOptions,
  signal: AbortSignal,
  onHeard: () => void,
  onUnheard: (why: unknown) => void,
): Promise<void> {
  const { url, name, onWord } = options
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
  const heard = Promise.withResolvers<true>()
  client.on('notification', ({ payload = '' }) => {
    heard.resolve(true)
    if (!payload.startsWith(trialWord)) onWord(payload)
  })
  const within = (ms: number) => sleep(ms, false as const, { signal, ref: false })
  try {
    await Promise.race([client.connect(), broken.promise])
    await Promise.race([client.query(`listen ${channel}`), broken.promise])
    for (let ms = options.trialMs ?? trialMs.first; ; ms = Math.min(2 * ms, trialMs.most)) {
      notifyQueues(options.db, [trialWord]).catch(broken.reject)
      if (await Promise.race([heard.promise, broken.promise, within(ms)])) break
      onUnheard(unheard())
    }
    onHeard()
    onWord(undefined)
    for (;;) {
      await Promise.race([within(aliveMs.every), broken.promise])
      const alive = client.query('select').then(() => true)
      if (!(await Promise.race([alive, broken.promise, within(aliveMs.within)]))) {
        throw new Error('the connection that listens does not answer any more')
      }
    }
  } finally {
    await Promise.race([client.end(), sleep(1000, undefined, { ref: false })]).catch(() => {})
  }
}

const unheard = () =>
  new Error(
    'no notification came through: is this a pooler? DATABASE_DIRECT_URL must lead to Postgres itself',
  )
