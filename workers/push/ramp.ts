// The rate of pushes over all instances as a function of how long they have been busy: Google asks for a ramp from nothing
// to the full rate over a minute (https://firebase.google.com/docs/cloud-messaging/scale-fcm).

import type { SlotRates } from '../../domain/rates.ts'
import type { Take } from './turns.ts'

export type RampedTakeOptions = {
  /** At the full rate, requests a second. */
  perSecond: number
  /** Of a rate of so many a second. */
  take(perSecond: number, want: number): ReturnType<Take>
  /** The share of the full rate that may be used, 0 to 1. Left out: all of it, always. */
  climb?: ((pressed: boolean) => Promise<number>) | undefined
}

const climbEveryMs = 250
/** A ramp that begins at nothing never begins. */
const levelMin = 0.01

export function rampedTake({ perSecond, take, climb }: RampedTakeOptions): Take {
  let level = climb === undefined ? 1 : levelMin
  let climbAt = Number.NEGATIVE_INFINITY
  let pressed = false

  return async (want) => {
    if (climb !== undefined && performance.now() > climbAt) {
      climbAt = performance.now() + climbEveryMs
      level = Math.max(levelMin, await climb(pressed))
      pressed = false
    }
    const tokens = await take(Math.max(1, perSecond * level), want)
    // Tokens for later are a want that waits as well.
    pressed ||= tokens.granted < want || (tokens.everyMs !== undefined && want > 1)
    return tokens
  }
}

/** Of the rate: what is left is for requests that begin late (workers/pace.ts). */
const slotShare = 0.98

/** The next slots of a rate of so many a second. */
export function slotsOf(name: string, slots: SlotRates): RampedTakeOptions['take'] {
  return async (now, want) => {
    const perSecond = now * slotShare
    return { ...(await slots.reserve({ name, perSecond }, want)), everyMs: 1000 / perSecond }
  }
}
