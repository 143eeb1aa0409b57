// Whose turn it is to send: a token of the rate that all instances share is one request. Who stands in the line of
// priority is served first, but of ten tokens one goes to the others, so that they never starve. Tokens may be for now or,
// evenly spaced, for the next moments: who gets one is decided when its moment comes.

import type { Log } from '../log.ts'

/**
 * Takes up to `want` tokens. Without `everyMs` those granted are for now, and `waitMs` is until there are more; with it
 * the first is for `waitMs` from now, the others each `everyMs` later.
 */
export type Take = (want: number) => Promise<{ granted: number; waitMs: number; everyMs?: number }>

export type Turns = {
  /** Resolves when the caller may send one request. @throws the signal's reason when it aborts first */
  next(isFirst: boolean, signal: AbortSignal): Promise<void>
}

export type TurnsOptions = { take: Take; log: Log; now?: () => number }

/** Between two asks while some wait. */
const pauseMs = 10
/** While the tokens cannot be asked for. */
const troubleMs = 1000
/** More are asked for when those at hand end so soon: none of the rate is lost on the way to the database. */
const aheadMs = 80
/** At once: what waits in another process finds some as well. */
const wantMax = 50
/** A token whose moment was missed by more would make another second too full. */
const lateMaxMs = 60
/** Of so many tokens one is the others'. */
const othersShare = 10

type Waiter = { resolve(): void; isGone: boolean }

export function createTurns({ take, log, now = () => performance.now() }: TurnsOptions): Turns {
  const first: Waiter[] = []
  const others: Waiter[] = []
  /** When the tokens at hand are for, in their order. */
  let moments: number[] = []
  let [waiting, served, askAt] = [0, 0, 0]
  let [isAsking, isTroubled] = [false, false]
  let timer: NodeJS.Timeout | undefined

  function pick(): Waiter | undefined {
    const [line, other] =
      served % othersShare === othersShare - 1 ? [others, first] : [first, others]
    for (let one = line.shift() ?? other.shift(); one; one = line.shift() ?? other.shift()) {
      if (!one.isGone) return one
    }
    return undefined
  }

  /** Serves whose moment has come, asks for more, and comes back at the next moment. */
  function serve(): void {
    clearTimeout(timer)
    const at = now()
    moments = moments.filter((moment) => moment >= at - lateMaxMs)
    let used = 0
    while ((moments[used] ?? Number.POSITIVE_INFINITY) <= at) {
      const one = pick()
      if (one === undefined) break
      used++
      served++
      waiting--
      one.resolve()
    }
    moments.splice(0, used)
    // What is left is for whoever comes before it is too late for it.
    if (waiting === 0) return
    const isShort = waiting > moments.length && (moments.at(-1) ?? 0) < at + aheadMs
    if (isShort && !isAsking && at >= askAt) void ask(Math.min(wantMax, waiting - moments.length))
    const next = Math.min(moments[0] ?? Number.POSITIVE_INFINITY, isAsking ? Infinity : askAt)
    if (next !== Number.POSITIVE_INFINITY) timer = setTimeout(serve, Math.max(1, next - at))
  }

  async function ask(want: number): Promise<void> {
    isAsking = true
    const askedAt = now()
    try {
      const { granted, waitMs, everyMs } = await take(want)
      isTroubled = false
      const from = everyMs === undefined ? now() : now() + waitMs
      for (let i = 0; i < granted; i++) moments.push(from + i * (everyMs ?? 0))
      const pause = everyMs === undefined || granted === 0 ? waitMs : 0
      askAt = Math.max(now() + pause, askedAt + pauseMs)
    } catch (error) {
      if (!isTroubled) log.warn({ err: error }, 'the rate cannot be asked for: pushes wait')
      isTroubled = true
      askAt = now() + troubleMs
    }
    isAsking = false
    serve()
  }

  return {
    next(isFirst, signal) {
      if (signal.aborted) return Promise.reject(signal.reason)
      return new Promise((resolve, reject) => {
        const onAbort = () => {
          waiter.isGone = true
          waiting--
          reject(signal.reason)
        }
        const waiter: Waiter = {
          isGone: false,
          resolve() {
            signal.removeEventListener('abort', onAbort)
            resolve()
          },
        }
        signal.addEventListener('abort', onAbort, { once: true })
        ;(isFirst ? first : others).push(waiter)
        waiting++
        if (!isAsking) serve()
      })
    },
  }
}
