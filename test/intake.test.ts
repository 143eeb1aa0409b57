// The intake: what lies on Redis lists is a job once and for all, whenever the intake, Redis or Postgres goes away.

import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { after, before, beforeEach, describe, test } from 'node:test'
import { Redis } from 'ioredis'
import { sql } from 'kysely'
import { type Jobs, openJobs } from '../db/jobs.ts'
import type { EmailJob } from '../domain/emails.ts'
import type { PushJob } from '../domain/pushes.ts'
import { type IntakeList, openList } from '../redis/lists.ts'
import { type OpenedRedis, openRedis } from '../redis/open.ts'
import { aliveLoop, intakePass } from '../workers/intake/intake.ts'
import { listOf, listQueues, readItem } from '../workers/intake/items.ts'
import { createLog } from '../workers/log.ts'
import { type TestDatabase, testDatabase } from './database.ts'
import { emptyJobs, everyJob } from './jobRows.ts'
import { startRedis, withoutRedisServer } from './servers/redis.ts'
import { endWorkers, exited, startWorker, until } from './worker.ts'

const signal = new AbortController().signal
const all = Number.POSITIVE_INFINITY
const worker = { log: createLog('test', 'silent'), failed() {} }
const push = (changed: Partial<PushJob> = {}): PushJob => ({
  job_id: randomUUID(),
  type: 'push',
  template: 'ticket_ready',
  user_id: 'anna',
  fcm_tokens: ['phone'],
  payload: { title: 'Your tickets are here', body: 'Opening night' },
  created_at: '2026-12-01T10:00:00.000Z',
  ...changed,
})
const mail = (): EmailJob => ({
  job_id: randomUUID(),
  type: 'email',
  template: 'order_confirmation',
  recipient: 'anna@example.org',
  payload: {
    order_id: '1',
    event_name: 'Opening night',
    starts_at: '2027-01-01T19:00:00.000Z',
    section: 'A',
    quantity: 1,
    total: { amount_minor: 4500, currency: 'EUR' },
  },
  created_at: '2026-12-01T10:00:00.000Z',
  attempts: 0,
  max_attempts: 3,
})

test('an item without an id has one of its bytes, and another id becomes a UUID', () => {
  const { job_id: _, ...nameless } = push()
  const item = Buffer.from(JSON.stringify(nameless))
  assert.equal(readItem('push', item).id, readItem('push', Buffer.from(item)).id)
  assert.notEqual(readItem('push', item).id, readItem('push', Buffer.from(`${item} `)).id)
  const named = readItem('push', Buffer.from(JSON.stringify({ ...push(), job_id: 'order-7' })))
  assert.match(String(named.id), /^[0-9a-f]{8}-/)
  assert.equal((named.data as PushJob).job_id, 'order-7')
  const { created_at: _at, ...ageless } = push()
  const made = readItem('push', Buffer.from(JSON.stringify(ageless))).data as PushJob
  assert.ok(Date.parse(String(made.created_at)) > Date.parse('2026-01-01'))
  const nul = JSON.stringify(push({ user_id: 'x', payload: { title: '\0', body: '' } }))
  assert.throws(() => readItem('push', Buffer.from(nul)), /cannot be stored/)
})

const skip = withoutRedisServer()
// At the top of the file, to live as long as it.
const server = skip
  ? (undefined as never)
  : await startRedis(['appendonly yes', 'appendfsync always'])

