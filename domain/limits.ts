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
    if (freeAtMs <= 60_000) return Math.max(1, Math.ceil(freeAtMs - intoMs))
  }
  const share = current > 0 ? Math.max(0, 1 - (perMinute - 1) / current) : 0
  return Math.max(1, Math.ceil(60_000 - intoMs + 60_000 * share))
}
