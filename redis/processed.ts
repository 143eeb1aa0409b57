// Which events the inbox has processed, as keys `outbox:processed:<message id>` of 8 days: asked first, so that a
// duplicate costs no transaction. Written after the commit; the truth is the table (db/inbox.ts).

import { processedSeconds, type Seen } from '../domain/broker.ts'
import { answered, type RedisClient } from './open.ts'

const keyOf = (id: string) => `outbox:processed:${id.toLowerCase()}`

/** Fails with RedisUnavailable. Key by key, since on a Cluster they lie on different nodes: ioredis sends them together. */
export function openProcessed(redis: RedisClient): Seen {
  return {
    async among(ids) {
      const found = await answered(Promise.all(ids.map((id) => redis.exists(keyOf(id)))))
      return new Set(ids.filter((_, i) => found[i] === 1))
    },
    async remember(ids) {
      await answered(
        Promise.all(ids.map((id) => redis.set(keyOf(id), '1', 'EX', processedSeconds))),
      )
    },
  }
}
