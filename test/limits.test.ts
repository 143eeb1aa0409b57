// One suite over both rate limiters, and the arithmetic they share. Rows and keys of earlier minutes are planted, so
// that nothing waits for a minute to pass.

import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { after, describe, test } from 'node:test'
import fc from 'fast-check'
import { openLimits } from '../db/limits.ts'
import { grantable, type RateLimiter, retryAfterMs, share, type Taken } from '../domain/limits.ts'
import { openRedisLimits } from '../redis/limits.ts'
import { openRedis } from '../redis/open.ts'
import { needs, testDatabase } from './database.ts'

const { db, open, database } = await testDatabase()
const { pool } = database

const thisMinute = () => Math.floor(Date.now() / 60_000)

/** Runs `body` again on a new subject when the minute turned meanwhile. */
async function inOneMinute(body: (subject: string) => Promise<void>): Promise<void> {
  for (;;) {
    const minute = thisMinute()
    try {
      await body(`user:${randomUUID()}`)
      return
    } catch (error) {
      if (thisMinute() === minute) throw error
    }
  }
}

type Backend = {
  limiters: [RateLimiter, RateLimiter]
  plant(subject: string, minutesAgo: number, count: number): Promise<void>
  /** The clock it decides by. */
  nowMs(): Promise<number>
  /** What is counted for this minute. */
  counted(subject: string): Promise<number>
}

function postgres(): Backend {
  return {
    limiters: [openLimits(open().db), openLimits(open().db)],
    async plant(subject, minutesAgo, count) {
      await pool.query('insert into rate_limits (subject, minute, count) values ($1, $2, $3)', [
        subject,
        thisMinute() - minutesAgo,
        count,
      ])
    },
    async nowMs() {
      const { rows } = await pool.query(
        'select floor(extract(epoch from clock_timestamp()) * 1000)::float8 as ms',
      )
      return rows[0].ms
    },
    async counted(subject) {
      const { rows } = await pool.query(
        'select count from rate_limits where subject = $1 and minute = $2',
        [subject, thisMinute()],
      )
      return rows[0]?.count ?? 0
    },
  }
}

async function redis(): Promise<Backend> {
  const opened = [1, 2].map(() =>
    openRedis({
      url: process.env.TEST_REDIS_URL ?? '',
      name: 'test',
      commandTimeoutMs: 10_000,
    }),
  )
  after(() => Promise.all(opened.map((one) => one.close())))
  await Promise.all(opened.map((one) => one.ready()))
  const [a, b] = opened.map((one) => one.redis)
  if (!a || !b) throw new Error('two clients were opened')
  const key = (subject: string, minute: number) => `rate_limit:${subject}:${minute}`
  return {
    limiters: [openRedisLimits(a), openRedisLimits(b)],
    async plant(subject, minutesAgo, count) {
      await a.set(key(subject, thisMinute() - minutesAgo), count, 'EX', 120)
    },
    nowMs: async () => Date.now(),
    counted: async (subject) => Number(await a.get(key(subject, thisMinute()))),
  }
}

const granted = (taken: Taken[]) => taken.filter((one) => one.granted).length
const times = <T>(count: number, each: (i: number) => T): T[] =>
  Array.from({ length: count }, (_, i) => each(i))

for (const name of ['postgres', 'redis'] as const) {
  describe(name, { skip: name === 'redis' && needs('redis') }, async () => {
    if (name === 'redis' && needs('redis')) return
    const { limiters, plant, nowMs, counted } = await { postgres, redis }[name]()
    const [a, b] = limiters

    test('ten a minute are granted one by one, the next is told to wait', () =>
      inOneMinute(async (subject) => {
        for (let left = 9; left >= 0; left--) {
          const taken = await a.take({ subject, perMinute: 10 })
          assert.equal(taken.granted, true)
          assert.equal(taken.remaining, left)
          assert.equal(taken.retryAfterMs > 0, left === 0)
        }
        const refused = await b.take({ subject, perMinute: 10 })
        assert.equal(refused.granted, false)
        assert.equal(refused.remaining, 0)
        assert.ok(refused.retryAfterMs > 0 && refused.retryAfterMs <= 66_000)
      }))

    test('requests that come at once are granted in the order they came', () =>
      inOneMinute(async (subject) => {
        const taken = await Promise.all(times(15, () => a.take({ subject, perMinute: 10 })))
        assert.deepEqual(
          taken.map((one) => one.granted),
          times(15, (i) => i < 10),
        )
        assert.deepEqual(
          taken.map((one) => one.remaining),
          times(15, (i) => Math.max(0, 9 - i)),
        )
      }))

    test('refused requests are not counted', () =>
      inOneMinute(async (subject) => {
        await Promise.all(times(30, (i) => limiters[i % 2]?.take({ subject, perMinute: 10 })))
        await a.take({ subject, perMinute: 10 })
        assert.equal(await counted(subject), 10)
      }))

    test('the minute before weighs by the share of it that the window still covers', () =>
      inOneMinute(async (subject) => {
        await plant(subject, 1, 1000)
        const most = (nowMs: number) => grantable(2000, 1000, 0, 1000, nowMs)
        const least = most(await nowMs())
        const taken = granted(
          await Promise.all(times(1100, () => a.take({ subject, perMinute: 1000 }))),
        )
        assert.ok(taken >= Math.min(least, 1100) && taken <= most(await nowMs()), `${taken}`)
      }))

    test('the minute before that weighs nothing', () =>
      inOneMinute(async (subject) => {
        await plant(subject, 2, 1000)
        assert.equal((await a.take({ subject, perMinute: 10 })).remaining, 9)
      }))

    test('two processes together never grant more than the limit, and all of it', () =>
      inOneMinute(async (subject) => {
        const taken = await Promise.all(
          times(1000, (i) => (i % 2 ? a : b).take({ subject, perMinute: 100 })),
        )
        assert.equal(granted(taken), 100)
        assert.equal(await counted(subject), 100)
      }))

    test('many users at once in two processes do not touch each other’s limits', () =>
      inOneMinute(async (subject) => {
        const taken = await Promise.all(
          times(40 * 20, (i) =>
            (Math.floor(i / 40) % 2 ? a : b).take({
              subject: `${subject}${i % 40}`,
              perMinute: 10,
            }),
          ),
        )
        for (const user of times(40, (i) => i)) {
          assert.equal(granted(taken.filter((_, i) => i % 40 === user)), 10)
        }
      }))

    test('a limit of 0 is turned off: all is granted and nothing counted', () =>
      inOneMinute(async (subject) => {
        const taken = await Promise.all(times(100, () => a.take({ subject, perMinute: 0 })))
        assert.equal(granted(taken), 100)
        assert.equal(await counted(subject), 0)
      }))
  })
}

