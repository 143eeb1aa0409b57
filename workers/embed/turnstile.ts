// Lets calls to the vendor begin one after the other, in the order they came, each when the pace that all instances share
// says so (db/vendorLimits.ts). Of one process only the first in line asks.

import { setTimeout as sleep } from 'node:timers/promises'
import type { VendorLimits } from '../../db/vendorLimits.ts'
import type { Ticket } from '../../domain/vendorPace.ts'

export type Turnstile = {
  /** Undefined: not before `waitMs`, which is too long to stand here. @throws the signal's reason */
  next(estimate: number, signal: AbortSignal): Promise<{ ticket?: Ticket; waitMs: number }>
}

export function createTurnstile(limits: VendorLimits, waitMaxMs: number): Turnstile {
  let last: Promise<unknown> = Promise.resolve()

  async function ask(estimate: number, signal: AbortSignal) {
    for (;;) {
      signal.throwIfAborted()
      const { ticket, waitMs } = await limits.reserve(estimate)
      if (ticket === undefined && waitMs > waitMaxMs) return { waitMs }
      await sleep(waitMs, undefined, { signal })
      if (ticket !== undefined) return { ticket, waitMs: 0 }
    }
  }

  return {
    next(estimate, signal) {
      const mine = last.then(() => ask(estimate, signal))
      last = mine.catch(() => {})
      return mine
    },
  }
}
