// The queue itself, the same on Redis and on Postgres: places, the draw, who is let in, what others are told of it.

import assert from 'node:assert/strict'
import { after, before, describe, test } from 'node:test'
import { sql } from 'kysely'
import { pino } from 'pino'
import { findWindow, readEndedTurns, settleTurns } from '../db/queueTurns.ts'
import { changeRoom, readLiveRooms } from '../db/waitingRooms.ts'
import type { Delta, Joined, QueueStore } from '../domain/waitingroom.ts'
import { openRedis } from '../redis/open.ts'
import { drawFromSeed } from '../workers/waitingroom/lot.ts'
import { openStore } from '../workers/waitingroom/store.ts'
import { needs, type TestDatabase, testDatabase } from './database.ts'
import { makeMatch, openAtOnce } from './waitingrooms.ts'

const log = pino({ level: 'silent' })

for (const kind of ['redis', 'postgres'] as const) {
  const skip = kind === 'redis' && needs('redis')
  describe(`the queue on ${kind}`, { skip }, () => {
    let database: TestDatabase
    let store: QueueStore
    let closeOwn: (() => Promise<void>) | undefined
    let life: ((matchId: string) => Promise<number>) | undefined
    let shift: (matchId: string, user: string, seconds: number) => Promise<unknown>

    before(async () => {
      database = await testDatabase()
      const { db } = database
      const redisUrl = kind === 'redis' ? process.env.TEST_REDIS_URL : undefined
      store = await openStore({ db, redisUrl, log, windowSeconds: 1200, persistenceSeconds: 1800 })
      if (redisUrl === undefined) {
        shift = (matchId, user, seconds) =>
          sql`update waiting_places set seen_at = seen_at - make_interval(secs => ${seconds})
            where match_id = ${matchId} and user_id = ${user}`.execute(db)
        return
      }
      const own = openRedis({ url: redisUrl, name: 'test' })
      await own.ready()
      closeOwn = own.close
      life = (matchId) => own.redis.ttl(`queue_log:${matchId}`)
      shift = (matchId, user, seconds) =>
        own.redis.zincrby(`queue_seen:${matchId}`, -seconds * 1000, user)
    })
    after(async () => {
      await store.close()
      await closeOwn?.()
    })

    const match = async (given = {}) => {
      const matchId = await makeMatch(database.db, given)
      await openAtOnce(database.db, store, matchId)
      return matchId
    }
    const waiting = (joined: Joined | undefined) => {
      assert.equal(joined?.is, 'waiting')
      return joined as Joined & { is: 'waiting' }
    }
    const joinAll = (matchId: string, users: readonly string[]) =>
      Promise.all(users.map(async (user) => waiting(await store.join(matchId, user))))
    const admit = async (matchId: string, want: number, leader = 'a') => {
      const led = await store.admit(matchId, { leader, want })
      assert.equal(led.is, 'leader')
      return led as typeof led & { is: 'leader' }
    }
    const turnsOf = async (matchId: string) =>
      (
        await sql<{ user_id: string }>`select user_id from turns where match_id = ${matchId}
          order by granted_at, seat`.execute(database.db)
      ).rows.map((row) => row.user_id)
    /** The steps since the snapshot, once something was told. */
    const steps = async (matchId: string, n: number): Promise<Delta[]> =>
      (await store.changes(matchId, n)) ?? assert.fail('the steps are not kept')

    test('gives places in the order of arrival, and a user the same one each time', async () => {
      const matchId = await match()
      const users = Array.from({ length: 50 }, (_, i) => `user-${i}`)
      const places = []
      for (const user of users) places.push(waiting(await store.join(matchId, user)))
      assert.deepEqual(
        places.map((place) => place.position),
        users.map((_, i) => i + 1),
      )
      assert.deepEqual(
        places.map((place) => place.isNew),
        users.map(() => true),
      )
      const again = await joinAll(matchId, users)
      assert.deepEqual(
        again.map((place) => [place.position, place.ticket.seat, place.isNew]),
        places.map((place) => [place.position, place.ticket.seat, false]),
      )
      assert.deepEqual(waiting(await store.find(matchId, 'user-7')), again[7])
      assert.equal(await store.find(matchId, 'nobody'), undefined)
    })

    test('closes the gap that somebody leaves, who then stands at the end', async () => {
      const matchId = await match()
      for (const user of ['a', 'b', 'c']) await store.join(matchId, user)
      assert.equal(await store.leave(matchId, 'a'), true)
      assert.equal(await store.leave(matchId, 'a'), false)
      assert.equal(waiting(await store.find(matchId, 'b')).position, 1)
      const again = waiting(await store.join(matchId, 'a'))
      assert.deepEqual([again.position, again.ticket.seat], [3, 4])
    })

    test('lets in as many as are asked for, in order, once each, and no more than may be', async () => {
      const matchId = await match({ capacity: 5 })
      const users = Array.from({ length: 9 }, (_, i) => `u${i}`)
      for (const user of users) await store.join(matchId, user)
      assert.deepEqual((await admit(matchId, 3)).admitted, 3)
      const led = await admit(matchId, 100)
      assert.deepEqual([led.admitted, led.openWindows, led.waiting], [2, 5, 4])
      assert.equal((await admit(matchId, 100)).admitted, 0)
      assert.deepEqual(await turnsOf(matchId), users.slice(0, 5))
      const joined = await store.join(matchId, 'u0')
      assert.equal(joined.is, 'admitted')
      assert.deepEqual(
        (joined as Joined & { is: 'admitted' }).window,
        await findWindow(database.db, matchId, 'u0'),
      )
    })

    test('lets nobody in while it is paused or in the lobby', async () => {
      const matchId = await makeMatch(database.db)
      await store.join(matchId, 'a')
      assert.equal((await admit(matchId, 1)).admitted, 0)
      await openAtOnce(database.db, store, matchId)
      const change = { status: 'paused' } as const
      await changeRoom(database.db, matchId, change)
      await store.control(matchId, change)
      assert.equal((await admit(matchId, 1)).admitted, 0)
    })

    test('tells of a turn with its window, its row and its event', async () => {
      const matchId = await match()
      await store.join(matchId, 'a')
      const { n } = await store.snapshot(matchId)
      await admit(matchId, 1)
      const window = await findWindow(database.db, matchId, 'a')
      const told = (await steps(matchId, n)).flatMap((delta) => delta.granted)
      assert.deepEqual(told, [window])
      const { rows } = await sql`select w.user_id, w.session_token, w.expires_at, o.data
        from purchase_windows w join outbox o on o.type = 'queue.turn_granted'
          and o.subject = w.event_id || ':1' where w.event_id = ${matchId}`.execute(database.db)
      const expires_at = new Date(window!.expiresAtMs)
      assert.deepEqual(rows, [
        {
          user_id: 'a',
          session_token: window!.sessionToken,
          expires_at,
          data: { match_id: matchId, user_id: 'a', expires_at: expires_at.toISOString() },
        },
      ])
    })

    test('draws the lobby by lot: who comes later stands behind it', async () => {
      const matchId = await makeMatch(database.db)
      const lobby = Array.from({ length: 40 }, (_, i) => `l${i}`)
      for (const user of lobby) await store.join(matchId, user)
      await store.leave(matchId, 'l3')
      const sealed = await store.seal(matchId)
      assert.equal(sealed.lobbySize, 40)
      const late = waiting(await store.join(matchId, 'late'))
      assert.deepEqual(await store.seal(matchId), sealed)
      const places = drawFromSeed('ab'.repeat(32), 40)
      await store.writeDraw(matchId, sealed.drawnBaseUs, places)
      const open = { phase: 'open', status: 'active' } as const
      await changeRoom(database.db, matchId, open)
      await store.control(matchId, open)
      assert.equal(waiting(await store.find(matchId, 'late')).position, 40)
      // One a step, so that their times say the order.
      for (let i = 0; i < 40; i++) await admit(matchId, 1)
      const drawn = lobby
        .map((user, i) => ({ user, place: places[i]! }))
        .filter(({ user }) => user !== 'l3')
        .sort((a, b) => a.place - b.place)
        .map(({ user }) => user)
      assert.deepEqual(await turnsOf(matchId), [...drawn, 'late'])
      assert.equal(late.ticket.seat, 41)
    })

    test('drops a place after the time without a sign of life, and not before', async () => {
      const matchId = await match()
      for (const user of ['a', 'b', 'c']) await store.join(matchId, user)
      await shift(matchId, 'a', 31 * 60)
      await shift(matchId, 'b', 29 * 60)
      await shift(matchId, 'c', 31 * 60)
      await store.touch(matchId, ['c'])
      assert.equal(await store.drop(matchId, 1800), 1)
      assert.equal(await store.find(matchId, 'a'), undefined)
      assert.equal(waiting(await store.find(matchId, 'b')).position, 1)
      assert.equal(waiting(await store.find(matchId, 'c')).position, 2)
    })

    test('names those in front who are not connected, until they were told', async () => {
      const matchId = await match()
      for (const user of ['a', 'b', 'c', 'd']) await store.join(matchId, user)
      await shift(matchId, 'b', 120)
      await shift(matchId, 'd', 120)
      const quiet = await store.quiet(matchId, 3, 90)
      assert.deepEqual(quiet, [{ userId: 'b', seat: 2, position: 2 }])
      await store.noteTold(matchId, [2])
      assert.deepEqual(await store.quiet(matchId, 3, 90), [])
    })

    test('leaves room when a window is over, and tells why', async () => {
      const matchId = await match({ capacity: 1 })
      const { db } = database
      for (const user of ['a', 'b']) await store.join(matchId, user)
      await admit(matchId, 5)
      assert.equal(await settleTurns(db, matchId), 0)
      await sql`update turns set expires_at = clock_timestamp() where match_id = ${matchId}`.execute(
        db,
      )
      assert.equal(await settleTurns(db, matchId), 1)
      assert.equal(await settleTurns(db, matchId), 0)
      const ended = await readEndedTurns(db, matchId)
      assert.deepEqual(
        ended.map(({ userId, reason }) => [userId, reason]),
        [['a', 'window_timeout']],
      )
      const { n } = await store.snapshot(matchId)
      await store.free(matchId, ended)
      assert.deepEqual(
        (await steps(matchId, n)).flatMap((delta) => delta.over),
        [{ seat: 1, reason: 'window_timeout' }],
      )
      await sql`update turns set freed = true where match_id = ${matchId}`.execute(db)
      assert.equal((await admit(matchId, 5)).admitted, 1)
      const { rows } = await sql<{ type: string }>`select type from outbox
        where subject = ${`${matchId}:1`} order by sequence`.execute(db)
      assert.deepEqual(
        rows.map((row) => row.type),
        ['queue.turn_granted', 'queue.expired'],
      )
      const again = waiting(await store.join(matchId, 'a'))
      assert.deepEqual([again.ticket.seat, again.isNew], [3, true])
    })

    test('makes room for whoever has bought, however many before them have not', async () => {
      const matchId = await match({ capacity: 10 })
      const { db } = database
      for (const user of ['a', 'b', 'c']) await store.join(matchId, user)
      await admit(matchId, 3)
      await sql`insert into orders (id, reservation_id, event_id, user_id, quantity, total_minor, currency)
        values (gen_random_uuid(), gen_random_uuid(), ${matchId}, 'c', 1, 5000, 'EUR')`.execute(db)
      // Batches of two: a and b, who are in front, are no part of them.
      assert.equal(await settleTurns(db, matchId, 2), 1)
      const ended = await readEndedTurns(db, matchId)
      assert.deepEqual(
        ended.map(({ userId, reason }) => [userId, reason]),
        [['c', 'used']],
      )
    })

    test('is closed for good, and everybody’s place is gone', async () => {
      const matchId = await match()
      await store.join(matchId, 'a')
      const { n } = await store.snapshot(matchId)
      const change = { status: 'closed', reason: 'sold_out' } as const
      await changeRoom(database.db, matchId, change)
      await store.control(matchId, change)
      const [delta] = await steps(matchId, n)
      assert.deepEqual([delta?.state?.status, delta?.state?.reason], ['closed', 'sold_out'])
      assert.deepEqual(await store.join(matchId, 'b'), { is: 'closed', reason: 'sold_out' })
      assert.deepEqual((await store.snapshot(matchId)).seats, [])
      await store.control(matchId, { status: 'active' })
      assert.equal((await store.join(matchId, 'b')).is, 'closed')
      // What was told of it does not stay in Redis for ever.
      if (life !== undefined) assert.ok((await life(matchId)) > 0)
    })

    test('leads from a snapshot over the steps to the same queue', async () => {
      const matchId = await match({ capacity: 100_000 })
      await joinAll(matchId, ['x', 'y'])
      const first = await store.snapshot(matchId)
      const seats = new Set(first.seats)
      await joinAll(
        matchId,
        Array.from({ length: 30 }, (_, i) => `s${i}`),
      )
      await store.leave(matchId, 's4')
      await store.leave(matchId, 'x')
      await admit(matchId, 3)
      await store.restore(matchId, 'x', 1, Date.now() * 1000 - 1e9)
      await joinAll(matchId, ['last'])
      await admit(matchId, 0)
      let known = first.lastSeat
      let { n } = first
      for (const delta of await steps(matchId, n)) {
        assert.equal(delta.n, ++n)
        for (; known < delta.lastSeat; known++) seats.add(known + 1)
        for (const seat of delta.back) seats.add(seat)
        for (const seat of delta.left) seats.delete(seat)
      }
      const now = await store.snapshot(matchId)
      assert.deepEqual(
        [...seats].sort((a, b) => a - b),
        now.seats.sort((a, b) => a - b),
      )
      assert.equal(await store.changes(matchId, n - 1_000_000), undefined)
    })
  })
}

