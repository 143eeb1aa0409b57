// The inbox over any broker, on a real Postgres and a real Redis: what becomes of duplicates, of an event that fails, of
// what is in hand when the database is away. The brokers themselves: rabbitmq.test.ts, brokers.test.ts.

import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { getEventListeners } from 'node:events'
import { after, before, beforeEach, describe, test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { sql } from 'kysely'
import { buryNew } from '../db/bury.ts'
import { type Jobs, openJobs } from '../db/jobs.ts'
import { transaction } from '../db/transaction.ts'
import { putUser } from '../db/users.ts'
import type { Consumer, Delivery, Seen } from '../domain/broker.ts'
import { openRedis } from '../redis/open.ts'
import { openProcessed } from '../redis/processed.ts'
import { createArrivals } from '../workers/arrivals.ts'
import { createHandler, type Handler } from '../workers/inbox/inbox.ts'
import { remoteInboxPass } from '../workers/inbox/remote.ts'
import { forgiving } from '../workers/inbox/seen.ts'
import { createLog } from '../workers/log.ts'
import { keptOf } from '../workers/unread.ts'
import { needs, type TestDatabase, testDatabase } from './database.ts'
import { completed, toCloudEvent } from './events.ts'
import { startRedis, withoutRedisServer } from './servers/redis.ts'

const { signal } = new AbortController()
const log = createLog('test', 'silent')
const ownRedis = withoutRedisServer() ? undefined : await startRedis()

describe('the inbox over a broker', () => {
  let fresh: TestDatabase
  let jobs: Jobs
  const worker = { log, failed() {} }

  before(async () => {
    fresh = await testDatabase()
    jobs = openJobs(fresh.database)
    await transaction(fresh.db, (tx) => putUser(tx, { userId: 'anna', email: 'anna@example.org' }))
  })
  after(() => jobs.close())
  beforeEach(async () => {
    await sql`delete from pgboss.job`.execute(fresh.db)
    await sql`truncate inbox_processed, job_audits, job_errors`.execute(fresh.db)
  })

  /** What a broker brings, and what was acknowledged. */
  function bring(bodies: readonly (object | string)[]) {
    const waiting: Delivery[] = bodies.map((body) => ({
      body: Buffer.from(typeof body === 'string' ? body : JSON.stringify(body)),
    }))
    const acked: Delivery[] = []
    const consumer: Consumer = {
      name: 'list',
      away: () => undefined,
      take: async (max) => waiting.splice(0, max),
      ack: async (deliveries) => void acked.push(...deliveries),
      close: async () => {},
    }
    return { consumer, acked }
  }

  function open(consumer: Consumer, given: { handle?: Handler; seen?: Seen } = {}) {
    const counted: object[] = []
    const count = (counts: object) => void counted.push(counts)
    const handle = given.handle ?? createHandler({ jobs, worker, onProcessed: count })
    const common = { db: fresh.db, jobs, worker, consumer, batchMax: 100, onCounted: count }
    const pass = remoteInboxPass({ ...common, handle, seen: given.seen })
    return { pass: () => pass(signal, Number.POSITIVE_INFINITY), counted }
  }

  const jobsIn = async (queue: string) => {
    const { rows } = await sql<{ id: string }>`
      select id from pgboss.job where name = ${queue}`.execute(fresh.db)
    return rows.map(({ id }) => id)
  }
  const order = () => toCloudEvent(completed(randomUUID(), 1))

  test('an event that fails becomes a job, its neighbours go on, and all are acknowledged', async () => {
    const events = Array.from({ length: 9 }, order)
    const bad = events[4]?.id ?? ''
    const handle = createHandler({ jobs, worker })
    const { consumer, acked } = bring(events)
    const { pass } = open(consumer, {
      handle: async (tx, some) => {
        const done = await handle(tx, some)
        if (some.some(({ id }) => id === bad)) throw new Error('this one is bad')
        return done
      },
    })
    assert.equal(await pass(), 9)
    assert.equal((await jobsIn('email')).length, 8)
    assert.deepEqual(await jobsIn('inbox'), [bad])
    assert.equal(acked.length, 9)
  })

  test('while the database is away nothing is acknowledged, and the same is tried again', async () => {
    const handle = createHandler({ jobs, worker })
    const { consumer, acked } = bring([order(), order()])
    let isAway = true
    const { pass } = open(consumer, {
      handle: async (tx, some) => {
        if (isAway) throw Object.assign(new Error('gone'), { code: 'ECONNREFUSED' })
        return await handle(tx, some)
      },
    })
    await assert.rejects(pass(), /gone/)
    assert.deepEqual(acked, [])
    isAway = false
    assert.equal(await pass(), 2)
    assert.equal(acked.length, 2)
    assert.equal((await jobsIn('email')).length, 2)
  })

  test('the same bytes that cannot be read are buried once', async () => {
    const { consumer, acked } = bring(['nonsense', 'nonsense', '[1]'])
    const { pass, counted } = open(consumer)
    assert.equal(await pass(), 3)
    assert.equal((await jobsIn('inbox.dead')).length, 2)
    assert.equal(acked.length, 3)
    assert.equal(counted.length, 3)
  })

  test('the same bytes are buried once, also by two inboxes at once', async () => {
    const burial = { jobId: randomUUID(), queue: 'inbox', attempt: 1, data: {} } as const
    const one = await fresh.db.startTransaction().setIsolationLevel('read committed').execute()
    assert.ok(await buryNew(one, burial, new Error('no')))
    const other = transaction(fresh.db, (tx) => buryNew(tx, burial, new Error('no')), {
      isolation: 'read committed',
    })
    await Promise.race([other, sleep(200)])
    await one.commit().execute()
    assert.equal(await other, undefined)
    assert.equal((await jobsIn('inbox.dead')).length, 1)
  })

  test('what Postgres cannot store is buried, and the messages behind it are handled', async () => {
    const good = order()
    const named = (name: string) => JSON.stringify(order()).replace('"Opening night"', name)
    const deep = (inner: string) => `{"a":${'['.repeat(20_000)}${']'.repeat(20_000)}${inner}}`
    const { consumer, acked } = bring([
      named('"a\\u0000b"'),
      named('"\\ud800"'),
      named('"Opening night","\\ud800":1,"x":"y"'),
      JSON.stringify(order()).replace('"data":{', `"data":{"more":${deep('')},`),
      '{"a":"\\ud800"}',
      '{"a\\u0000":1}',
      deep(''),
      '{"a":1e400}',
      good,
    ])
    const { pass } = open(consumer)
    assert.equal(await pass(), 9)
    assert.equal(acked.length, 9)
    assert.equal((await jobsIn('email')).length, 1)
    assert.equal((await jobsIn('inbox.dead')).length, 8)
  })

  test('an event that can become no job is buried', async () => {
    const { consumer, acked } = bring([order(), order()])
    const refusing = { ...jobs, send: () => Promise.reject(new Error('not this one')) }
    const pass = remoteInboxPass({
      ...{ db: fresh.db, jobs: refusing, worker, consumer, batchMax: 100 },
      handle: () => Promise.reject(new Error('bad')),
    })
    assert.equal(await pass(signal, Number.POSITIVE_INFINITY), 2)
    assert.equal(acked.length, 2)
    assert.equal((await jobsIn('inbox.dead')).length, 2)
  })

  test('an id in capitals is that id: it has its effect, once', async () => {
    const event = order()
    const loud = { ...event, id: event.id.toUpperCase() }
    const { consumer } = bring([loud, event, loud])
    const { pass, counted } = open(consumer)
    assert.equal(await pass(), 3)
    assert.equal((await jobsIn('email')).length, 1)
    assert.deepEqual(counted, [{ processed: 1, duplicates: 2, unreachable: 0 }])
  })

  test('Redis tells of duplicates before the database is asked, after the commit only', {
    skip: needs('redis'),
  }, async () => {
    const opened = openRedis({ url: process.env.TEST_REDIS_URL ?? '', name: 'test' })
    await opened.ready()
    const seen = openProcessed(opened.redis)
    const event = order()
    const failing = bring([event])
    const failed = open(failing.consumer, {
      seen,
      handle: () => Promise.reject(Object.assign(new Error('gone'), { code: 'ECONNREFUSED' })),
    })
    await assert.rejects(failed.pass(), /gone/)
    assert.equal((await seen.among([event.id])).size, 0)
    const first = open(bring([event]).consumer, { seen })
    await first.pass()
    assert.equal(await opened.redis.get(`outbox:processed:${event.id}`), '1')
    const lifeSeconds = await opened.redis.ttl(`outbox:processed:${event.id}`)
    assert.ok(lifeSeconds > 8 * 86_400 - 60 && lifeSeconds <= 8 * 86_400)
    const again = open(bring([event]).consumer, {
      seen,
      handle: () => assert.fail('the database was asked'),
    })
    assert.equal(await again.pass(), 1)
    assert.deepEqual(again.counted, [{ duplicates: 1 }])
    await opened.close()
  })

  test('with Redis away the table alone decides', { skip: withoutRedisServer() }, async () => {
    const opened = openRedis({ url: `redis://127.0.0.1:${ownRedis?.port}`, name: 'test' })
    await opened.ready()
    const seen = forgiving(openProcessed(opened.redis), log)
    await ownRedis?.kill()
    const event = order()
    const first = open(bring([event]).consumer, { seen })
    await first.pass()
    const again = open(bring([event]).consumer, { seen })
    await again.pass()
    assert.deepEqual(again.counted, [{ processed: 0, duplicates: 1, unreachable: 0 }])
    assert.equal((await jobsIn('email')).length, 1)
    await opened.close()
  })
})

test('of what cannot be read as much is kept as can be', () => {
  assert.deepEqual(keptOf(Buffer.from('{"type":"x"}')), { type: 'x' })
  assert.deepEqual(keptOf(Buffer.from('[1]')), { bytes: 3, text: '[1]' })
  assert.deepEqual(keptOf(Buffer.from('{"a":"\\u0000"}')), {
    bytes: 14,
    base64: Buffer.from('{"a":"\\u0000"}').toString('base64'),
  })
  assert.deepEqual(keptOf(Buffer.from([0xff, 0xfe])), { bytes: 2, base64: '//4=' })
  const large = keptOf(Buffer.alloc(1_000_000, 'x')) as { bytes: number; base64: string }
  assert.equal(large.bytes, 1_000_000)
  assert.ok(large.base64.length < 400_000)
})

test('waiting for messages leaves nothing behind', async () => {
  const arrivals = createArrivals<number>()
  for (let i = 0; i < 20; i++) {
    setImmediate(() => arrivals.add(i))
    assert.deepEqual(await arrivals.take(10, 60_000, signal), [i])
  }
  assert.equal(getEventListeners(signal, 'abort').length, 0)
})
