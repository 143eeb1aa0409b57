// Whether it makes sense to send at all. Many failures in a row, with nothing that went well between them, are no matter
// of the single push: the circuit opens, nothing is claimed for a while, and then one push tries the way. It is told once
// when it opens and once when it closes. Each process has its own: what one finds out costs the others as little.

import type { Log } from '../log.ts'

export type CircuitOptions = {
  log: Log
  /** For people: whom the way leads to. */
  what: string
  now?: () => number
  random?: () => number
}

export type Circuit = {
  /** Pushes that may be in hand: all, none, or the one that tries. */
  room(): number
  /** Until it is worth while to try again, ms; 0 while the way is open. */
  waitMs(): number
  /** Why nothing is sent, in words for people. */
  away(): string | undefined
  /** The other side did its work. */
  good(): void
  /** It did not. `afterMs`: how long it asks to be left alone. */
  bad(why: string, afterMs?: number): void
  /** There is no way to it at all: opens at once. */
  gone(why: string): void
}

/** In a row: fewer are bad luck, and each costs its push an attempt. */
const badMax = 20
/** Google: never sooner than 10 s. Doubled each time, and up to half as much again at random. */
const openMs = { first: 10_000, most: 60_000 }

export function createCircuit(options: CircuitOptions): Circuit {
  const { log, what, now = () => performance.now(), random = Math.random } = options
  let bads = 0
  let opened = 0
  let until = 0
  let away: string | undefined

  function open(why: string, afterMs: number): void {
    // What was under way when it opened says nothing new.
    if (away !== undefined && now() < until) return
    const pause = Math.min(openMs.most, openMs.first * 2 ** opened)
    until = now() + Math.max(pause, afterMs) * (1 + random() / 2)
    opened++
    if (away === undefined)
      log.error({ why }, `${what} takes no pushes: they wait, and are tried again`)
    away = why
  }

  return {
    room: () => (away === undefined ? Number.POSITIVE_INFINITY : now() < until ? 0 : 1),
    waitMs: () => (away === undefined ? 0 : Math.max(0, until - now())),
    away: () => (away === undefined ? undefined : `${what}: ${away}`),
    good() {
      bads = 0
      if (away === undefined) return
      log.info(`${what} takes pushes again`)
      away = undefined
      opened = 0
    },
    bad(why, afterMs = 0) {
      bads++
      if (away !== undefined || bads >= badMax) open(why, afterMs)
    },
    gone: (why) => open(why, 0),
  }
}
