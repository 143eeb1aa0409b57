// Rates over all instances, one suite over both adapters: tokens in a bucket and slots in a row; the pace that is made of
// slots; and what happens when Redis goes and comes back.

import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { after, describe, test } from 'node:test'
import { pino } from 'pino'
import { Registry } from 'prom-client'
import { openRates } from '../db/rates.ts'
import { type Rates, type SlotRates, slotsAheadMs } from '../domain/rates.ts'
import { openRedis } from '../redis/open.ts'
import { openRedisRates } from '../redis/rates.ts'
import { createBreakers } from '../workers/breakers.ts'
import { createPace } from '../workers/pace.ts'
import { fallbackRates } from '../workers/rates.ts'
import { needs, testDatabase } from './database.ts'
import { startRedis, withoutRedisServer } from './servers/redis.ts'

const { db, database, open } = await testDatabase()
const sqlOn = (text: string, values: unknown[]) => database.pool.query(text, values)

type Backend = {
  rates: Rates & SlotRates
  other: Rates & SlotRates
  /** As if so much time had passed since the bucket was counted; less than none: it stands still for so long. */
  pass(name: string, ms: number): Promise<void>
  /** As if the next slot were so far away. */
  delaySlot(name: string, ms: number): Promise<void>
}

function suite(name: string, backend: () => Backend, skip: string | false = false): void {
  describe(`rates on ${name}`, { skip }, () => {
    const anHour = 3_600_000

    test('a bucket starts full, gives whole tokens, all it has, and says how long until the next', async () => {
      const { rates, pass } = backend()
      const rate = { name: randomUUID(), perSecond: 10, burst: 3 }
      assert.deepEqual(await rates.count(rate), { granted: 3, waitMs: 0 })
      assert.deepEqual(await rates.take(rate, 2), { granted: 2, waitMs: 0 })
      await pass(rate.name, -anHour)
      assert.deepEqual(await rates.take(rate, 2), { granted: 1, waitMs: 100 })
      await pass(rate.name, -anHour)
      assert.deepEqual(await rates.take(rate, 2), { granted: 0, waitMs: 100 })
      await pass(rate.name, -anHour)
      assert.deepEqual(await rates.count(rate), { granted: 0, waitMs: 100 })
    })

    test('a bucket never holds more than its burst', async () => {
      const { rates, pass } = backend()
      const rate = { name: randomUUID(), perSecond: 10, burst: 3 }
      await rates.take(rate, 3)
      await pass(rate.name, anHour)
      assert.deepEqual(await rates.take(rate, 100), { granted: 3, waitMs: 100 })
    })

    test('two that take at once do not get the same token', async () => {
      const { rates, other } = backend()
      const rate = { name: randomUUID(), perSecond: 0.001, burst: 50 }
      const takes = Array.from({ length: 40 }, (_, i) => (i % 2 ? rates : other).take(rate, 3))
      const granted = (await Promise.all(takes)).reduce((sum, one) => sum + one.granted, 0)
      assert.equal(granted, 50)
    })

    test('slots come one after the other, no further ahead than agreed, then none', async () => {
      const { rates, other } = backend()
      const rate = { name: randomUUID(), perSecond: 0.5 }
      assert.deepEqual(await rates.reserve(rate, 10), { granted: 1, waitMs: 0 })
      const next = await other.reserve(rate, 10)
      assert.equal(next.granted, 0)
      assert.ok(
        next.waitMs > 1000 - slotsAheadMs && next.waitMs <= 2000 - slotsAheadMs,
        `${next.waitMs}`,
      )
    })

    test('slots that two reserve at once are different ones', async () => {
      const { rates, other, delaySlot } = backend()
      const rate = { name: randomUUID(), perSecond: 100 }
      await rates.reserve(rate, 1)
      await delaySlot(rate.name, 0)
      const all = await Promise.all(
        [1, 2, 3, 4].map((i) => (i % 2 ? rates : other).reserve(rate, 3)),
      )
      const granted = all.reduce((sum, one) => sum + one.granted, 0)
      assert.equal(granted, 12)
      // Each begins where the one before it ended, whatever time passed between them.
      const firsts = all.map(({ waitMs }) => waitMs).sort((a, b) => a - b)
      assert.ok(firsts[3]! - firsts[0]! <= 90 + 1, `${firsts}`)
      assert.ok(firsts[3]! > 0, `${firsts}`)
    })

    test('a clock that was set back does not stop the slots', async () => {
      const { rates, delaySlot } = backend()
      const rate = { name: randomUUID(), perSecond: 100 }
      await rates.reserve(rate, 1)
      await delaySlot(rate.name, anHour)
      assert.equal((await rates.reserve(rate, 1)).granted, 1)
    })
  })
}

