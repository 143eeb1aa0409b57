// Whose turn it is to send: a token of the rate that all instances share is one request. Who stands in the line of
// priority is served first, but of ten tokens one goes to the others, so that they never starve. Tokens are asked for a
// hundred times a second, and no more than wait here: what waits in another process finds some as well.

import { setTimeout as sleep } from 'node:timers/promises'
import type { Log } from '../log.ts'

export type Take = (want: number) => Promise<{ granted: number; waitMs: number }>

export type Turns = {
  /** Resolves when the caller may send one request. @throws the signal's reason when it aborts first */
  next(isFirst: boolean, signal: AbortSignal): Promise<void>
  /** Of each line. */
  readonly waiting: { first: number; others: number }
}

export type TurnsOptions = { take: Take; log: Log }

/** Between two asks while some wait. */
const pauseMs = 10
/** While the tokens cannot be asked for. */
const troubleMs = 1000
/** Of so many tokens one is the others'. */
const othersShare = 10

type Waiter = { resolve(): void; signal: AbortSignal; isGone: boolean }

export function createTurns({ take, log }: TurnsOptions): Turns {
  const first: Waiter[] = []
  const others: Waiter[] = []
  let isServing = false
  let served = 0
  let isTroubled = false

  function pick(): Waiter | undefined {
    const [line, other] =
      served % othersShare === othersShare - 1 ? [others, first] : [first, others]
    for (let one = line.shift() ?? other.shift(); one; one = line.shift() ?? other.shift()) {
      if (!one.isGone) return one
    }
    return undefined
  }

  async function serve(): Promise<void> {
    for (let want = count(); want > 0; want = count()) {
      const askedAt = performance.now()
      const { granted, waitMs } = await take(want).then(
        (tokens) => {
          isTroubled = false
          return tokens
        },
        (error) => {
          if (!isTroubled) log.warn({ err: error }, 'the rate cannot be asked for: pushes wait')
          isTroubled = true
          return { granted: 0, waitMs: troubleMs }
        },
      )
      for (let i = 0; i < granted; i++) {
        const one = pick()
        // Whoever it was meant for is gone: the token is lost.
        if (one === undefined) break
        served++
        one.resolve()
      }
      if (count() === 0) break
      await sleep(Math.max(1, waitMs, pauseMs - (performance.now() - askedAt)))
    }
    isServing = false
  }

  const count = (): number => {
    const isHere = ({ isGone }: Waiter) => !isGone
    return first.filter(isHere).length + others.filter(isHere).length
  }

  return {
    next(isFirst, signal) {
      if (signal.aborted) return Promise.reject(signal.reason)
      return new Promise((resolve, reject) => {
        const onAbort = () => {
          waiter.isGone = true
          reject(signal.reason)
        }
        const waiter: Waiter = {
          signal,
          isGone: false,
          resolve() {
            signal.removeEventListener('abort', onAbort)
            resolve()
          },
        }
        signal.addEventListener('abort', onAbort, { once: true })
        ;(isFirst ? first : others).push(waiter)
        if (isServing) return
        isServing = true
        void serve()
      })
    },
    get waiting() {
      return { first: first.length, others: others.length }
    },
  }
}
