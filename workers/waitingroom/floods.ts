// How often somebody may ask, by this process's own count: a bucket for each user and address, filled evenly through a
// minute. Costs nothing elsewhere, which is the point: a flood is to end here. Where processes share a port, each has
// its share of an address's connections, and counts for itself.

export type Flood = {
  /** @returns ms to wait; 0: granted */
  take(subject: string): number
}

type Bucket = { left: number; atMs: number }

/** Forgotten in two generations: what was not asked for during one is gone after the next. */
const generationMs = 60_000
const subjectsMax = 200_000

export function createFlood(perMinute: number, nowMs = () => performance.now()): Flood {
  let young = new Map<string, Bucket>()
  let old = new Map<string, Bucket>()
  let turnAt = nowMs() + generationMs

  return {
    take(subject) {
      if (perMinute === 0) return 0
      const now = nowMs()
      if (now >= turnAt || young.size >= subjectsMax) {
        old = young
        young = new Map()
        turnAt = now + generationMs
      }
      const bucket = young.get(subject) ?? old.get(subject) ?? { left: perMinute, atMs: now }
      bucket.left = Math.min(perMinute, bucket.left + ((now - bucket.atMs) * perMinute) / 60_000)
      bucket.atMs = now
      young.set(subject, bucket)
      if (bucket.left < 1) return Math.ceil(((1 - bucket.left) * 60_000) / perMinute)
      bucket.left--
      return 0
    },
  }
}
