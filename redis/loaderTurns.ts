// Whose turn a source is, on Redis: `loader:lock:<source>`, a token with the life of a lease, and `loader:gate:<source>`,
// the time (µs by Redis's clock) before which nobody asks it. What Redis lost counts as closed for a lease. It only
// spares Postgres the work: what is stored is fenced there (db/loader.ts).

import { randomUUID } from 'node:crypto'
import type { LockFactory, SourceGate } from '../domain/loader.ts'
import { answered, type RedisClient, script } from './open.ts'

const releaseScript = `
if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end
return 0`

export function openRedisLoaderLocks(redis: RedisClient, answerMs = 250): LockFactory {
  const release = script<[string], number>(redis, 'flotillaLoaderRelease', releaseScript)
  return {
    async tryLock(source, leaseMs) {
      const key = `loader:lock:${source}`
      const token = randomUUID()
      const until = performance.now() + leaseMs
      const taken = await answered(redis.set(key, token, 'PX', Math.ceil(leaseMs), 'NX'), answerMs)
      if (taken === null) return undefined
      return {
        until,
        async release() {
          await answered(release(key, token), answerMs)
        },
      }
    },
  }
}

/** A gate that nobody asked for so long is forgotten, and its source counts as unknown. */
const forgetMs = 7 * 86_400_000

/** ARGV: for how long the unknown is closed, ms; life of the key. Gives the wait, ms, rounded up. */
const waitScript = `
local time = redis.call('time')
local now = time[1] * 1000000 + time[2]
local at = redis.call('get', KEYS[1])
if not at then
  at = now + ARGV[1] * 1000
  redis.call('set', KEYS[1], string.format('%.0f', at), 'PX', ARGV[2])
end
return math.max(0, math.ceil((at - now) / 1000))`

/** ARGV: the rest, ms; life of the key. */
const closeScript = `
local time = redis.call('time')
local at = time[1] * 1000000 + time[2] + ARGV[1] * 1000
redis.call('set', KEYS[1], string.format('%.0f', at), 'PX', ARGV[2])`

export function openRedisLoaderGate(redis: RedisClient, answerMs = 250): SourceGate {
  const wait = script<[number, number], number>(redis, 'flotillaLoaderWait', waitScript)
  const close = script<[number, number], null>(redis, 'flotillaLoaderClose', closeScript)
  const keyOf = (source: string) => `loader:gate:${source}`
  return {
    waitMs: (source, unknownMs) =>
      answered(wait(keyOf(source), Math.ceil(unknownMs), forgetMs), answerMs),
    async close(source, restMs) {
      await answered(close(keyOf(source), Math.ceil(restMs), forgetMs), answerMs)
    },
  }
}
