// The waiting room while things break: its leader is killed again and again, Redis comes back empty, Postgres is away as
// people are let in. Each time the same is asked of the tables: everybody once, in order, nobody left out, and never
// more windows open than allowed.

import assert from 'node:assert/strict'
import { before, describe, test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { sql } from 'kysely'
import { pino } from 'pino'
import { recordTurns } from '../db/queueTurns.ts'
import type { QueueStore } from '../domain/waitingroom.ts'
import { openRedis } from '../redis/open.ts'
import { openRedisWaitingroom } from '../redis/waitingroom.ts'
import { createRooms } from '../workers/waitingroom/rooms.ts'
import { openStore } from '../workers/waitingroom/store.ts'
import { needs, type TestDatabase, testDatabase } from './database.ts'
import { startRedis, withoutRedisServer } from './servers/redis.ts'
import { freePort, listenAt, makeMatch, openAtOnce, startWaitingroom } from './waitingrooms.ts'
import { exited, startWorker, until, type WorkerProcess } from './worker.ts'

const log = pino({ level: 'silent' })
const secret = 'sixteen characters and more'
const byNumber = (a: number, b: number) => a - b

describe('while processes are killed', { skip: needs('redis') }, () => {
  let database: TestDatabase
  before(async () => {
    database = await testDatabase()
  })

  /** Seats in the order in which their turns were given. */
  const seatsOf = async (matchId: string) =>
    (
      await sql<{ seat: number }>`select seat from turns where match_id = ${matchId}
        order by granted_at, seat`.execute(database.db)
    ).rows.map((row) => row.seat)

  test('kill -9 of whoever leads loses nobody, lets nobody in twice, keeps the order', async (t) => {
    const env = {
      REDIS_URL: process.env.TEST_REDIS_URL!,
      WAITINGROOM_PORT: String(await freePort()),
      INTERNAL_AUTH_SECRET: secret,
      QUEUE_TOKEN_SECRET: secret,
    }
    const matchId = await makeMatch(database.db, { rate: 3000, capacity: 100_000 })
    const store = await openStore({
      db: database.db,
      redisUrl: env.REDIS_URL,
      log,
      windowSeconds: 1200,
      persistenceSeconds: 1800,
    })
    await openAtOnce(database.db, store, matchId)
    const people = 500
    for (let i = 0; i < people; i++) await store.join(matchId, `u${i}`)
    const start = () => startWorker('waitingroom', database.url, [], env)
    const all: WorkerProcess[] = [start(), start(), start()]
    const leads = (worker: WorkerProcess) => worker.output().includes('leads the match')
    const count = async () => (await seatsOf(matchId)).length
    for (let kills = 0; kills < 3; kills++) {
      await until(() => all.some(leads))
      const before = await count()
      await until(async () => (await count()) >= Math.min(before + 40, people))
      const leader = all.findIndex(leads)
      const killed = all.splice(leader, 1, start())[0]!
      const at = performance.now()
      killed.process.kill('SIGKILL')
      await exited(killed)
      const stopped = await count()
      await until(async () => (await count()) > stopped)
      t.diagnostic(`people are let in again after ${Math.round(performance.now() - at)} ms`)
    }
    await until(async () => (await count()) === people)
    const seats = await seatsOf(matchId)
    assert.deepEqual(seats, [...seats].sort(byNumber), 'in order')
    assert.deepEqual(
      seats,
      Array.from({ length: people }, (_, i) => i + 1),
      'everybody',
    )
    const { rows } = await sql<{ n: number }>`select count(*)::int as n from outbox
      where type = 'queue.turn_granted' and data->>'match_id' = ${matchId}`.execute(database.db)
    assert.equal(rows[0]!.n, people, 'one event each')
    for (const worker of all) worker.process.kill('SIGTERM')
    assert.deepEqual(await Promise.all(all.map(exited)), [0, 0, 0])
    await store.close()
  })

  test('a turn that was decided and not written down is given by the next leader, once', async () => {
    const { db } = database
    const matchId = await makeMatch(db, { capacity: 100 })
    const options = { url: process.env.TEST_REDIS_URL!, name: 'test' }
    // Dies before the transaction, and after it.
    let dying: 'before' | 'after' | undefined
    const opened = [openRedis(options), openRedis(options)]
    await Promise.all(opened.map((one) => one.ready()))
    const other = await openStore({
      db,
      redisUrl: options.url,
      log,
      windowSeconds: 1200,
      persistenceSeconds: 1800,
    })
    const store = openRedisWaitingroom({
      redis: opened[0]!.redis,
      subscriber: opened[1]!.redis,
      persistenceSeconds: 1800,
      windowSeconds: 1200,
      leadMs: 1,
      revive: async () => undefined,
      taken: async () => new Set(),
      async record(match, turns) {
        if (dying === 'before') throw new Error('killed before the commit')
        const recorded = await recordTurns(db, match, turns, 1200)
        if (dying === 'after') throw new Error('killed after the commit')
        return recorded
      },
    })
    await other.snapshot(matchId)
    await openAtOnce(db, other, matchId)
    for (let i = 0; i < 9; i++) await store.join(matchId, `u${i}`)
    for (const way of ['before', 'after', undefined] as const) {
      dying = way
      const step = store.admit(matchId, { leader: 'x', want: 3 })
      if (way) await assert.rejects(step, /killed/)
      else await step
      // Not told: whoever asks is next in line still.
      const pending = await other.find(matchId, 'u0')
      if (way === 'before')
        assert.deepEqual([pending?.is, (pending as { position: number }).position], ['waiting', 0])
    }
    assert.equal((await other.find(matchId, 'u0'))?.is, 'admitted')
    assert.deepEqual(await seatsOf(matchId), [1, 2, 3, 4, 5, 6, 7, 8, 9])
    const { seats, windows, called } = await other.snapshot(matchId)
    assert.deepEqual([seats, called], [[], []])
    assert.equal(windows.length, 9)
    await store.close()
    await other.close()
  })
})

describe('when Redis comes back empty', { skip: withoutRedisServer() }, () => {
  let database: TestDatabase
  before(async () => {
    database = await testDatabase()
  })

  test('everybody has the place that was theirs, and open windows take their room still', async () => {
    const redis = await startRedis(['appendonly no'])
    const env = { REDIS_URL: `redis://127.0.0.1:${redis.port}` }
    const { db } = database
    const room = await startWaitingroom(db, env)
    const matchId = await makeMatch(db, { rate: 60_000, capacity: 2 })
    await openAtOnce(db, room.store, matchId)
    const joined = new Map<string, { queue_token: string; websocket_url: string }>()
    const listeners = new Map<string, ReturnType<typeof listenAt>>()
    for (const user of ['a', 'b', 'c', 'd', 'e', 'f']) {
      const { json } = await room.call('POST', `${matchId}/join`, { user })
      joined.set(user, json)
      // d has closed the page.
      if (user !== 'd') listeners.set(user, listenAt(json.websocket_url))
    }
    for (const user of ['a', 'b']) {
      await listeners.get(user)!.heard(({ type }) => type === 'turn_granted')
    }
    await listeners.get('f')!.heard(({ position }) => position === 4)
    const before = listeners.get('f')!.messages.length
    await redis.kill()
    const refused = await room.call('POST', `${matchId}/join`, { user: 'g' })
    assert.equal(refused.status, 503)
    assert.match(refused.json.detail, /your place is kept/)
    await redis.start()
    await until(async () => {
      const state = room.rooms.peek(matchId)?.state
      return state?.epoch === 3
    })
    const late = await room.call('POST', `${matchId}/join`, { user: 'g' })
    assert.equal(late.status, 200)
    // Those who are connected do nothing; d comes back with the token.
    await until(async () => (await room.store.snapshot(matchId)).seats.length >= 4)
    const body = { queue_token: joined.get('d')!.queue_token }
    const back = await room.call('POST', `${matchId}/join`, { user: 'd', body })
    assert.equal(back.json.position, 2)
    const order = []
    for (const user of ['c', 'd', 'e', 'f', 'g']) {
      const { json } = await room.call('GET', `${matchId}/position`, { user })
      order.push([user, json.position])
    }
    assert.deepEqual(order, [
      ['c', 1],
      ['d', 2],
      ['e', 3],
      ['f', 4],
      ['g', 5],
    ])
    const { windows } = await room.store.snapshot(matchId)
    assert.deepEqual(windows.map((window) => window.userId).sort(), ['a', 'b'])
    const since = listeners.get('f')!.messages.slice(before)
    assert.ok(since.every(({ type, position }) => type === 'position_update' && position <= 4))
    // Whose turn was over before does not get it again by an old token.
    const again = { queue_token: joined.get('a')!.queue_token }
    await sql`update turns set expires_at = clock_timestamp() where user_id = 'a'`.execute(db)
    await listeners.get('a')!.heard(({ type }) => type === 'queue_closed')
    await until(async () => (await room.store.find(matchId, 'a')) === undefined)
    const anew = await room.call('POST', `${matchId}/join`, { user: 'a', body: again })
    assert.ok(anew.json.position >= 4, JSON.stringify(anew.json))
    for (const { socket } of listeners.values()) socket.close()
    await room.kill()
  })

  test('with an older copy, who came since has the place back, and who was let in stays so', async () => {
    const redis = await startRedis(['appendonly no'])
    const { db } = database
    const room = await startWaitingroom(db, { REDIS_URL: `redis://127.0.0.1:${redis.port}` })
    const matchId = await makeMatch(db, { rate: 60_000, capacity: 0 })
    await openAtOnce(db, room.store, matchId)
    const listeners = new Map<string, ReturnType<typeof listenAt>>()
    const join = async (user: string) => {
      const { json } = await room.call('POST', `${matchId}/join`, { user })
      listeners.set(user, listenAt(json.websocket_url))
    }
    for (const user of ['a', 'b', 'c', 'd']) await join(user)
    const own = openRedis({ url: `redis://127.0.0.1:${redis.port}`, name: 'test' })
    await own.ready()
    await own.redis.call('SAVE')
    await own.close()
    const body = { capacity: 2 }
    await room.call('POST', `${matchId}/rate`, { internal: true, body })
    for (const user of ['a', 'b']) {
      await listeners.get(user)!.heard(({ type }) => type === 'turn_granted')
    }
    for (const user of ['e', 'f']) await join(user)
    await listeners.get('f')!.heard(({ position }) => position === 4)
    await redis.kill()
    await redis.start()
    await until(
      async () => (await room.call('POST', `${matchId}/join`, { user: 'g' })).status < 300,
    )
    await until(async () => (await room.store.snapshot(matchId)).seats.length === 5)
    const { seats, windows, state } = await room.store.snapshot(matchId)
    assert.equal(new Set(seats).size, 5, 'no number is given twice')
    assert.equal(state.capacity, 2, 'as Postgres has it')
    assert.deepEqual(windows.map((window) => window.userId).sort(), ['a', 'b'])
    for (const [i, user] of ['c', 'd', 'e', 'f', 'g'].entries()) {
      const { json } = await room.call('GET', `${matchId}/position`, { user })
      assert.equal(json.position, i + 1, user)
    }
    await sql`update turns set expires_at = clock_timestamp()
      where match_id = ${matchId} and user_id = 'a'`.execute(db)
    await listeners.get('c')!.heard(({ type }) => type === 'turn_granted')
    for (const { socket } of listeners.values()) socket.close()
    await room.kill()
  })
})

test('while Postgres is away nobody is told of a turn, and all is as it should be afterwards', {
  skip: needs('redis'),
}, async () => {
  const database = await testDatabase()
  const { db } = database
  const matchId = await makeMatch(db, { rate: 60_000, capacity: 100 })
  const real: QueueStore = await openStore({
    db,
    redisUrl: process.env.TEST_REDIS_URL,
    log,
    windowSeconds: 1200,
    persistenceSeconds: 1800,
  })
  await openAtOnce(db, real, matchId)
  const room = await startWaitingroom(db, { REDIS_URL: process.env.TEST_REDIS_URL! })
  const { json } = await room.call('POST', `${matchId}/join`, { user: 'first' })
  const first = listenAt(json.websocket_url)
  await first.heard(({ type }) => type === 'turn_granted')
  const lock = await database.database.pool.connect()
  await lock.query('begin')
  await lock.query('lock table turns in access exclusive mode')
  const people = await Promise.all(
    ['x', 'y', 'z'].map(async (user) => {
      const joined = await room.call('POST', `${matchId}/join`, { user })
      return listenAt(joined.json.websocket_url)
    }),
  )
  await until(async () => (await real.snapshot(matchId)).called.length > 0)
  assert.ok(people.every(({ messages }) => messages.every(({ type }) => type !== 'turn_granted')))
  await lock.query('rollback')
  lock.release()
  for (const { heard } of people) await heard(({ type }) => type === 'turn_granted')
  const { rows } = await sql<{ user_id: string }>`select user_id from turns
    where match_id = ${matchId} order by seat`.execute(db)
  assert.equal(rows.length, 4)
  for (const { socket } of [first, ...people]) socket.close()
  await room.kill()
  await real.close()
})

test('a change that cannot be taken in at once does not end the process, and is taken in a second later', async () => {
  const { db } = await testDatabase()
  const log = pino({ level: 'silent' })
  const store = await openStore({
    db,
    redisUrl: undefined,
    log,
    windowSeconds: 60,
    persistenceSeconds: 60,
  })
  let call: (matchId: string | undefined) => void = () => {}
  let fault: Error | undefined
  const listener = { onTurn() {}, onWindowOver() {}, onState() {}, onMoved() {}, onReload() {} }
  const rooms = createRooms({
    db,
    listener,
    ratePerMinute: 600,
    capacity: 10,
    store: {
      ...store,
      onChange: (listener) => {
        call = listener
      },
      changes: (matchId, n) => (fault ? Promise.reject(fault) : store.changes(matchId, n)),
    },
  })
  const matchId = await makeMatch(db)
  const room = await rooms.get(matchId)
  const unhandled: unknown[] = []
  const note = (error: unknown) => unhandled.push(error)
  process.on('unhandledRejection', note)
  fault = new Error('the database refuses a statement')
  await store.join(matchId, 'a')
  call(matchId)
  call(undefined)
  await sleep(50)
  process.off('unhandledRejection', note)
  assert.deepEqual(unhandled, [])
  await assert.rejects(rooms.syncAll(), fault)
  fault = undefined
  await rooms.syncAll()
  assert.equal(room.line.size, 1)
  await store.close()
})
