// The waiting room against those who mean it no good, or cannot help it: false tokens, too many connections, joins and
// messages, frames that are too large, readers that do not read, peers that are gone without a word.

import assert from 'node:assert/strict'
import { once } from 'node:events'
import { connect, createServer, type Socket } from 'node:net'
import { after, before, describe, test } from 'node:test'
import { Client, frame, write } from '../workers/waitingroom/client.ts'
import { createFlood } from '../workers/waitingroom/floods.ts'
import type { Room } from '../workers/waitingroom/room.ts'
import { createTokens } from '../workers/waitingroom/tokens.ts'
import { type TestDatabase, testDatabase } from './database.ts'
import {
  type Answer,
  listenAt,
  makeMatch,
  openAtOnce,
  startWaitingroom,
  type TestWaitingroom,
  tokenSecret,
} from './waitingrooms.ts'
import { until } from './worker.ts'

describe('the waiting room', () => {
  let database: TestDatabase
  let room: TestWaitingroom
  let matchId: string
  before(async () => {
    database = await testDatabase()
    const env = { QUEUE_JOINS_PER_ADDRESS: '300', QUEUE_SOCKETS_MAX: '60' }
    room = await startWaitingroom(database.db, env, { turnMs: 1000 })
    matchId = await makeMatch(database.db, { rate: 0 })
    await openAtOnce(database.db, room.store, matchId)
  })
  after(() => room.kill())

  const join = async (user: string) => {
    const { json } = await room.call('POST', `${matchId}/join`, { user })
    return json as { queue_token: string; websocket_url: string }
  }
  const wsAt = (token: string) => `${room.base.replace('http', 'ws')}/ws/${token}`
  const dropped = (why: string) => room.metricOf('queue_dropped_total', why)

  test('takes no token that is forged, cut, expired, of another user or match', async () => {
    const { queue_token } = await join('ann')
    const [claims = '', signature = ''] = queue_token.split('.')
    const others = Buffer.from(
      Buffer.from(claims, 'base64url').toString().replace('ann', 'bob'),
    ).toString('base64url')
    const place = { matchId, userId: 'ann', seat: 1, joinedUs: 1, epoch: 1 }
    const yesterday = createTokens(tokenSecret, () => Date.now() - 86_400_000)
    const forged = createTokens('another secret of ours')
    const bad = [
      `${others}.${signature}`,
      `${claims}.${signature.slice(0, -2)}AA`,
      claims,
      `${claims}.`,
      '%00',
      'x'.repeat(2000),
      yesterday.sign(place),
      forged.sign(place),
    ]
    const poll = (token: string, match = matchId): Promise<Answer> =>
      room.call('GET', `${match}/position`, { headers: { 'x-queue-token': token } })
    for (const token of bad) {
      const { status, json } = await poll(token)
      assert.deepEqual([status, json.code], [401, 'QUEUE_TOKEN_INVALID'], token)
      const { messages, closed } = listenAt(wsAt(encodeURIComponent(token)))
      await closed
      assert.deepEqual(messages, [])
      const stream = await fetch(`${room.base}/sse/${encodeURIComponent(token)}`)
      assert.equal(stream.status, 401)
    }
    const another = await makeMatch(database.db)
    assert.equal((await poll(queue_token, another)).status, 401)
    assert.equal((await poll(queue_token)).json.position, 1)
    // Before the user's own: a token that is none of his gives a user nothing.
    const mine = await room.call('POST', `${matchId}/join`, { user: 'eve', body: { queue_token } })
    assert.equal(mine.json.position, 2)
  })

  test('a token that was used up gives no place', async () => {
    const { queue_token } = await join('leaver')
    await room.call('DELETE', matchId, { user: 'leaver' })
    const { heard, closed } = listenAt(wsAt(queue_token))
    const { reason } = await heard(({ type }) => type === 'queue_closed')
    assert.equal(reason, 'place_lost')
    assert.equal(await closed, 1000)
  })

  test('of a hundred connections of one place it keeps the newest five, and others are not harmed', async () => {
    const other = listenAt((await join('other')).websocket_url)
    await other.heard(({ type }) => type === 'position_update')
    const { websocket_url } = await join('many')
    const listeners = []
    for (let i = 0; i < 100; i++) {
      const one = listenAt(websocket_url)
      listeners.push(one)
      // The next comes when this one is in: so they have an order.
      await Promise.race([one.heard(() => true), one.closed])
    }
    const codes = await Promise.all(listeners.slice(0, 95).map((one) => one.closed))
    assert.deepEqual(new Set(codes), new Set([4409]))
    for (const { socket } of listeners.slice(95)) assert.equal(socket.readyState, WebSocket.OPEN)
    assert.equal(other.socket.readyState, WebSocket.OPEN)
    for (const { socket } of [...listeners.slice(95), other]) socket.close()
    await until(() => room.crowd.size === 0)
  })

  test('takes no more connections than it has room for', async () => {
    const listeners = []
    for (let i = 0; i < 60; i++) {
      const one = listenAt((await join(`crowd-${i}`)).websocket_url)
      await one.heard(() => true)
      listeners.push(one)
    }
    const { websocket_url, queue_token } = await join('late')
    await listenAt(websocket_url).closed
    const answer = await fetch(`${room.base}/sse/${queue_token}`)
    assert.deepEqual([answer.status, answer.headers.has('retry-after')], [503, true])
    for (const { socket } of listeners) socket.close()
    await until(() => room.crowd.size === 0)
    const again = listenAt(websocket_url)
    await again.heard(() => true)
    again.socket.close()
  })

  test('hangs up on a frame of a megabyte, and on a flood of small ones', async () => {
    const { websocket_url } = await join('loud')
    const large = listenAt(websocket_url)
    await large.heard(() => true)
    large.socket.send('x'.repeat(1024 * 1024))
    assert.equal(await large.closed, 1009)
    const many = listenAt(websocket_url)
    await many.heard(() => true)
    for (let i = 0; i < 1000; i++) many.socket.send('{"type":"heartbeat"}')
    assert.equal(await many.closed, 1008)
    // What is no JSON, or not even text, is a sign of life like any other.
    const odd = listenAt(websocket_url)
    await odd.heard(() => true)
    odd.socket.send('{{{')
    odd.socket.send(new Uint8Array([0, 255]))
    const before = odd.messages.length
    await until(() => odd.messages.length > before)
    odd.socket.close()
  })

  test('lets go of a peer that has gone silent, and keeps one that shows signs of life', async () => {
    const silent = listenAt((await join('silent')).websocket_url)
    const alive = listenAt((await join('alive')).websocket_url)
    await Promise.all([silent.heard(() => true), alive.heard(() => true)])
    const heart = setInterval(() => alive.socket.send('{"type":"heartbeat"}'), 100)
    assert.equal(await silent.closed, 1006)
    assert.equal(alive.socket.readyState, WebSocket.OPEN)
    clearInterval(heart)
    alive.socket.close()
    assert.equal(await dropped('silent'), 1)
  })

  test('refuses a thousand joins of one address, with a time to come back', async () => {
    const answers = await Promise.all(
      Array.from({ length: 1000 }, (_, i) =>
        room.call('POST', `${matchId}/join`, { user: `flood-${i}` }),
      ),
    )
    const refused = answers.filter(({ status }) => status === 429)
    assert.ok(refused.length >= 600, `${refused.length}`)
    assert.ok(answers.every(({ status }) => status === 200 || status === 429))
    assert.ok(refused.every(({ headers }) => Number(headers.get('retry-after')) >= 1))
    const { seats } = await room.store.snapshot(matchId)
    assert.ok(seats.length < 600, 'who was refused has no place')
  })

  test('shows a malformed upgrade the door, and lives', async () => {
    const { port } = new URL(room.base)
    const { queue_token } = {
      queue_token: room.tokens.sign({ matchId, userId: 'ann', seat: 1, joinedUs: 1, epoch: 1 }),
    }
    for (const [head, status] of [
      [
        `GET /ws/${queue_token} HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n`,
        400,
      ],
      [
        `GET /elsewhere HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n`,
        404,
      ],
      ['GET / HTTP/1.1\r\nbad header\r\n\r\n', 400],
    ] as const) {
      const socket = connect(Number(port), '127.0.0.1')
      socket.write(head)
      const [answer] = await once(socket, 'data')
      assert.match(String(answer), new RegExp(`^HTTP/1.1 ${status} `))
      socket.destroy()
    }
  })
})

