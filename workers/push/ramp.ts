// The rate of pushes over all instances as a function of how long they have been busy: Google asks for a ramp from nothing
// to the full rate over a minute (https://firebase.google.com/docs/cloud-messaging/scale-fcm). What the bucket saves up
// for a burst is taken off its refill, so that no second ever has more than the full rate.

import type { Take } from './turns.ts'

export type Bucket = { perSecond: number; burst: number }

export type RampedTakeOptions = {
  /** At the full rate, requests a second. */
  perSecond: number
  take(bucket: Bucket, want: number): ReturnType<Take>
  /** The share of the full rate that may be used, 0 to 1. Left out: all of it, always. */
  climb?: ((pressed: boolean) => Promise<number>) | undefined
}

const climbEveryMs = 250
/** A ramp that begins at nothing never begins. */
const levelMin = 0.01
/** Of a second: an event loop that is held up so long still finds its tokens. */
const burstShare = 0.04

export function bucketOf(perSecond: number): Bucket {
  const burst = Math.max(1, perSecond * burstShare)
  return { burst, perSecond: Math.max(perSecond - burst, perSecond / 2) }
}

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
    const tokens = await take(bucketOf(Math.max(1, perSecond * level)), want)
    pressed ||= tokens.granted < want
    return tokens
  }
}