suite('Postgres', () => ({
  rates: openRates(db),
  other: openRates(open().db),
  async pass(name, ms) {
    await sqlOn(
      `update rate_buckets set filled_at = clock_timestamp() - $2 * interval '1 ms' where name = $1`,
      [name, ms],
    )
  },
  async delaySlot(name, ms) {
    await sqlOn(
      `update rate_slots set next_at = clock_timestamp() + $2 * interval '1 ms' where name = $1`,
      [name, ms],
    )
  },
}))
const redisUrl = process.env.TEST_REDIS_URL
const connect = () => {
  const opened = openRedis({ url: String(redisUrl), name: 'test', commandTimeoutMs: 5000 })
  after(() => opened.close())
  return opened
}
if (redisUrl) {
  const opened = connect()
  const second = connect()
  await Promise.all([opened.ready(), second.ready()])
  const { redis } = opened
  const nowUs = async () => {
    const [s, us] = await redis.time()
    return Number(s) * 1e6 + Number(us)
  }
  suite('Redis', () => ({
    rates: openRedisRates(redis),
    other: openRedisRates(second.redis),
    async pass(name, ms) {
      await redis.hset(`rate:${name}`, 'at', String((await nowUs()) - ms * 1000))
    },
    async delaySlot(name, ms) {
      await redis.set(`rate_slots:${name}`, String((await nowUs()) + ms * 1000))
    },
  }))
} else suite('Redis', () => assert.fail('no Redis'), needs('redis'))

describe('a pace', () => {
  const signal = new AbortController().signal

  test('lets calls of two instances begin evenly, none before its time', async () => {
    const rate = { name: randomUUID(), perSecond: 50 }
    const paces = [
      createPace({ slots: openRates(db), rate }),
      createPace({ slots: openRates(open().db), rate }),
    ]
    const begun: number[] = []
    const call = async (i: number) => {
      await paces[i % 2]!.next(signal)
      begun.push(performance.now())
    }
    const since = performance.now()
    await Promise.all(Array.from({ length: 40 }, (_, i) => call(i)))
    // The last of 40 at 50 a second: late on a slow machine, and never early.
    assert.ok(begun[39]! - since >= (39 * 1000) / 50 - 5, `${begun[39]! - since} ms`)
    for (let i = 0; i + 10 < begun.length; i++) {
      assert.ok(begun[i + 10]! - begun[i]! > 100, `ten in ${begun[i + 10]! - begun[i]!} ms`)
    }
  })

  test('forgets who cannot wait, and goes on with the others', async () => {
    const pace = createPace({ slots: openRates(db), rate: { name: randomUUID(), perSecond: 20 } })
    const stop = new AbortController()
    const waiting = [pace.next(signal), pace.next(stop.signal), pace.next(signal)]
    stop.abort(new Error('stop'))
    await assert.rejects(waiting[1]!, /stop/)
    await Promise.all([waiting[0], waiting[2]])
    await assert.rejects(pace.next(stop.signal), /stop/)
  })

  test('tells all who wait that nobody counts, and works again when somebody does', async () => {
    let isAway = true
    const slots: SlotRates = {
      async reserve() {
        if (isAway) throw new Error('away')
        return { granted: 1, waitMs: 0 }
      },
    }
    const pace = createPace({ slots, rate: { name: 'any', perSecond: 100 } })
    const failed = await Promise.allSettled([pace.next(signal), pace.next(signal)])
    assert.deepEqual(
      failed.map(({ status }) => status),
      ['rejected', 'rejected'],
    )
    isAway = false
    await pace.next(signal)
  })
})

test('Redis goes and comes: Postgres counts meanwhile, and nobody begins while they change', {
  skip: withoutRedisServer(),
}, async () => {
  const server = await startRedis()
  const opened = openRedis({ url: `redis://127.0.0.1:${server.port}`, name: 'test' })
  after(() => opened.close())
  await opened.ready()
  let now = 0
  const log = pino({ level: 'silent' })
  const breaker = createBreakers({ log, registry: new Registry(), now: () => now })('redis')
  const rates = fallbackRates({
    redis: openRedisRates(opened.redis),
    postgres: openRates(db),
    breaker,
    now: () => now,
  })
  const rate = { name: randomUUID(), perSecond: 100, burst: 5 }
  assert.equal((await rates.take(rate, 1)).granted, 1)
  await server.kill()
  assert.deepEqual(await rates.take(rate, 1), { granted: 0, waitMs: 2000 })
  now += 2000
  assert.equal((await rates.take(rate, 1)).granted, 1)
  await server.start()
  await opened.ready(60_000)
  now += 1000
  assert.deepEqual(await rates.take(rate, 1), { granted: 0, waitMs: 2000 })
  now += 2000
  assert.equal((await rates.take(rate, 1)).granted, 1)
  const { rowCount } = await sqlOn('select from rate_buckets where name = $1', [rate.name])
  assert.equal(rowCount, 1)
})
