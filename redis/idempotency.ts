// Idempotency with Redis in front: the lock, `idempotency:lock:<key>` (30 s), and the answers of the last 48 h,
// `idempotency:<key>`. Redis is only the fast path: what it does not know is asked of the records in Postgres, where
// answers commit with their effects, so a flushed or failed-over Redis forgets nothing. The two keys of one request
// may lie on different nodes of a Cluster: no script touches both.

import { randomUUID } from 'node:crypto'
import {
  type Begun,
  type FoundRecord,
  type IdempotencyStore,
  lockSeconds,
  recordSeconds,
  runningRetryMs,
  type StoredRecord,
} from '../domain/idempotency.ts'
import { answered, type RedisClient, RedisUnavailable, script } from './open.ts'

const recordKey = (key: string) => `idempotency:${key}`
const lockKey = (key: string) => `idempotency:lock:${key}`

/** ARGV: life, then field and value in turn. The hash never stands there without its life. */
const storeScript = `
redis.call('hset', KEYS[1], unpack(ARGV, 2))
redis.call('expire', KEYS[1], ARGV[1])`

/** The lock's value is its token, a blank, the fingerprint. ARGV: token. */
const freeScript = `
local lock = redis.call('get', KEYS[1])
if lock and string.sub(lock, 1, #ARGV[1] + 1) == ARGV[1] .. ' ' then redis.call('del', KEYS[1]) end`

export type RedisIdempotencyOptions = {
  redis: RedisClient
  /** The record in Postgres. Its errors pass through as they are. */
  find(key: string): Promise<FoundRecord | undefined>
}

/** Fails with RedisUnavailable where Redis is at fault. */
export function openRedisIdempotency({ redis, find }: RedisIdempotencyOptions): IdempotencyStore {
  const store = script<(string | number)[], null>(redis, 'flotillaStore', storeScript)
  const freeIfMine = script<[string], null>(redis, 'flotillaFree', freeScript)
  const free = (key: string, token: string) => answered(freeIfMine(lockKey(key), token))

  async function begin(key: string, fingerprint: string): Promise<Begun> {
    const token = randomUUID()
    const mine = `${token} ${fingerprint}`
    const [taken, hash] = await askBoth(key, mine).catch((error) => {
      // The SET may yet be carried out: what follows it on the connection takes it back.
      freeIfMine(lockKey(key), token).catch(() => {})
      throw error
    })
    try {
      const record = readHash(hash) ?? (await recall(key))
      if (record !== undefined) {
        if (taken) await free(key, token)
        return record.fingerprint === fingerprint
          ? { is: 'done', response: record.response }
          : { is: 'reused' }
      }
    } catch (error) {
      if (taken) freeIfMine(lockKey(key), token).catch(() => {})
      throw error
    }
    return taken ? { is: 'mine', token } : await lockedBy(key, fingerprint)
  }

  const askBoth = (key: string, lock: string) =>
    Promise.all([
      answered(redis.set(lockKey(key), lock, 'EX', lockSeconds, 'NX')).then((ok) => ok === 'OK'),
      answered(redis.hgetall(recordKey(key))),
    ])

  /**
   * The truth, read after the lock is ours: its last holder committed before it freed the lock, so nothing is missed
   * even where Redis answered the HGETALL before the SET, on another node.
   */
  async function recall(key: string): Promise<StoredRecord | undefined> {
    const record = await find(key)
    if (record !== undefined) await keep(key, record, record.leftSeconds)
    return record
  }

  function keep(key: string, { fingerprint, response }: StoredRecord, seconds: number) {
    const { status, headers, body } = response
    const fields = { fingerprint, status, headers: JSON.stringify(headers), body }
    return answered(store(recordKey(key), seconds, ...Object.entries(fields).flat()))
  }

  async function lockedBy(key: string, fingerprint: string): Promise<Begun> {
    const [lock, leftMs] = await Promise.all([
      answered(redis.get(lockKey(key))),
      answered(redis.pttl(lockKey(key))),
    ])
    if (lock !== null && lock.slice(lock.indexOf(' ') + 1) !== fingerprint) return { is: 'reused' }
    // Negative: freed since we tried.
    const waitMs = leftMs > 0 ? Math.min(leftMs, runningRetryMs) : runningRetryMs
    return { is: 'running', retryAfterMs: waitMs }
  }

  return {
    begin,
    async finish(key, fingerprint, token, response) {
      // In this order: with the lock free the answer must be there, or every retry would ask Postgres.
      await keep(key, { fingerprint, response }, recordSeconds)
      await free(key, token)
    },
    async release(key, token) {
      await free(key, token)
    },
  }
}

function readHash(hash: Record<string, string>): StoredRecord | undefined {
  const { fingerprint, status, headers, body } = hash
  if (!fingerprint || !status || headers === undefined || body === undefined) return undefined
  try {
    return { fingerprint, response: { status: Number(status), headers: JSON.parse(headers), body } }
  } catch (error) {
    throw new RedisUnavailable(error)
  }
}
