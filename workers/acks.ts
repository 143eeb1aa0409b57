// Tells the database what is done, in groups: what is finished while one group is under way goes with the next. That a
// job is done must not be forgotten, or it runs once more: while the database is away it is told again and again.

import { setTimeout as sleep } from 'node:timers/promises'
import { CommitUnknown, isConnectionLost } from '../db/transaction.ts'

const sayAgainMs = { first: 100, most: 2000 }

/** Says it until it is heard, or until the signal aborts: then the jobs are taken from us. */
export async function untilSaid<T>(signal: AbortSignal, say: () => Promise<T>): Promise<T> {
  for (let waitMs = sayAgainMs.first; ; waitMs = Math.min(2 * waitMs, sayAgainMs.most)) {
    try {
      return await say()
    } catch (error) {
      const isAway = isConnectionLost(error) || error instanceof CommitUnknown
      if (signal.aborted || !isAway) throw error
      await sleep(waitMs, undefined, { signal }).catch(() => {})
    }
  }
}

const groupMax = 1000
/** While Postgres commits one group the next is on its way. */
const groupsAtOnce = 2
/** A group is a commit, which costs as much as some fifty jobs in it: a small one waits for more, but not for long. */
const small = { size: 250, waitMs: 4 }

export type Acks<T> = {
  add(one: T): void
  /** Not told yet. */
  readonly waiting: number
  /** Resolves when `waiting` has fallen. */
  next(): Promise<void>
}

export type AckOptions<T> = {
  say(group: T[]): Promise<void>
  /** Called once a group is said, or cannot be. */
  settled(group: T[], fault?: { error: unknown }): void
}

export function createAcks<T>({ say, settled }: AckOptions<T>): Acks<T> {
  let line: T[] = []
  let saying = 0
  let waiting = 0
  let timer: NodeJS.Timeout | undefined
  let fallen = Promise.withResolvers<void>()

  function begin(): void {
    clearTimeout(timer)
    timer = undefined
    if (line.length > 0 && saying < groupsAtOnce) void run()
  }

  async function run(): Promise<void> {
    saying++
    // What came meanwhile goes at once if it is enough, else when its wait is over.
    do {
      const group = line.slice(0, groupMax)
      line = line.slice(groupMax)
      const fault = await say(group).then(
        () => undefined,
        (error) => ({ error }),
      )
      waiting -= group.length
      settled(group, fault)
      fallen.resolve()
      fallen = Promise.withResolvers()
    } while (line.length >= small.size)
    saying--
    if (line.length > 0) timer ??= setTimeout(begin, small.waitMs)
  }

  return {
    add(one) {
      line.push(one)
      waiting++
      if (line.length >= small.size) begin()
      else timer ??= setTimeout(begin, small.waitMs)
    },
    get waiting() {
      return waiting
    },
    next: () => fallen.promise,
  }
}
