// What the shim does when Redis dies, hangs or comes back, and when Postgres does not count either.

import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { after, describe, test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import pino from 'pino'
import { Registry } from 'prom-client'
import { openIdempotency } from '../db/idempotency.ts'
import { openLimits } from '../db/limits.ts'
import { saveReceipts } from '../db/receipts.ts'
import { transaction } from '../db/transaction.ts'
import type { RateLimiter } from '../domain/limits.ts'
import { openRedisIdempotency } from '../redis/idempotency.ts'
import { openRedisLimits } from '../redis/limits.ts'
import { openRedis, RedisUnavailable } from '../redis/open.ts'
import { createBreakers } from '../workers/breakers.ts'
import {
  createLocalLimiter,
  fallbackIdempotency,
  fallbackLimiter,
} from '../workers/http/fallback.ts'
import { testDatabase } from './database.ts'
import { startRedis, withoutRedisServer } from './servers/redis.ts'

const { db, database } = await testDatabase()
const { pool } = database

function watched(options: { openMs?: number; now?: () => number } = {}) {
  const lines: { level: number; msg: string }[] = []
  const log = pino({ base: null }, { write: (line: string) => lines.push(JSON.parse(line)) })
  const registry = new Registry()
  const active = async () => {
    const { values } = (await registry.getSingleMetric('fallback_active')?.get()) ?? { values: [] }
    return values.find(({ labels }) => labels.dependency === 'redis')?.value
  }
  return { lines, active, breakers: createBreakers({ log, registry, ...options }) }
}

const subject = () => `user:${randomUUID()}`

async function until(reached: () => Promise<boolean>): Promise<void> {
  const giveUp = performance.now() + 60_000
  while (!(await reached())) {
    assert.ok(performance.now() < giveUp, 'not reached within 60 s')
    await sleep(10)
  }
}

async function tookMs(work: () => Promise<unknown>): Promise<number> {
  const since = performance.now()
  await work()
  return performance.now() - since
}

const counted = async (of: string): Promise<number> => {
  const { rows } = await pool.query(
    'select coalesce(sum(count), 0)::int as n from rate_limits where subject = $1',
    [of],
  )
  return rows[0].n
}

describe('a breaker', () => {
  test('lets one caller try each second while it is open, and logs each change once', async () => {
    let ms = 0
    const { lines, active, breakers } = watched({ now: () => ms })
    const breaker = breakers('redis')
    assert.equal(breaker.allows() && breaker.allows(), true)
    breaker.failed(new Error('away'))
    breaker.failed(new Error('away'))
    assert.equal(breaker.allows(), false)
    assert.equal(await active(), 1)
    ms = 1000
    assert.deepEqual([breaker.allows(), breaker.allows()], [true, false])
    breaker.failed(new Error('still away'))
    ms = 2000
    assert.deepEqual([breaker.allows(), breaker.allows()], [true, false])
    breaker.worked()
    assert.equal(breaker.allows() && breaker.allows(), true)
    assert.equal(await active(), 0)
    assert.deepEqual(
      lines.map((line) => line.level),
      [40, 30],
    )
  })

  test('does not wait for ever for a caller that tried and never came back', () => {
    let ms = 0
    const breaker = watched({ now: () => ms }).breakers('redis')
    breaker.failed(new Error('away'))
    ms = 1000
    assert.equal(breaker.allows(), true)
    ms = 2000
    assert.equal(breaker.allows(), true)
  })
})

describe('with Redis in front', { skip: withoutRedisServer() }, () => {
  if (withoutRedisServer()) return

  async function shim() {
    const server = await startRedis()
    const opened = openRedis({ url: `redis://127.0.0.1:${server.port}`, name: 'test' })
    after(opened.close)
    await opened.ready()
    const { redis } = opened
    const { lines, active, breakers } = watched({ openMs: 50 })
    const [breaker, postgresBreaker] = [breakers('redis'), breakers('postgres')]
    const postgres = openIdempotency(db)
    const limits = fallbackLimiter({
      tiers: [
        { limiter: openRedisLimits(redis), breaker },
        { limiter: openLimits(db), breaker: postgresBreaker },
      ],
      local: createLocalLimiter(),
    })
    const store = fallbackIdempotency({
      redis: openRedisIdempotency({ redis, find: postgres.find }),
      postgres,
      breaker,
      isRedis: (error) => error instanceof RedisUnavailable,
    })
    const back = () =>
      until(async () => {
        await limits.take({ subject: subject(), perMinute: 10 })
        return (await active()) === 0
      })
    return { server, redis, limits, store, lines, active, back }
  }

  const away = {
    'is killed': (server: Awaited<ReturnType<typeof startRedis>>) => server.kill(),
    hangs: async (server: Awaited<ReturnType<typeof startRedis>>) => server.pause(),
  }
  const returns = {
    'is killed': (server: Awaited<ReturnType<typeof startRedis>>) => server.start(),
    hangs: async (server: Awaited<ReturnType<typeof startRedis>>) => server.resume(),
  }

  for (const how of ['is killed', 'hangs'] as const) {
    test(`limits go on in Postgres within one timeout when Redis ${how}, and return`, async () => {
      const { server, redis, limits, lines, active, back } = await shim()
      const before = subject()
      await limits.take({ subject: before, perMinute: 10 })
      assert.equal(await counted(before), 0)

      await away[how](server)
      const user = subject()
      const ms = await tookMs(() =>
        Promise.all(
          Array.from({ length: 20 }, () => limits.take({ subject: user, perMinute: 10 })),
        ),
      )
      // One after the other they would take 20 × 250 ms.
      assert.ok(ms < 10 * 250, `${ms} ms`)
      assert.equal(await counted(user), 10)
      assert.equal(await active(), 1)

      await returns[how](server)
      await back()
      const later = subject()
      await limits.take({ subject: later, perMinute: 10 })
      assert.equal(await counted(later), 0)
      const minute = Math.floor(Date.now() / 60_000)
      const kept = await redis.mget([0, 1].map((ago) => `rate_limit:${later}:${minute - ago}`))
      assert.ok(kept.includes('1'))
      assert.deepEqual(
        lines.map((line) => line.level),
        [40, 30],
      )
    })

    test(`a write begun before Redis ${how} is finished, and its retry replayed`, async () => {
      const { server, store, back } = await shim()
      const key = randomUUID().replaceAll('-', '')
      const response = { status: 201, headers: {}, body: '{"ok":"ja, schön"}' }
      const begun = await store.begin(key, 'f')
      assert.equal(begun.is, 'mine')
      if (begun.is !== 'mine') return
      await transaction(db, (tx) =>
        saveReceipts(tx, [{ receipt: { kind: 'key', key, fingerprint: 'f' }, response }]),
      )
      await away[how](server)
      const ms = await tookMs(async () => {
        await store.finish(key, 'f', begun.token, response)
        assert.deepEqual(await store.begin(key, 'f'), { is: 'done', response })
        assert.deepEqual(await store.begin(key, 'other'), { is: 'reused' })
      })
      assert.ok(ms < 5000, `${ms} ms`)
      await returns[how](server)
      await back()
      assert.deepEqual(await store.begin(key, 'f'), { is: 'done', response })
    })

    test(`a lock taken in Postgres while Redis ${how} is freed there`, async () => {
      const { server, store, back } = await shim()
      await away[how](server)
      const key = randomUUID().replaceAll('-', '')
      const begun = await store.begin(key, 'f')
      assert.equal(begun.is, 'mine')
      assert.equal((await store.begin(key, 'f')).is, 'running')
      await returns[how](server)
      await back()
      if (begun.is === 'mine') await store.release(key, begun.token)
      const { rowCount } = await pool.query('select from idempotency_locks where key = $1', [key])
      assert.equal(rowCount, 0)
      // What a hanging Redis was asked for before is taken back as soon as it answers.
      const again = await store.begin(key, 'f')
      assert.equal(again.is, 'mine')
    })
  }

  test('a fault of Postgres does not close the way to Redis', async () => {
    const { active, breakers } = watched()
    const fault = new Error('postgres is away')
    const broken = { begin: () => Promise.reject(fault), finish: fail, release: fail }
    const store = fallbackIdempotency({
      redis: broken,
      postgres: openIdempotency(db),
      breaker: breakers('redis'),
      isRedis: (error) => error instanceof RedisUnavailable,
    })
    await assert.rejects(store.begin('k', 'f'), fault)
    assert.equal(await active(), 0)
  })
})

const fail = () => Promise.reject(new Error('not expected'))

describe('without any store that counts', () => {
  test('a Postgres that hangs holds a request up once, then this process counts alone', async () => {
    const { lines, breakers } = watched()
    const limits = fallbackLimiter({
      tiers: [{ limiter: openLimits(db), breaker: breakers('postgres') }],
      local: createLocalLimiter({ part: 0.5 }),
      timeoutMs: 100,
    })
    const blocker = await pool.connect()
    try {
      await blocker.query('begin; lock table rate_limits in access exclusive mode')
      const user = subject()
      const first = await tookMs(() => limits.take({ subject: user, perMinute: 10 }))
      assert.ok(first >= 99 && first < 5000, `${first} ms`)
      const taken = await Promise.all(
        Array.from({ length: 10 }, () => limits.take({ subject: user, perMinute: 10 })),
      )
      assert.equal(taken.filter((one) => one.granted).length, 4)
      assert.equal(lines.length, 1)
    } finally {
      await blocker.query('rollback')
      blocker.release()
    }
  })

  test('a limiter that throws is passed over', async () => {
    const { breakers } = watched()
    const broken: RateLimiter = { take: fail }
    const limits = fallbackLimiter({
      tiers: [
        { limiter: broken, breaker: breakers('redis') },
        { limiter: openLimits(db), breaker: breakers('postgres') },
      ],
      local: broken,
    })
    const user = subject()
    assert.equal((await limits.take({ subject: user, perMinute: 10 })).granted, true)
    assert.equal(await counted(user), 1)
  })
})

describe('the count of one process', () => {
  test('is a part of the limit, at least one, and slides with the minute', async () => {
    let nowMs = 60_000 * 1000
    const local = createLocalLimiter({ part: 0.4, now: () => nowMs })
    const grant = async (perMinute: number) =>
      (await local.take({ subject: 'global', perMinute })).granted
    for (let i = 0; i < 4; i++) assert.equal(await grant(10), true)
    assert.equal(await grant(10), false)
    nowMs += 60_000
    assert.equal(await grant(10), false)
    nowMs += 30_000
    assert.equal(await grant(10), true)
    nowMs += 120_000
    assert.equal(await grant(1), true)
    assert.equal(await grant(1), false)
  })

  test('keeps no more subjects than it may: the rest share one count', async () => {
    const local = createLocalLimiter({ part: 1, subjectsMax: 2, now: () => 60_000 * 1000 })
    const grant = async (of: string) => (await local.take({ subject: of, perMinute: 1 })).granted
    assert.deepEqual([await grant('a'), await grant('b'), await grant('c')], [true, true, true])
    assert.equal(await grant('d'), false)
    assert.equal(await grant('a'), false)
  })
})
