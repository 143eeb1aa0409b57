// What Redis knows of processed events, where it is asked at all. When Redis is away the table alone decides, as it does
// anyway: one warning, a metric, and a while of not asking.

import { Counter } from 'prom-client'
import type { Seen } from '../../domain/broker.ts'
import type { Log } from '../log.ts'

const away = new Counter({
  name: 'inbox_redis_failures_total',
  help: 'Times that Redis did not say what was processed',
})

const restMs = 5000

export type OpenedSeen = Seen & { close(): Promise<void> }

/** The Redis client is loaded only where it is used. */
export async function openSeen(url: string | undefined, log: Log): Promise<OpenedSeen | undefined> {
  if (url === undefined) return undefined
  const { openRedis } = await import('../../redis/open.ts')
  const { openProcessed } = await import('../../redis/processed.ts')
  const onError = (error: Error) => log.debug({ err: error }, 'no connection to Redis')
  const { redis, ready, close } = openRedis({ url, name: 'inbox', onError })
  await ready(500).catch(() => {})
  return { ...forgiving(openProcessed(redis), log), close }
}

export function forgiving(seen: Seen, log: Log): Seen {
  let askAt = 0
  let told = false

  async function ask<T>(question: () => Promise<T>, otherwise: T): Promise<T> {
    if (performance.now() < askAt) return otherwise
    try {
      const answer = await question()
      if (told) log.info('Redis tells again what was processed')
      told = false
      return answer
    } catch (error) {
      away.inc()
      askAt = performance.now() + restMs
      if (!told) log.warn({ err: error }, 'Redis is away: the table alone says what was processed')
      told = true
      return otherwise
    }
  }

  return {
    among: (ids) => ask(() => seen.among(ids), new Set()),
    remember: (ids) => ask(() => seen.remember(ids), undefined),
  }
}