describe('postgres alone', () => {
  const limits = openLimits(db)

  test('pruning deletes the minutes that no window reaches', async () => {
    while ((await limits.prune()) > 0);
    const backend = postgres()
    const subject = `user:${randomUUID()}`
    for (const minutesAgo of [0, 1, 5, 6]) await backend.plant(subject, minutesAgo, 1)
    assert.equal(await limits.prune(), 2)
    assert.equal(await limits.prune(), 0)
  })

  test('a user id that Postgres cannot store fails alone', async () => {
    const [good, bad] = await Promise.allSettled([
      limits.take({ subject: `user:${randomUUID()}`, perMinute: 10 }),
      limits.take({ subject: 'user:\0', perMinute: 10 }),
    ])
    assert.equal(good.status, 'fulfilled')
    assert.equal(bad.status, 'rejected')
  })
})

test(
  'the Redis key is the one of the contract and lives two minutes',
  { skip: needs('redis') },
  () =>
    inOneMinute(async (subject) => {
      const {
        redis: client,
        ready,
        close,
      } = openRedis({
        url: process.env.TEST_REDIS_URL ?? '',
        name: 'test',
        commandTimeoutMs: 10_000,
      })
      try {
        await ready()
        await openRedisLimits(client).take({ subject, perMinute: 10 })
        const key = `rate_limit:${subject}:${thisMinute()}`
        assert.equal(await client.get(key), '1')
        const life = await client.ttl(key)
        assert.ok(life > 110 && life <= 120)
      } finally {
        await close()
      }
    }),
)

describe('the arithmetic', () => {
  const counts = fc.record({
    perMinute: fc.integer({ min: 1, max: 2000 }),
    current: fc.integer({ min: 0, max: 2000 }),
    previous: fc.integer({ min: 0, max: 2000 }),
    nowMs: fc.integer({ min: 1_700_000_040_000, max: 1_700_000_160_000 }),
  })

  test('who waits as long as told is granted', () => {
    fc.assert(
      fc.property(counts, ({ perMinute, current, previous, nowMs }) => {
        const wait = retryAfterMs(perMinute, current, previous, nowMs)
        const turns = Math.floor((nowMs + wait) / 60_000) - Math.floor(nowMs / 60_000)
        const [now, before] = [[current, previous] as const, [0, current] as const][turns] ?? [0, 0]
        assert.ok(wait >= 1 && wait <= 120_001)
        if (grantable(1, perMinute, current, previous, nowMs) === 1) return
        assert.equal(grantable(1, perMinute, now, before, nowMs + wait), 1)
      }),
      { numRuns: 20_000 },
    )
  })

  test('a group is granted what its members would be granted one by one', () => {
    fc.assert(
      fc.property(counts, fc.integer({ min: 1, max: 50 }), (given, want) => {
        const { perMinute, previous, nowMs } = given
        let { current } = given
        const single = times(want, () => {
          const [taken] = share(1, perMinute, current, previous, nowMs) as [Taken]
          if (taken.granted) current++
          return taken
        })
        assert.deepEqual(
          share(want, perMinute, given.current, previous, nowMs).map(plain),
          single.map(plain),
        )
      }),
    )
  })

  /** Those that come together are told the wait as it is after them all. */
  const plain = ({ granted, remaining }: Taken) => ({ granted, remaining })
})
