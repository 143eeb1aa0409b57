// What this process is doing, by queue: written by the passes over jobs, read by the registry's beat.

import type { QueueDoing } from '../db/schema.ts'

type Sample = { at: number; handled: number }
type Own = { active: number; handled: number; samples: Sample[] }

const queues = new Map<string, Own>()

/** Adds to what is in hand, and to what was settled since the start. */
export function count(queue: string, active: number, handled = 0): void {
  const doing = queues.get(queue)
  if (doing === undefined) {
    queues.set(queue, { active, handled, samples: [{ at: performance.now(), handled: 0 }] })
  } else {
    doing.active += active
    doing.handled += handled
  }
}

const rateMs = 60_000

/** Each call is a point that the rate over the last minute is measured from. */
export function readDoing(now = performance.now()): Record<string, QueueDoing> {
  const all = [...queues].map(([queue, { active, handled, samples }]) => {
    while (samples[1] !== undefined && samples[1].at <= now - rateMs) samples.shift()
    const { at, handled: before } = samples[0] as Sample
    samples.push({ at: now, handled })
    const perSecond = (handled - before) / Math.max(1, (now - at) / 1000)
    return [queue, { active, handled, perSecond }]
  })
  return Object.fromEntries(all)
}
