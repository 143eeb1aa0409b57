// What the shim stands on when Redis, or even Postgres, does not answer: idempotency that goes from Redis to Postgres,
// and limits that go from Redis to Postgres to a count of this process alone. A limiter never fails or hangs a request.
// Counts do not move along: for a minute after a change a caller may get twice its limit.

import type { IdempotencyStore } from '../../domain/idempotency.ts'
import { type Limit, type RateLimiter, share, type Taken, unlimited } from '../../domain/limits.ts'
import { type Breaker, within } from '../breakers.ts'

/**
 * Redis first. What was begun in one store is finished in it: the token says which. Two holders of one key, one in
 * each store, are possible while Redis comes or goes, and harmless: only one of them can commit its record.
 * Errors that `isRedis` does not know are Postgres's and rise.
 */
export function fallbackIdempotency(options: {
  redis: IdempotencyStore
  postgres: IdempotencyStore
  breaker: Breaker
  isRedis(error: unknown): boolean
}): IdempotencyStore {
  const { redis, postgres, breaker, isRedis } = options

  async function tried<T>(work: () => Promise<T>): Promise<{ result: T } | undefined> {
    try {
      const result = await work()
      breaker.worked()
      return { result }
    } catch (error) {
      if (!isRedis(error)) throw error
      breaker.failed(error)
      return undefined
    }
  }

  /** Lost at worst: a way to find the answer faster, and a lock for 30 s. Not waited for while Redis is given up. */
  async function settle(work: () => Promise<void>): Promise<void> {
    if (breaker.allows()) await tried(work)
    else work().catch(() => {})
  }

  return {
    async begin(key, fingerprint) {
      const begun = breaker.allows() ? await tried(() => redis.begin(key, fingerprint)) : undefined
      if (begun !== undefined) return marked('redis', begun.result)
      return marked('postgres', await postgres.begin(key, fingerprint))
    },
    async finish(key, fingerprint, token, response) {
      const { store, bare } = unmarked(token)
      if (store === 'postgres') return postgres.finish(key, fingerprint, bare, response)
      await settle(() => redis.finish(key, fingerprint, bare, response))
    },
    async release(key, token) {
      const { store, bare } = unmarked(token)
      if (store === 'postgres') return postgres.release(key, bare)
      await settle(() => redis.release(key, bare))
    },
  }
}

const marked = <B extends { is: string; token?: string }>(store: string, begun: B): B =>
  begun.token === undefined ? begun : { ...begun, token: `${store}:${begun.token}` }

function unmarked(token: string): { store: string; bare: string } {
  const [store = '', bare = ''] = token.split(':')
  return { store, bare }
}

/** The first tier that answers within `timeoutMs` decides; when none does, this process's own count. */
export function fallbackLimiter(options: {
  tiers: readonly { limiter: RateLimiter; breaker: Breaker }[]
  local: RateLimiter
  timeoutMs?: number
}): RateLimiter {
  const { tiers, local, timeoutMs = 1000 } = options
  return {
    async take(limit) {
      if (limit.perMinute === 0) return unlimited
      for (const { limiter, breaker } of tiers) {
        if (!breaker.allows()) continue
        try {
          const taken = await within(timeoutMs, limiter.take(limit))
          breaker.worked()
          return taken
        } catch (error) {
          breaker.failed(error)
        }
      }
      return local.take(limit)
    },
  }
}

/**
 * Counts in this process's memory, `part` of every limit, since the others count as well. At most `subjectsMax`
 * subjects a minute have a count of their own; those beyond share one.
 */
export function createLocalLimiter(
  options: { part?: number; subjectsMax?: number; now?: () => number } = {},
): RateLimiter {
  const { part = 0.25, subjectsMax = 10_000, now = Date.now } = options
  let minute = 0
  let counts = new Map<string, number>()
  let before = new Map<string, number>()

  function turn(to: number): void {
    if (to === minute) return
    before = to === minute + 1 ? counts : new Map()
    counts = new Map()
    minute = to
  }

  function take({ subject, perMinute }: Limit): Taken {
    const nowMs = now()
    turn(Math.floor(nowMs / 60_000))
    const known = counts.has(subject) || counts.size < subjectsMax
    const name = known ? subject : 'others'
    const current = counts.get(name) ?? 0
    const limit = Math.max(1, Math.floor(perMinute * part))
    const [taken] = share(1, limit, current, before.get(name) ?? 0, nowMs) as [Taken]
    if (taken.granted) counts.set(name, current + 1)
    return taken
  }

  return {
    take: async (limit) => (limit.perMinute === 0 ? unlimited : take(limit)),
  }
}
