// The waiting room as people meet it: joining, being told, being let in, on one process over Postgres and on several over
// Redis; what operators do; and that the API lets nobody buy before it is their turn.

import assert from 'node:assert/strict'
import { after, before, describe, test } from 'node:test'
import { sql } from 'kysely'
import { changeRoom } from '../db/waitingRooms.ts'
import { openRedis } from '../redis/open.ts'
import { drawFromSeed } from '../workers/waitingroom/lot.ts'
import { type Api, openApi } from './api.ts'
import { needs, type TestDatabase, testDatabase } from './database.ts'
import {
  listenAt,
  makeMatch,
  openAtOnce,
  startWaitingroom,
  type TestWaitingroom,
} from './waitingrooms.ts'
import { until } from './worker.ts'

for (const kind of ['redis', 'postgres'] as const) {
  const skip = kind === 'redis' && needs('redis')
  describe(`a waiting room on ${kind}`, { skip }, () => {
    let database: TestDatabase
    let api: Api
    let a: TestWaitingroom
    let b: TestWaitingroom

    before(async () => {
      database = await testDatabase()
      api = await openApi(database.database)
      const env = {
        ...(kind === 'redis' && { REDIS_URL: process.env.TEST_REDIS_URL! }),
        CHECKOUT_URL: 'https://shop.test/buy?lang=en',
      }
      a = await startWaitingroom(database.db, env)
      // On Postgres there is one process.
      b = kind === 'redis' ? await startWaitingroom(database.db, env) : a
    })
    after(async () => {
      await a.kill()
      await b.kill()
      await api.close()
    })

    const match = async (given = {}) => {
      const matchId = await makeMatch(database.db, given)
      await openAtOnce(database.db, a.store, matchId)
      return matchId
    }
    const join = async (where: TestWaitingroom, matchId: string, user: string) => {
      const answer = await where.call('POST', `${matchId}/join`, { user })
      assert.equal(answer.status, 200, JSON.stringify(answer.json))
      return answer.json
    }
    const hold = (matchId: string, user: string) =>
      api.call('POST', 'reservations', { user, body: { event_id: matchId, quantity: 1 } })

    test('answers a join with the place and where to listen, the same on any device', async () => {
      const matchId = await match({ rate: 0 })
      const first = await join(a, matchId, 'ann')
      assert.deepEqual(
        { ...first, queue_token: '', websocket_url: '', sse_url: '' },
        {
          match_id: matchId,
          status: 'waiting',
          position: 1,
          estimated_wait_minutes: null,
          queue_token: '',
          websocket_url: '',
          sse_url: '',
        },
      )
      assert.equal(first.websocket_url, `${a.base.replace('http', 'ws')}/ws/${first.queue_token}`)
      assert.equal(first.sse_url, `${a.base}/sse/${first.queue_token}`)
      assert.equal((await join(b, matchId, 'bob')).position, 2)
      assert.equal((await join(b, matchId, 'ann')).position, 1)
      const polled = await b.call('GET', `${matchId}/position`, { user: 'bob' })
      assert.equal(polled.json.position, 2)
      const byToken = { headers: { 'x-queue-token': polled.json.queue_token } }
      await until(async () => {
        const { json } = await a.call('GET', `${matchId}/position`, byToken)
        return json.position === 2
      })
    })

    test('tells a turn to its socket, and only then lets the API sell', async () => {
      const matchId = await match({ rate: 60_000, capacity: 1 })
      const ann = await join(a, matchId, 'ann')
      const bob = await join(b, matchId, 'bob')
      const annHears = listenAt(ann.websocket_url)
      const bobHears = listenAt(bob.websocket_url)
      const turn = await annHears.heard(({ type }) => type === 'turn_granted')
      const window = new Date(turn.purchase_window_expires_at).getTime() - Date.now()
      assert.ok(window > 1_190_000 && window <= 1_200_000, `${window}`)
      const checkout = new URL(turn.checkout_url)
      assert.equal(checkout.origin + checkout.pathname, 'https://shop.test/buy')
      assert.equal(checkout.searchParams.get('match_id'), matchId)
      assert.equal(checkout.searchParams.get('lang'), 'en')
      const { rows } = await sql<{ session_token: string }>`select session_token
        from purchase_windows where event_id = ${matchId}`.execute(database.db)
      assert.deepEqual(
        rows.map((row) => row.session_token),
        [checkout.searchParams.get('session_token')],
      )
      const refused = await hold(matchId, 'bob')
      assert.deepEqual([refused.status, refused.json.code], [403, 'QUEUE_TOKEN_REQUIRED'])
      const held = await hold(matchId, 'ann')
      assert.equal(held.status, 201)
      assert.ok(!bobHears.messages.some(({ type }) => type === 'turn_granted'))
      // The order makes room for the next.
      const id = held.json.reservation_id
      assert.equal(
        (await api.call('POST', `reservations/${id}/confirm`, { user: 'ann' })).status,
        200,
      )
      await bobHears.heard(({ type }) => type === 'turn_granted')
      const over = await annHears.heard(({ type }) => type === 'queue_closed')
      assert.equal(over.reason, 'used')
      assert.equal((await hold(matchId, 'ann')).status, 403)
      assert.equal((await hold(matchId, 'bob')).status, 201)
      for (const { socket } of [annHears, bobHears]) socket.close()
    })

    test('tells everybody in front of each move', async () => {
      const matchId = await match({ rate: 0 })
      const users = ['u1', 'u2', 'u3', 'u4']
      const heard = []
      for (const [i, user] of users.entries()) {
        const joined = await join(i % 2 ? a : b, matchId, user)
        heard.push(listenAt(joined.websocket_url))
      }
      await heard[3]!.heard(({ position }) => position === 4)
      assert.equal((await a.call('DELETE', matchId, { user: 'u2' })).status, 204)
      await heard[3]!.heard(({ position }) => position === 3)
      await heard[2]!.heard(({ position }) => position === 2)
      assert.ok(heard[0]!.messages.every(({ position }) => position === 1))
      assert.equal((await a.call('DELETE', matchId, { user: 'u2' })).json.code, 'NOT_IN_QUEUE')
      for (const { socket } of heard) socket.close()
    })

    test('tells an event stream the same, and not again what it knows', async () => {
      const matchId = await match({ rate: 0 })
      const { sse_url } = await join(a, matchId, 'ann')
      const read = async (headers: Record<string, string>, enough: RegExp) => {
        const ending = new AbortController()
        const answer = await fetch(sse_url, { headers, signal: ending.signal })
        assert.match(String(answer.headers.get('content-type')), /^text\/event-stream/)
        let text = ''
        const decoder = new TextDecoder()
        for await (const chunk of answer.body!) {
          text += decoder.decode(chunk, { stream: true })
          if (enough.test(text)) break
        }
        ending.abort()
        return text
      }
      const first = await read({}, /data: .*\n\n/)
      assert.match(
        first,
        /event: position_update\nid: (\S+)\ndata: \{"type":"position_update","position":1,/,
      )
      const id = /^id: (\S+)$/m.exec(first)![1]!
      const state = { status: 'paused' } as const
      const known = read({ 'last-event-id': id }, /data: .*\n\n/)
      await until(() => a.crowd.count('sse') > 0)
      await a.call('POST', `${matchId}/pause`, { internal: true })
      const text = await known
      assert.deepEqual(
        [...text.matchAll(/"status":"(\w+)"/g)].map((found) => found[1]),
        [state.status],
      )
    })

    test('draws the lobby so that everybody can check it', async () => {
      const matchId = await makeMatch(database.db, { rate: 0 })
      const users = Array.from({ length: 20 }, (_, i) => `u${i}`)
      const listeners = []
      for (const user of users) {
        const joined = await join(a, matchId, user)
        assert.equal(joined.status, 'lobby')
        listeners.push(listenAt(joined.websocket_url))
      }
      const before = (await b.call('GET', matchId)).json
      assert.equal(before.status, 'lobby')
      assert.equal(before.draw.seed, undefined)
      const opened = await b.call('POST', `${matchId}/open`, { internal: true })
      assert.equal(opened.status, 200, JSON.stringify(opened.json))
      const { draw } = (await a.call('GET', matchId)).json
      assert.equal(draw.commitment, before.draw.commitment)
      assert.equal(draw.lobby_size, 20)
      const places = drawFromSeed(draw.seed, 20)
      for (const [i, { heard, socket }] of listeners.entries()) {
        await heard(({ status, position }) => status === 'waiting' && position === places[i])
        socket.close()
      }
      assert.equal((await join(b, matchId, 'late')).position, 21)
      assert.equal((await b.call('POST', `${matchId}/open`, { internal: true })).status, 200)
      assert.equal((await a.call('GET', matchId)).json.draw.seed, draw.seed)
    })

    test('is sold out for everybody who waits, and not for who may buy', async () => {
      const matchId = await match({ rate: 60_000, capacity: 1 })
      const ann = listenAt((await join(a, matchId, 'ann')).websocket_url)
      await ann.heard(({ type }) => type === 'turn_granted')
      const bob = listenAt((await join(b, matchId, 'bob')).websocket_url)
      await bob.heard(({ type }) => type === 'position_update')
      const body = { remaining_sectors: [] }
      const closed = await a.call('POST', `${matchId}/sold-out`, { internal: true, body })
      assert.equal(closed.status, 200, JSON.stringify(closed.json))
      assert.equal((await bob.heard(({ type }) => type === 'queue_closed')).reason, 'sold_out')
      assert.ok(!ann.messages.some(({ type }) => type === 'queue_closed'))
      assert.equal((await hold(matchId, 'ann')).status, 201)
      const late = await b.call('POST', `${matchId}/join`, { user: 'cy' })
      assert.deepEqual(
        [late.status, late.json.code, late.json.reason],
        [409, 'QUEUE_CLOSED', 'sold_out'],
      )
      const reopened = await a.call('POST', `${matchId}/open`, { internal: true })
      assert.equal(reopened.json.code, 'QUEUE_CLOSED')
      ann.socket.close()
    })

    test('pauses, resumes and changes its rate', async () => {
      const matchId = await match({ rate: 0 })
      const ann = listenAt((await join(b, matchId, 'ann')).websocket_url)
      await ann.heard(({ status }) => status === 'waiting')
      await a.call('POST', `${matchId}/pause`, { internal: true })
      await ann.heard(({ status }) => status === 'paused')
      const set = { internal: true, body: { rate: 6000, capacity: 3 } }
      const { json } = await a.call('POST', `${matchId}/rate`, set)
      assert.deepEqual([json.rate, json.capacity, json.status], [6000, 3, 'paused'])
      await a.call('POST', `${matchId}/resume`, { internal: true })
      await ann.heard(({ type }) => type === 'turn_granted')
      ann.socket.close()
    })

    test('is operated by internal programs only, and says what is wrong', async () => {
      const matchId = await match()
      for (const name of ['open', 'pause', 'resume', 'rate', 'sold-out']) {
        const path = `${matchId}/${name}`
        assert.equal((await a.call('POST', path)).status, 401, name)
        assert.equal((await a.call('POST', path, { user: 'ann' })).status, 403, name)
      }
      const wrong = { internal: true, body: { rate: -1 } }
      const answer = await a.call('POST', `${matchId}/rate`, wrong)
      assert.deepEqual(
        [answer.status, answer.json.detail],
        [400, '/rate must be a whole number from 0 to 1000000'],
      )
      assert.equal((await a.call('POST', `${matchId}/join`)).status, 401)
      const broken = { user: 'ann', body: '{"a"' }
      assert.equal((await a.call('POST', `${matchId}/join`, broken)).json.code, 'INVALID_JSON')
      const unknown = '018f0000-0000-7000-8000-000000000000'
      const nowhere = await a.call('POST', `${unknown}/join`, { user: 'ann' })
      assert.deepEqual([nowhere.status, nowhere.json.code], [404, 'EVENT_NOT_FOUND'])
      const none = await a.call('POST', 'final/join', { user: 'ann' })
      assert.deepEqual([none.status, none.json.code], [404, 'EVENT_NOT_FOUND'])
    })

    test('a lobby that was closed cannot be opened, and nobody tries to draw it', async () => {
      const matchId = await makeMatch(database.db)
      await join(a, matchId, 'ann')
      const closed = await a.call('POST', `${matchId}/sold-out`, { internal: true })
      assert.equal(closed.status, 200)
      const opened = await a.call('POST', `${matchId}/open`, { internal: true })
      assert.deepEqual([opened.status, opened.json.code], [409, 'QUEUE_CLOSED'])
      assert.equal((await a.store.snapshot(matchId)).state.phase, 'lobby')
    })

    test('what an operator said while the store was away is done once it is back', async () => {
      const matchId = await match({ rate: 60 })
      await join(a, matchId, 'ann')
      await changeRoom(database.db, matchId, { status: 'paused', ratePerMinute: 7, capacity: 3 })
      await until(async () => {
        const { status, ratePerMinute, capacity } = (await a.store.snapshot(matchId)).state
        return status === 'paused' && ratePerMinute === 7 && capacity === 3
      })
      await changeRoom(database.db, matchId, { status: 'closed', reason: 'sold_out' })
      await until(async () => (await a.store.join(matchId, 'bob')).is === 'closed')
    })

    test('gives a window that nobody used to the next, and tells who let it go by', async () => {
      const matchId = await match({ rate: 60_000, capacity: 1 })
      const ann = listenAt((await join(a, matchId, 'ann')).websocket_url)
      const bob = listenAt((await join(b, matchId, 'bob')).websocket_url)
      await ann.heard(({ type }) => type === 'turn_granted')
      await sql`update turns set expires_at = clock_timestamp() where match_id = ${matchId}`.execute(
        database.db,
      )
      const over = await ann.heard(({ type }) => type === 'queue_closed')
      assert.equal(over.reason, 'window_timeout')
      await bob.heard(({ type }) => type === 'turn_granted')
      assert.equal((await hold(matchId, 'ann')).status, 403)
      const { rows } = await sql`select data from outbox where type = 'queue.expired'
        and data->>'match_id' = ${matchId}`.execute(database.db)
      assert.deepEqual(rows, [
        { data: { match_id: matchId, user_id: 'ann', reason: 'window_timeout' } },
      ])
      for (const { socket } of [ann, bob]) socket.close()
    })
  })
}

test('what stands in Redis is as others may read it', { skip: needs('redis') }, async () => {
  const database = await testDatabase()
  const url = process.env.TEST_REDIS_URL!
  const room = await startWaitingroom(database.db, { REDIS_URL: url })
  const { redis, ready, close } = openRedis({ url, name: 'test' })
  await ready()
  const events: unknown[] = []
  const subscriber = openRedis({ url, name: 'test' })
  await subscriber.ready()
  await subscriber.redis.subscribe('queue_events')
  subscriber.redis.on('message', (_, text) => events.push(JSON.parse(text)))
  const matchId = await makeMatch(database.db, { rate: 6000, capacity: 1 })
  await openAtOnce(database.db, room.store, matchId)
  const { json: ann } = await room.call('POST', `${matchId}/join`, { user: 'ann' })
  const session = JSON.parse(String(await redis.get(`queue_session:ann:${matchId}`)))
  assert.deepEqual(session, { position: 1, queue_token: ann.queue_token, websocket_id: null })
  const life = await redis.ttl(`queue_session:ann:${matchId}`)
  assert.ok(life > 1790 && life <= 1800)
  await until(() => events.length > 0)
  const windows = await redis.hgetall(`purchase_windows:${matchId}`)
  const window = JSON.parse(windows.ann!)
  assert.deepEqual(events, [
    {
      event: 'queue.turn_granted',
      user_id: 'ann',
      match_id: matchId,
      session_token: window.session_token,
      expires_at: window.expires_at,
    },
  ])
  await room.call('POST', `${matchId}/join`, { user: 'bob' })
  const joinedUs = Number(await redis.zscore(`queue:${matchId}`, 'bob'))
  assert.ok(Math.abs(joinedUs / 1000 - Date.now()) < 60_000)
  await until(async () => (await redis.hget(`queue_meta:${matchId}`, 'total_size')) === '1')
  const meta = await redis.hgetall(`queue_meta:${matchId}`)
  assert.deepEqual([meta.status, meta.processing_rate], ['active', '6000'])
  assert.ok(Date.parse(meta.created_at!) <= Date.now())
  await sql`update turns set expires_at = clock_timestamp()`.execute(database.db)
  await until(() => events.length > 1)
  assert.deepEqual(events[1], {
    event: 'queue.expired',
    user_id: 'ann',
    match_id: matchId,
    reason: 'window_timeout',
  })
  await room.kill()
  await close()
  subscriber.redis.disconnect()
})
