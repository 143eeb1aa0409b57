// Rates that are counted in Redis, and in Postgres while Redis is away. Counts do not move along; so that the two never
// let through a full rate each, a process that changes over begins nothing for `changeMs`: longer than it takes the
// others to find out too.

import type { Rate, Rates, SlotRates } from '../domain/rates.ts'
import type { Breaker } from './breakers.ts'

export type FallbackRatesOptions = {
  redis: Rates & SlotRates
  postgres: Rates & SlotRates
  breaker: Breaker
  /** For tests. */
  changeMs?: number
  now?: () => number
}

export function fallbackRates(options: FallbackRatesOptions): Rates & SlotRates {
  const { redis, postgres, breaker, changeMs = 2000, now = () => performance.now() } = options
  let used: 'redis' | 'postgres' | undefined
  let restUntil = 0

  async function ask<T extends { granted: number; waitMs: number }>(
    call: (rates: Rates & SlotRates) => Promise<T>,
  ): Promise<T | { granted: number; waitMs: number }> {
    const answer = breaker.allows() ? await tried(() => call(redis)) : undefined
    const by = answer === undefined ? 'postgres' : 'redis'
    if (used !== undefined && by !== used) restUntil = now() + changeMs
    used = by
    const restMs = restUntil - now()
    // What Redis granted while we rest is lost.
    if (restMs > 0) return { granted: 0, waitMs: restMs }
    return answer ?? (await call(postgres))
  }

  async function tried<T>(call: () => Promise<T>): Promise<T | undefined> {
    try {
      const answer = await call()
      breaker.worked()
      return answer
    } catch (error) {
      breaker.failed(error)
      return undefined
    }
  }

  return {
    take: (rate: Rate, want) => ask((rates) => rates.take(rate, want)),
    count: (rate: Rate) => ask((rates) => rates.count(rate)),
    reserve: (rate, want) => ask((rates) => rates.reserve(rate, want)),
  }
}
