// Lets calls to the other side begin one by one, as evenly as the slots of a rate come, over all instances. A slot is
// taken when the call is ready to go, not when its job was claimed: what waits in between would come in a heap.
//
// The other side counts what arrives. A call that begins j seconds late adds perSecond × j to somebody's second, so a pace of
// 99 a second keeps every second there to 100 as long as calls arrive within 10 ms of their time, and to 150 on a machine
// so busy that they begin 500 ms late: a slot missed by more is let go (measured there: letting go at 25 ms costs more than
// half the rate). A bucket of 100 tokens, which the contract allows, lets 200 through in its first second.

import { setTimeout as sleep } from 'node:timers/promises'
import type { Rate, SlotRates } from '../domain/rates.ts'

export type Pace = {
  /** Resolves when one may begin. @throws the signal's reason, or what kept the slots from being reserved */
  next(signal: AbortSignal): Promise<void>
}

export type PaceOptions = {
  slots: SlotRates
  rate: Pick<Rate, 'name' | 'perSecond'>
  /** Slots reserved at once: more are fewer round trips, fewer are fairer among instances. */
  takeMax?: number
  lateMs?: number
}

type Waiter = { go(): void; fail(error: unknown): void }

/** Before the last reserved slot comes the next are asked for. */
const leadMs = 30

export function createPace({ slots, rate, takeMax = 8, lateMs = 500 }: PaceOptions): Pace {
  const gapMs = 1000 / rate.perSecond
  const waiting: Waiter[] = []
  /** Slots that are reserved and have not come yet. */
  let reserved = 0
  let running = false

  async function run(): Promise<void> {
    try {
      while (waiting.length > reserved) {
        const askedAt = performance.now()
        const want = Math.min(takeMax, waiting.length - reserved)
        const { granted, waitMs } = await slots.reserve(rate, want)
        // Said somewhere between the question and the answer.
        const firstAt = (askedAt + performance.now()) / 2 + waitMs
        for (let i = 0; i < granted; i++) serveAt(firstAt + i * gapMs)
        const until = granted === 0 ? firstAt : firstAt + (granted - 1) * gapMs - leadMs
        await sleep(Math.max(0, until - performance.now()))
      }
    } catch (error) {
      for (const { fail } of waiting.splice(0)) fail(error)
    } finally {
      running = false
    }
  }

  function serveAt(at: number): void {
    reserved++
    const serve = () => {
      const now = performance.now()
      // Timers keep whole ms and may come a little early.
      if (now < at - 0.5) return void setTimeout(serve, at - now)
      reserved--
      if (now - at <= lateMs) waiting.shift()?.go()
      if (waiting.length > reserved) start()
    }
    setTimeout(serve, Math.max(0, at - performance.now()))
  }

  function start(): void {
    if (running) return
    running = true
    void run()
  }

  return {
    next(signal) {
      return new Promise((resolve, reject) => {
        if (signal.aborted) return reject(signal.reason)
        const onAbort = () => {
          const place = waiting.indexOf(waiter)
          if (place >= 0) waiting.splice(place, 1)
          reject(signal.reason)
        }
        const done = (end: () => void) => {
          signal.removeEventListener('abort', onAbort)
          end()
        }
        const waiter: Waiter = {
          go: () => done(resolve),
          fail: (error) => done(() => reject(error)),
        }
        signal.addEventListener('abort', onAbort, { once: true })
        waiting.push(waiter)
        start()
      })
    },
  }
}
