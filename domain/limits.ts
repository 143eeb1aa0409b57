// The sliding-window rate limit (SPEC 6) as arithmetic, and the port its two adapters serve. A window is one minute;
// what is left of it is the limit less this minute's count less the previous minute's, weighted by the share of it
// that the sliding minute still covers.

export type Limit = {
  /** What is counted: `user:<id>` or `global`; the Redis key is `rate_limit:<subject>:<minute>`. */
  subject: string
  /** Requests a minute; 0 turns the limit off. */
  perMinute: number
}

export type Taken = {
  granted: boolean
  /** Requests left in the window after this one. */
  remaining: number
  /** Until at least one more is granted, ms; 0 when some are left. */
  retryAfterMs: number
}

/** Counts one request against a subject; refused requests are not counted. */
export type RateLimiter = {
  take(limit: Limit): Promise<Taken>
}

/** How many of `want` requests fit now. `nowMs` is within the minute that `current` counts. */
export function grantable(
  want: number,
  perMinute: number,
  current: number,
  previous: number,
  nowMs: number,
): number {
  const covered = 1 - (nowMs % 60_000) / 60_000
  return Math.max(0, Math.min(want, Math.floor(perMinute - previous * covered - current)))
}

/**
 * Until one more request fits, ms: in this minute while the previous minute's weight falls, else in the next one,
 * where this minute's own count is the weight. Rounded up, never under 1.
 */
export function retryAfterMs(
  perMinute: number,
  current: number,
  previous: number,
  nowMs: number,
): number {
  const intoMs = nowMs % 60_000
  if (previous > 0 && perMinute - current >= 1) {
    const freeAtMs = 60_000 * (1 - (perMinute - current - 1) / previous)
    if (freeAtMs <= 60_000) return Math.max(1, ceilMs(freeAtMs - intoMs))
  }
  const share = current > 0 ? Math.max(0, 1 - (perMinute - 1) / current) : 0
  return Math.max(1, ceilMs(60_000 - intoMs + 60_000 * share))
}

/** On a whole ms the weight may still be a rounding error too heavy. */
const ceilMs = (ms: number): number => Math.ceil(ms + 1e-6)

/** The answer where a limit is turned off. */
export const unlimited: Taken = { granted: true, remaining: Infinity, retryAfterMs: 0 }

/** The answers to `want` requests that came together, in their order; `current` is the count before the first. */
export function share(
  want: number,
  perMinute: number,
  current: number,
  previous: number,
  nowMs: number,
): Taken[] {
  const left = grantable(Infinity, perMinute, current, previous, nowMs)
  const granted = Math.min(want, left)
  const full = retryAfterMs(perMinute, current + granted, previous, nowMs)
  return Array.from({ length: want }, (_, i) => {
    const remaining = Math.max(0, left - i - 1)
    return { granted: i < granted, remaining, retryAfterMs: remaining > 0 ? 0 : full }
  })
}

/** Requests of one group by subject, with their places in it. A subject has one limit at a time. */
export function bySubject(limits: readonly Limit[]): (Limit & { places: number[] })[] {
  const subjects = new Map<string, Limit & { places: number[] }>()
  limits.forEach((limit, place) => {
    const known = subjects.get(limit.subject)
    if (known === undefined) subjects.set(limit.subject, { ...limit, places: [place] })
    else known.places.push(place)
  })
  return [...subjects.values()]
}
