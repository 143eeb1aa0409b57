// The sliding-window rate limit on Redis: one integer a subject and minute, `rate_limit:<subject>:<minute>`, gone two
// minutes after its last request. Requests that come together are counted together. The minute is that of this
// process's clock, which NTP keeps close enough to its neighbours' for a window of a minute.

import {
  bySubject,
  type Limit,
  type RateLimiter,
  share,
  type Taken,
  unlimited,
} from '../domain/limits.ts'
import { answered, type RedisClient, script } from './open.ts'

/** This minute and the next, where its count still weighs. */
const lifeSeconds = 120

/**
 * Counts what fits and gives the count from before. ARGV: requests, room (the limit less what the previous minute
 * weighs), life. `share` of domain/limits.ts does the same arithmetic on the result.
 */
const countScript = `
local before = tonumber(redis.call('get', KEYS[1]) or '0')
local fit = math.min(tonumber(ARGV[1]), math.floor(tonumber(ARGV[2]) - before))
if fit > 0 then
  redis.call('incrby', KEYS[1], fit)
  redis.call('expire', KEYS[1], ARGV[3])
end
return before`

export function openRedisLimits(redis: RedisClient, now: () => number = Date.now): RateLimiter {
  const count = script<[number, number, number], number>(redis, 'flotillaCount', countScript)
  let waiting: { limit: Limit; resolve(taken: Taken): void; reject(error: unknown): void }[] = []

  function take(limit: Limit): Promise<Taken> {
    if (limit.perMinute === 0) return Promise.resolve(unlimited)
    return new Promise((resolve, reject) => {
      waiting.push({ limit, resolve, reject })
      // What arrived in this turn of the event loop goes out together.
      if (waiting.length === 1) setImmediate(drain)
    })
  }

  function drain(): void {
    const group = waiting
    waiting = []
    const nowMs = now()
    for (const { places, ...limit } of bySubject(group.map((one) => one.limit))) {
      takeSubject(limit, places.length, nowMs).then(
        (taken) => {
          for (const [i, place] of places.entries()) group[place]?.resolve(taken[i] as Taken)
        },
        (error) => {
          for (const place of places) group[place]?.reject(error)
        },
      )
    }
  }

  async function takeSubject({ subject, perMinute }: Limit, want: number, nowMs: number) {
    const minute = Math.floor(nowMs / 60_000)
    const key = (of: number) => `rate_limit:${subject}:${of}`
    const previous = Number((await answered(redis.get(key(minute - 1)))) ?? 0)
    const room = perMinute - previous * (1 - (nowMs % 60_000) / 60_000)
    const before = await answered(count(key(minute), want, room, lifeSeconds))
    return share(want, perMinute, before, previous, nowMs)
  }

  return { take }
}