test('a queue that nobody closed is over a day after its event began, when its last window is', async () => {
  const { db } = await testDatabase()
  const [now, old, bought] = [await makeMatch(db), await makeMatch(db), await makeMatch(db)]
  await sql`update events set starts_at = clock_timestamp() - interval '25 hours'
    where id in (${old}, ${bought})`.execute(db)
  await sql`update events set starts_at = clock_timestamp() - interval '23 hours'
    where id = ${now}`.execute(db)
  await sql`insert into turns (match_id, seat, user_id, session_token, expires_at)
    values (${bought}, 1, 'a', 't', clock_timestamp())`.execute(db)
  assert.deepEqual(await readLiveRooms(db), [now, bought].sort())
})

test('on Postgres those who are let in together are let in by the line, however they are found', async () => {
  const fresh = await testDatabase()
  const { rows: names } = await sql<{ name: string }>`select current_database() as name`.execute(
    fresh.db,
  )
  await sql`alter database ${sql.id(names[0]!.name)} set enable_nestloop = off`.execute(fresh.db)
  const { db } = fresh.open('planned')
  const store = await openStore({
    db,
    redisUrl: undefined,
    log,
    windowSeconds: 60,
    persistenceSeconds: 60,
  })
  const matchId = await makeMatch(db)
  await openAtOnce(db, store, matchId)
  const users = Array.from({ length: 40 }, (_, i) => `u${i}`)
  for (const user of users) await store.join(matchId, user)
  // As a draw may have it: the last to come is the first.
  await sql`update waiting_places set score = 1000 - seat`.execute(db)
  await store.admit(matchId, { leader: 'a', want: 40 })
  const { rows } = await sql<{ user_id: string }>`
    select user_id from turns order by granted_at`.execute(db)
  assert.deepEqual(
    rows.map(({ user_id }) => user_id),
    users.toReversed(),
  )
  await store.close()
})