test('who does not read is cut off, with a bounded amount waiting', async () => {
  const server = createServer()
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  const reader = connect((server.address() as { port: number }).port, '127.0.0.1')
  const [socket] = (await once(server, 'connection')) as [Socket]
  reader.pause()
  const place = { userId: 'slow', seat: 1, joinedUs: 1 }
  const client = new Client(socket, 'ws', {} as Room, place)
  const bytes = frame('x'.repeat(1000))
  let most = 0
  let count = 0
  while (write(client, bytes)) {
    most = Math.max(most, socket.writableLength)
    if (++count % 100 === 0) await new Promise(setImmediate)
    assert.ok(count < 100_000, 'it goes on for ever')
  }
  assert.ok(most <= 66 * 1024, `${most}`)
  assert.ok(socket.destroyed)
  reader.destroy()
  server.close()
})

test('a bucket grants its rate and forgets whom it has not seen', () => {
  let now = 0
  const flood = createFlood(60, () => now)
  const granted = (subject: string, times: number) =>
    Array.from({ length: times }, () => flood.take(subject)).filter((waitMs) => waitMs === 0).length
  assert.equal(granted('a', 100), 60)
  assert.equal(flood.take('a'), 1000)
  assert.equal(granted('b', 100), 60)
  now += 10_000
  assert.equal(granted('a', 100), 10)
  now += 600_000
  assert.equal(granted('a', 100), 60)
  assert.equal(createFlood(0).take('a'), 0)
})

test('a frame is what RFC 6455 says, also at the lengths where its head changes', () => {
  for (const [length, head] of [
    [1, [0x81, 1]],
    [125, [0x81, 125]],
    [126, [0x81, 126, 0, 126]],
    [65_535, [0x81, 126, 255, 255]],
  ] as const) {
    const bytes = frame('é'.repeat(length >> 1) + 'x'.repeat(length % 2))
    assert.deepEqual([...bytes.subarray(0, head.length)], head)
    assert.equal(bytes.length, head.length + length)
  }
})
