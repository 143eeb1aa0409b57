// Where keys are locked and requests counted: in Redis when REDIS_URL is set, falling back to Postgres, else in Postgres
// alone. The Redis client is loaded only where it is used: it costs 25 MB.

import { openIdempotency } from '../../db/idempotency.ts'
import { openLimits } from '../../db/limits.ts'
import type { Database } from '../../db/open.ts'
import type { IdempotencyStore } from '../../domain/idempotency.ts'
import type { RateLimiter } from '../../domain/limits.ts'
import { type Breakers, createBreakers } from '../breakers.ts'
import type { Log } from '../log.ts'
import { createLocalLimiter, fallbackIdempotency, fallbackLimiter } from './fallback.ts'

export type Stores = {
  idempotency: IdempotencyStore
  limits: RateLimiter
  /** For what else the shim leans on. */
  breakers: Breakers
  /** Deletes one batch of what is over in Postgres, and says how much. */
  prune(): Promise<number>
  close(): Promise<void>
}

export async function openStores(
  { db }: Database,
  redisUrl: string | undefined,
  log: Log,
): Promise<Stores> {
  const breakers = createBreakers({ log })
  const idempotency = openIdempotency(db)
  const counts = openLimits(db)
  const local = createLocalLimiter()
  const postgres = { limiter: counts, breaker: breakers('postgres') }
  const prune = async () => (await idempotency.prune()) + (await counts.prune())
  if (redisUrl === undefined) {
    const limits = fallbackLimiter({ tiers: [postgres], local })
    return { idempotency, limits, breakers, prune, close: async () => {} }
  }
  const { openRedis, RedisUnavailable } = await import('../../redis/open.ts')
  const { openRedisIdempotency } = await import('../../redis/idempotency.ts')
  const { openRedisLimits } = await import('../../redis/limits.ts')
  const onError = (error: Error) => log.debug({ err: error }, 'no connection to Redis')
  const { redis, ready, close } = openRedis({ url: redisUrl, name: 'http', onError })
  // Not there yet: requests find out, and go on without it.
  await ready(readyMs).catch(() => {})
  const breaker = breakers('redis')
  return {
    idempotency: fallbackIdempotency({
      redis: openRedisIdempotency({ redis, find: idempotency.find }),
      postgres: idempotency,
      breaker,
      isRedis: (error) => error instanceof RedisUnavailable,
    }),
    limits: fallbackLimiter({
      tiers: [{ limiter: openRedisLimits(redis), breaker }, postgres],
      local,
    }),
    breakers,
    prune,
    close,
  }
}

const readyMs = 500