describe('the intake', { skip }, () => {
  let fresh: TestDatabase
  let jobs: Jobs
  let url: string
  let redis: Redis
  let opened: OpenedRedis

  before(async () => {
    fresh = await testDatabase()
    jobs = openJobs(fresh.database)
    url = `redis://127.0.0.1:${server.port}`
    redis = new Redis(url, { retryStrategy: () => 100, maxRetriesPerRequest: null })
    redis.on('error', () => {})
    opened = openRedis({ url, name: 'test', commandTimeoutMs: 6000 })
    await opened.ready()
  })
  after(async () => {
    await endWorkers()
    redis.disconnect()
    await opened.close()
    await jobs.close()
  })
  beforeEach(async () => {
    await emptyJobs(fresh.db)
    await sql`delete from job_audits`.execute(fresh.db)
    await redis.flushall()
    // A test before may have crashed the server: this client comes back by itself, some time later.
    await until(() =>
      opened.redis.ping().then(
        () => true,
        () => false,
      ),
    )
  })

  const list = (self = 'me', queue: (typeof listQueues)[number] = 'push') =>
    openList(opened.redis, listOf(queue), self)
  const build = (of: IntakeList = list(), db = fresh.db, batchMax = 100) =>
    intakePass({ db, jobs, queue: 'push', list: of, batchMax, worker })
  const lay = (...items: (object | string)[]) =>
    redis.lpush(
      'notification:push',
      ...items.map((item) => (typeof item === 'string' ? item : JSON.stringify(item))),
    )
  const made = async (queue = 'push') => {
    const { rows } = await sql<{ id: string; data: PushJob }>`
      select id, data from ${everyJob} where name = ${queue} order by created_on, id`.execute(
      fresh.db,
    )
    return rows
  }
  const dead = async () => {
    const { rows } = await sql<{ message: string; data: Record<string, unknown> }>`
      select source_output->>'message' as message, data from pgboss.job
      where name = 'push.dead' order by created_on`.execute(fresh.db)
    return rows
  }
  const keys = async () => (await redis.keys('*')).filter((key) => /taken/.test(key))

  test('makes jobs of items, the oldest first, and leaves nothing behind', async () => {
    const items = Array.from({ length: 5 }, (_, i) => push({ user_id: `user-${i}` }))
    await lay(...items)
    const pass = build(list(), fresh.db, 2)
    assert.deepEqual([await pass(signal, all), await pass(signal, all)], [2, 2])
    assert.deepEqual((await made()).map(({ data }) => data.user_id).sort(), [
      'user-0',
      'user-1',
      'user-2',
      'user-3',
    ])
    assert.equal(await pass(signal, 1), 1)
    assert.deepEqual(
      (await made()).map(({ id }) => id).sort(),
      items.map(({ job_id }) => job_id).sort(),
    )
    assert.equal(await redis.exists('notification:push'), 0)
    assert.deepEqual(await keys(), [])
  })

  test('waits for an item, and takes what comes with it', async () => {
    const passed = build()(signal, all)
    await until(async () => /cmd=blmove/.test(String(await redis.client('LIST'))))
    await lay(push(), push(), push())
    assert.equal(await passed, 3)
    assert.equal((await made()).length, 3)
    assert.equal(await build()(signal, all), 0)
  })

  test('makes one job of an item that lies there twice, also when the job is done', async () => {
    const item = push()
    await lay(item, item)
    await build()(signal, all)
    const [job] = await jobs.fetch('push', 10)
    assert.ok(job)
    await lay(item)
    await build()(signal, all)
    await jobs.complete(fresh.db, 'push', [job])
    assert.deepEqual(await jobs.fetch('push', 10), [])
    await lay(item)
    await build()(signal, all)
    assert.deepEqual(await jobs.fetch('push', 10), [])
  })

  test('takes again what it had in hand when it failed before, in and after the commit', async () => {
    const items = [push(), push(), push()]
    await lay(...items)
    const taken = await list().take(10, 10)
    assert.equal(taken.length, 3)
    // Before: nothing is a job yet.
    assert.equal(await build()(signal, all), 3)
    assert.equal((await made()).length, 3)
    // After: it was committed, and the list does not know.
    await lay(...items)
    const forgetful = { ...list(), done: () => Promise.reject(new Error('Redis went away')) }
    await assert.rejects(build(forgetful)(signal, all), /went away/)
    assert.equal(await build()(signal, all), 3)
    assert.equal((await made()).length, 3)
    assert.deepEqual(await keys(), [])
  })

  test('buries what nobody can read, with its bytes, and takes the rest', async () => {
    const good = push()
    await redis.lpush('notification:push', Buffer.from([0xff, 0x00, 0x01]))
    await lay(
      'no json',
      { ...push(), fcm_tokens: [] },
      '[1]',
      JSON.stringify(push()).replace('Opening', '\\u0000'),
      JSON.stringify(push()).replace('Opening', '\\ud800'),
      good,
    )
    assert.equal(await build()(signal, all), 7)
    assert.deepEqual(
      (await made()).map(({ id }) => id),
      [good.job_id],
    )
    const buried = await dead()
    assert.deepEqual(buried.map(({ message }) => message).sort(), [
      'the item cannot be read: fcm_tokens must be a list of 1 to 500 devices',
      'the item cannot be read: it has a character that cannot be stored: NUL, or half of one',
      'the item cannot be read: it has a character that cannot be stored: NUL, or half of one',
      'the item cannot be read: it is not JSON',
      'the item cannot be read: it is not JSON',
      'the item cannot be read: it must be an object',
    ])
    assert.ok(buried.some(({ data }) => data.text === 'no json'))
    assert.ok(buried.some(({ data }) => data.base64 === '/wAB'))
    assert.deepEqual(await keys(), [])
    // The same again is the same.
    await lay('no json')
    await build()(signal, all)
    assert.equal((await dead()).length, 6)
  })

  test('several at once take each item once', async () => {
    const items = Array.from({ length: 300 }, () => push())
    await lay(...items)
    const passes = ['a', 'b', 'c'].map((self) => build(list(self), fresh.open().db, 20))
    const run = async (pass: (typeof passes)[0]) => {
      let total = 0
      for (let n = 1; n > 0; total += n) n = (await pass(signal, all)) as number
      return total
    }
    const counts = await Promise.all(passes.map(run))
    assert.equal(
      counts.reduce((sum, count) => sum + count, 0),
      300,
    )
    assert.equal((await made()).length, 300)
  })

  test('gives back what a dead one had in hand, in its order, and leaves the living alone', async () => {
    const items = Array.from({ length: 6 }, (_, i) => push({ user_id: `user-${i}` }))
    await lay(...items)
    const [dying, living] = [list('dying'), list('living')]
    await dying.take(3, 10)
    await living.take(1, 10)
    const mine = list('me')
    const loop = aliveLoop([mine], worker)
    await loop.pass(signal, all)
    assert.equal(await mine.length(), 2)
    await redis.del('{notification:push}:alive:dying')
    await loop.pass(signal, all)
    assert.equal(await mine.length(), 5)
    const next = await mine.take(10, 10)
    const users = next.map((bytes) => (JSON.parse(String(bytes)) as PushJob).user_id)
    assert.deepEqual(users, ['user-0', 'user-1', 'user-2', 'user-4', 'user-5'])
    // The dead one was only slow: what it does now does no harm.
    await dying.done(3)
    assert.equal((await mine.take(10, 10)).length, 5)
    assert.equal(await mine.leave(), 5)
    assert.equal(await mine.length(), 5)
    assert.deepEqual(await redis.smembers('{notification:push}:takers'), ['living'])
  })

  test('keeps the keys of a list in one slot of a Cluster', async (t) => {
    const cluster = await startRedis(['cluster-enabled yes', 'cluster-announce-ip 127.0.0.1'])
    const node = new Redis(`redis://127.0.0.1:${cluster.port}`)
    t.after(() => node.disconnect())
    await node.call('CLUSTER', 'ADDSLOTSRANGE', '0', '16383')
    await until(async () => String(await node.call('CLUSTER', 'INFO')).includes('cluster_state:ok'))
    const to = openRedis({
      url: `redis+cluster://127.0.0.1:${cluster.port}`,
      name: 'test',
      commandTimeoutMs: 6000,
    })
    t.after(to.close)
    await to.ready()
    for (const queue of listQueues) {
      await node.lpush(listOf(queue), 'one', 'two')
      const [living, dead] = [
        openList(to.redis, listOf(queue), 'a'),
        openList(to.redis, listOf(queue), 'b'),
      ]
      assert.deepEqual((await dead.take(1, 10)).map(String), ['one'])
      await node.del(`{${listOf(queue)}}:alive:b`)
      assert.equal(await living.recover(), 1)
      assert.deepEqual((await living.take(5, 10)).map(String), ['one', 'two'])
      await living.done(2)
      assert.deepEqual(await living.take(5, 10), [])
    }
  })

  test('the process moves all three lists, killed in between and more than one', async () => {
    const pushes = Array.from({ length: 1000 }, () => push())
    const env = { REDIS_URL: url, INTAKE_BATCH: '20' }
    const [first, second] = [1, 2].map(() => startWorker('intake', fresh.url, [], env)) as [
      ReturnType<typeof startWorker>,
      ReturnType<typeof startWorker>,
    ]
    await until(() => [first, second].every((one) => /takes jobs off lists/.test(one.output())))
    const urgent = push({ template: 'queue_your_turn' })
    const letter = mail()
    await redis.lpush('notification:push:priority', JSON.stringify(urgent))
    await redis.lpush('notification:email', JSON.stringify(letter))
    await until(
      async () => (await made('email')).length + (await made('push:priority')).length === 2,
    )
    await redis.lpush('notification:push', ...pushes.map((one) => JSON.stringify(one)))
    await until(async () => (await made()).length >= 100)
    first.process.kill('SIGKILL')
    await exited(first)
    // Its last sign of life is long ago.
    for (const key of await redis.keys('*:alive:*')) {
      if (key.includes(`:${first.process.pid}:`)) await redis.del(key)
    }
    await until(async () => (await made()).length === 1000)
    await until(async () => (await keys()).length === 0)
    // Also where it had nothing in hand the dead one is forgotten, list by list.
    await until(async () => {
      const lists = await redis.keys('*:takers')
      const all = (await Promise.all(lists.map((list) => redis.smembers(list)))).flat()
      return all.every((taker) => !taker.includes(`:${first.process.pid}:`))
    })
    second.process.kill('SIGTERM')
    assert.equal(await exited(second), 0, second.output())
    const ids = (await made()).map(({ id }) => id)
    assert.deepEqual(new Set(ids), new Set(pushes.map(({ job_id }) => job_id)))
    assert.equal(ids.length, 1000)
    assert.deepEqual(await redis.keys('*:takers'), [])
    assert.doesNotMatch(second.output(), /anna@|phone/)
  })

  test('outlives a Redis that crashes, and one that is not there at first', async () => {
    await server.kill()
    const started = startWorker('intake', fresh.url, [], { REDIS_URL: url })
    await until(() => started.lines().some(({ msg }) => msg === 'a pass failed'))
    await server.start()
    const items = Array.from({ length: 50 }, () => push())
    await lay(...items)
    await until(async () => (await made()).length === 50)
    await server.kill()
    await server.start()
    await lay(push())
    await until(async () => (await made()).length === 51)
    started.process.kill('SIGTERM')
    assert.equal(await exited(started), 0, started.output())
  })

  test('while Postgres refuses, items stay in Redis', async () => {
    await lay(push(), push())
    const pass = build()
    await sql`alter table pgboss.queue rename to queue_away`.execute(fresh.db)
    await assert.rejects(async () => await pass(signal, all))
    await sql`alter table pgboss.queue_away rename to queue`.execute(fresh.db)
    const mine = list()
    assert.equal(await mine.leave(), 2)
    assert.equal(await mine.length(), 2)
    assert.equal(await build()(signal, all), 2)
    assert.equal((await made()).length, 2)
  })

  test('without a REDIS_URL the process says so, waits, and ends when told to', async () => {
    const once = startWorker('intake', fresh.url, ['--once'])
    assert.equal(await exited(once), 0, once.output())
    assert.match(once.output(), /REDIS_URL is not set: there are no lists to take from/)
  })
})
