// The way of a request through the API: what is told of bad ones, what is replayed, and that nothing bad changes a row.

import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { EventEmitter, once } from 'node:events'
import { type AddressInfo, connect } from 'node:net'
import { after, before, beforeEach, describe, test } from 'node:test'
import { type KyselyPlugin, sql } from 'kysely'
import { pino } from 'pino'
import type { Db } from '../db/schema.ts'
import { createCommands } from '../workers/http/commands.ts'
import { newReservation } from '../workers/http/schemas.ts'
import { connectionsMax, type ServerParts } from '../workers/http/server.ts'
import { type Api, newKey, openApi, unreachableDatabase } from './api.ts'
import { type TestDatabase, testDatabase } from './database.ts'
import { until } from './worker.ts'

let database: TestDatabase
let api: Api
let eventId: string

before(async () => {
  database = await testDatabase()
  api = await openApi(database.database)
})
after(() => api.close())

beforeEach(async () => {
  eventId = await api.makeEvent()
})

const counts = async (): Promise<unknown> => {
  const { rows } = await sql`
    select (select count(*) from reservations) as reservations,
      (select count(*) from seats where state <> 'free') as seats,
      (select count(*) from outbox) as outbox,
      (select count(*) from commands) as commands,
      (select count(*) from events) as events,
      (select count(*) from users) as users,
      (select count(*) from idempotency_records) as records`.execute(database.db)
  return rows[0]
}

const hold = (body: object, call: object = {}) =>
  api.call('POST', 'reservations', { user: 'ann', body: { event_id: eventId, ...body }, ...call })

describe('a reservation', () => {
  test('is held, shown, confirmed, and refused a second time', async () => {
    const held = await hold({ seats: ['A-1-2', 'A-1-3'] })
    assert.equal(held.status, 201, held.text)
    const { reservation_id, expires_at, ...rest } = held.json
    assert.deepEqual(rest, {
      event_id: eventId,
      status: 'held',
      section: 'A',
      quantity: 2,
      seats: ['A-1-2', 'A-1-3'],
    })
    assert.ok(Date.parse(expires_at) > Date.now())

    const path = `reservations/${reservation_id}`
    const shown = await api.call('GET', path, { user: 'ann' })
    assert.deepEqual([shown.status, shown.json.status], [200, 'held'])
    const confirmed = await api.call('POST', `${path}/confirm`, { user: 'ann' })
    assert.equal(confirmed.status, 200, confirmed.text)
    assert.equal(confirmed.json.status, 'confirmed')
    assert.deepEqual(confirmed.json.total, { amount_minor: 5000, currency: 'EUR' })
    assert.equal(confirmed.json.tickets.length, 2)
    const bought = await api.call('GET', path, { user: 'ann' })
    assert.deepEqual(bought.json, confirmed.json)
    const { json: described } = await api.call('GET', '/openapi.json')
    const { schema } =
      described.paths['/api/v1/reservations/{id}'].get.responses[200].content['application/json']
    assert.deepEqual(Object.keys(schema.properties).sort(), Object.keys(bought.json).sort())
    const again = await api.call('POST', `${path}/cancel`, { user: 'ann', body: {} })
    assert.deepEqual([again.status, again.json.code], [409, 'NOT_HELD'])
  })

  test('takes an id in upper case as the same id', async () => {
    const held = await hold({ event_id: eventId.toUpperCase(), quantity: 1 })
    assert.equal(held.status, 201, held.text)
    const path = `reservations/${held.json.reservation_id.toUpperCase()}/cancel`
    assert.equal((await api.call('POST', path, { user: 'ann' })).status, 200)
  })

  test('is nobody else’s to see or settle', async () => {
    const { reservation_id } = (await hold({ quantity: 1 })).json
    const before = await settled(reservation_id)
    const path = `reservations/${reservation_id}`
    const seen = await api.call('GET', path, { user: 'bob' })
    assert.deepEqual([seen.status, seen.json.code], [404, 'RESERVATION_NOT_FOUND'])
    for (const verb of ['confirm', 'cancel']) {
      const answer = await api.call('POST', `${path}/${verb}`, { user: 'bob' })
      assert.deepEqual([answer.status, answer.json.code], [404, 'RESERVATION_NOT_FOUND'])
    }
    assert.deepEqual(await settled(reservation_id), before)
  })

  test('is confirmed once', async () => {
    const { reservation_id } = (await hold({ quantity: 2 })).json
    const path = `reservations/${reservation_id}/confirm`
    assert.equal((await api.call('POST', path, { user: 'ann' })).status, 200)
    const before = await settled(reservation_id)
    const again = await api.call('POST', path, { user: 'ann' })
    assert.deepEqual([again.status, again.json.code], [409, 'NOT_HELD'])
    assert.deepEqual(await settled(reservation_id), before)
  })

  test('of two confirmations at once one wins', async () => {
    const { reservation_id } = (await hold({ quantity: 2 })).json
    const path = `reservations/${reservation_id}/confirm`
    const both = await Promise.all([1, 2].map(() => api.call('POST', path, { user: 'ann' })))
    assert.deepEqual(both.map(({ status }) => status).sort(), [200, 409])
    assert.equal(both.find(({ status }) => status === 409)?.json.code, 'NOT_HELD')
    assert.deepEqual((await settled(reservation_id)).orders, '1')
  })

  test('ends with its time', async () => {
    const { reservation_id } = (await hold({ quantity: 1 })).json
    await sql`update reservations set expires_at = clock_timestamp() - interval '1 ms'
      where id = ${reservation_id}`.execute(database.db)
    const before = await settled(reservation_id)
    for (const verb of ['confirm', 'cancel']) {
      const path = `reservations/${reservation_id}/${verb}`
      const late = await api.call('POST', path, { user: 'ann' })
      assert.deepEqual([late.status, late.json.code], [410, 'RESERVATION_EXPIRED'])
    }
    const shown = await api.call('GET', `reservations/${reservation_id}`, { user: 'ann' })
    assert.equal(shown.json.status, 'expired')
    assert.deepEqual(await settled(reservation_id), before)
  })

  for (const [name, aheadMs] of [
    ['ahead of', 3_600_000],
    ['behind', -3_600_000],
  ] as const) {
    test(`lasts as long as the database says, where the program’s clock is ${name} it`, async (t) => {
      t.mock.timers.enable({ apis: ['Date'], now: Date.now() + aheadMs })
      const { reservation_id } = (await hold({ quantity: 1 })).json
      const path = `reservations/${reservation_id}`
      const left = await database.db
        .selectFrom('reservations')
        .select(sql<number>`extract(epoch from expires_at - clock_timestamp())::float8`.as('s'))
        .where('id', '=', reservation_id)
        .executeTakeFirstOrThrow()
      assert.ok(left.s > 840 && left.s <= 900, `${left.s}`)
      assert.equal((await api.call('GET', path, { user: 'ann' })).json.status, 'held')
      const confirmed = await api.call('POST', `${path}/confirm`, { user: 'ann' })
      assert.equal(confirmed.status, 200, confirmed.text)

      const over = (await hold({ quantity: 1 })).json.reservation_id
      await sql`update reservations set expires_at = clock_timestamp() - interval '1 ms'
        where id = ${over}`.execute(database.db)
      const late = await api.call('POST', `reservations/${over}/confirm`, { user: 'ann' })
      assert.deepEqual([late.status, late.json.code], [410, 'RESERVATION_EXPIRED'])
    })
  }
})

/** The row of a reservation, and what came of it. */
async function settled(id: string) {
  const { rows } = await sql<Record<string, unknown>>`
    select r.state, r.version, r.settled_at,
      (select string_agg(state, ',') from seats where reservation_id = r.id) as seats,
      (select count(*) from orders where reservation_id = r.id) as orders,
      (select count(*) from outbox where subject = r.id::text) as events
    from reservations r where r.id = ${id}`.execute(database.db)
  return rows[0]!
}

describe('an event', () => {
  test('is shown to everyone, with what is left', async () => {
    await hold({ quantity: 3 })
    const shown = await api.call('GET', `events/${eventId}`)
    assert.equal(shown.status, 200)
    assert.deepEqual(shown.json, {
      event_id: eventId,
      name: 'A concert',
      starts_at: '2030-07-01T19:30:00.000Z',
      waiting_room: false,
      sections: [{ name: 'A', capacity: 10, available: 7 }],
    })
  })

  test('is made, though the statistics of its seats cannot be', { timeout: 20_000 }, async () => {
    const event = {
      name: 'x',
      starts_at: '2030-01-01T00:00:00Z',
      waiting_room: false,
      sections: [{ name: 'A', rows: 1, seats_per_row: 1, price_minor: 1, currency: 'EUR' }],
    }
    const make = (db: Db) =>
      createCommands({ db, ttlSeconds: 900 }).run(
        { name: 'createEvent', event },
        { kind: 'key', key: newKey(), fingerprint: 'x' },
      )
    const cutOff: KyselyPlugin = {
      transformQuery({ node }) {
        if (/analyze/.test(JSON.stringify(node))) throw new Error('the connection is gone')
        return node
      },
      transformResult: async ({ result }) => result,
    }
    assert.equal((await make(database.db.withPlugin(cutOff))).status, 201)

    const vacuum = await database.db.startTransaction().execute()
    await sql`lock table seats in share update exclusive mode`.execute(vacuum)
    assert.equal((await make(database.db)).status, 201)
    await vacuum.rollback().execute()
  })

  test('that does not exist is not found, whether the id is well formed or not', async () => {
    for (const id of [randomUUID(), 'nonsense', `urn:uuid:${randomUUID()}`, "'--", '%00']) {
      const answer = await api.call('GET', `events/${id}`)
      assert.deepEqual([answer.status, answer.json.code], [404, 'EVENT_NOT_FOUND'], id)
    }
  })

  test('is in a year of four digits, in UTC, and comes back as it was', async () => {
    const bounds: [string, string][] = [
      ['0001-01-01T00:00:00Z', '0001-01-01T00:00:00.000Z'],
      ['0000-12-31T23:00:00-14:00', '0001-01-01T13:00:00.000Z'],
      ['9999-12-31T23:59:59+00:00', '9999-12-31T23:59:59.000Z'],
    ]
    for (const [starts_at, shown] of bounds) {
      const { json } = await api.call('GET', `events/${await api.makeEvent({ starts_at })}`)
      assert.equal(json.starts_at, shown)
    }
    const section = { name: 'F', capacity: 5, price_minor: 100, currency: 'EUR' }
    for (const starts_at of [
      '9999-12-31T23:59:59-14:00',
      '0000-06-01T00:00:00Z',
      '0001-01-01T00:00:00+14:00',
    ]) {
      const body = { name: 'x', starts_at, sections: [section] }
      const answer = await api.call('POST', 'events', { internal: true, body })
      assert.deepEqual([answer.status, answer.json.code], [400, 'VALIDATION_FAILED'], starts_at)
      assert.equal(answer.json.detail, '/starts_at must be in the years 1 to 9999, in UTC')
    }
  })

  test('needs sections with other names and places that fit', async () => {
    const standing = { name: 'F', capacity: 150_000, price_minor: 100, currency: 'EUR' }
    const event = { name: 'x', starts_at: '2030-01-01T00:00:00Z' }
    const bad: [object, string][] = [
      [{ ...event, sections: [standing, { ...standing, capacity: 5 }] }, '/sections/1/name'],
      [{ ...event, sections: [standing, { ...standing, name: 'G' }] }, '/sections'],
      [{ ...event, sections: [{ ...standing, rows: 3 }] }, '/sections/0/seats_per_row'],
      [{ ...event, sections: [] }, '/sections'],
      [{ ...event, starts_at: 'tomorrow', sections: [standing] }, '/starts_at'],
      [{ ...event, starts_at: '2030-12-31T23:59:60Z', sections: [standing] }, '/starts_at'],
      [{ ...event, name: 'a\u0000b', sections: [standing] }, '/name'],
      [{ ...event, sections: [{ ...standing, currency: 'euro' }] }, '/sections/0/currency'],
    ]
    for (const [body, path] of bad) {
      const answer = await api.call('POST', 'events', { internal: true, body })
      assert.deepEqual([answer.status, answer.json.code], [400, 'VALIDATION_FAILED'], answer.text)
      assert.equal(answer.json.errors[0].path, path, answer.text)
    }
  })
})

describe('64 kB that are as bad as can be', () => {
  const many = (item: unknown, count: number) => Array.from({ length: count }, () => item)
  const section = 'the name of a section: 1 to 64 visible characters'
  const event = { name: 'x', starts_at: '2030-01-01T00:00:00Z' }
  const asUser = { user: 'ann' }
  const asProgram = { internal: true }
  const requests: [string, 'POST' | 'PUT', string, object, object, [string, string]][] = [
    [
      'a long name with one bad letter at its end',
      'POST',
      'reservations',
      asUser,
      { event_id: randomUUID(), quantity: 1, section: `${'a'.repeat(60_000)}\n` },
      ['/section', `must be ${section}`],
    ],
    [
      '31,000 seats that are none',
      'POST',
      'reservations',
      asUser,
      { event_id: randomUUID(), seats: many(1, 31_000) },
      ['/seats', 'must be a list of 1 to 20 different seats'],
    ],
    [
      '6,000 devices that are none',
      'PUT',
      'users/ann',
      asUser,
      { devices: many({ a: 0 }, 6_000) },
      ['/devices', 'must be a list of at most 20 different devices'],
    ],
    [
      '20,000 empty sections',
      'POST',
      'events',
      asProgram,
      { ...event, sections: many({}, 20_000) },
      ['/sections', 'must be a list of 1 to 200 sections'],
    ],
  ]
  for (const [name, method, path, caller, body, [where, message]] of requests) {
    test(`${name}: the first fault is told, and no rule is asked further`, async () => {
      const sinceMs = performance.now()
      const answer = await api.call(method, path, { ...caller, body })
      assert.deepEqual([answer.status, answer.json.code], [400, 'VALIDATION_FAILED'])
      assert.deepEqual(answer.json.errors, [{ path: where, message }])
      // Of seconds, where every rule is asked: generous, for a machine that is busy.
      assert.ok(performance.now() - sinceMs < 2000, `${performance.now() - sinceMs} ms`)
    })
  }

  test('a name is matched from left to right, however it ends', () => {
    const { section } = newReservation.properties
    const pattern = new RegExp(section.pattern, 'u')
    const sinceMs = performance.now()
    for (const text of [`${'a'.repeat(100_000)}\n`, ' '.repeat(100_000), ' a'.repeat(50_000)]) {
      assert.equal(pattern.test(text), text.endsWith('a'))
    }
    assert.ok(performance.now() - sinceMs < 2000, `${performance.now() - sinceMs} ms`)
    for (const good of ['a', ' a', 'a ', ' Ä-1 😀 ']) assert.ok(pattern.test(good), good)
    for (const bad of ['', ' ', '\u00a0', 'a\n', '\u0000a', 'a\u007f', 'a\ud800']) {
      assert.ok(!pattern.test(bad), JSON.stringify(bad))
    }
  })
})

describe('bad input changes nothing and is told by its own code', () => {
  const good = { quantity: 1 }
  const bodies: [string, unknown, number, string, string?][] = [
    ['quantity 0', { quantity: 0 }, 400, 'VALIDATION_FAILED', '/quantity'],
    ['a negative quantity', { quantity: -1 }, 400, 'VALIDATION_FAILED', '/quantity'],
    ['a huge quantity', { quantity: 1e12 }, 400, 'VALIDATION_FAILED', '/quantity'],
    ['21 places', { quantity: 21 }, 400, 'VALIDATION_FAILED', '/quantity'],
    ['a fractional quantity', { quantity: 1.5 }, 400, 'VALIDATION_FAILED', '/quantity'],
    ['a quantity in quotes', { quantity: '2' }, 400, 'VALIDATION_FAILED', '/quantity'],
    ['quantity and seats', { quantity: 1, seats: ['A-1-1'] }, 400, 'VALIDATION_FAILED', ''],
    ['neither quantity nor seats', {}, 400, 'VALIDATION_FAILED', ''],
    ['the same seat twice', { seats: ['A-1-1', 'A-1-1'] }, 400, 'VALIDATION_FAILED', '/seats'],
    ['no seats', { seats: [] }, 400, 'VALIDATION_FAILED', '/seats'],
    ['a malformed seat', { seats: ['A-1-1', 'A1'] }, 400, 'VALIDATION_FAILED', '/seats/1'],
    ['a row 0', { seats: ['A-0-1'] }, 400, 'VALIDATION_FAILED', '/seats/0'],
    ['an unknown field', { quantity: 1, vip: true }, 400, 'VALIDATION_FAILED', '/vip'],
    ['an event id that is none', { event_id: '7', ...good }, 400, 'VALIDATION_FAILED', '/event_id'],
    ['half a surrogate pair', '{"quantity":1,"section":"\\ud800"}', 400, 'VALIDATION_FAILED'],
    ['an array', [], 400, 'VALIDATION_FAILED', ''],
    ['null', null, 400, 'VALIDATION_FAILED', ''],
    ['broken JSON', '{"quantity":', 400, 'INVALID_JSON'],
    ['a key __proto__', '{"quantity":1,"__proto__":{"x":1}}', 400, 'VALIDATION_FAILED', ''],
    [
      'a key constructor.prototype',
      '{"quantity":1,"constructor":{"prototype":{"x":1}}}',
      400,
      'VALIDATION_FAILED',
      '',
    ],
    ['65 kB', JSON.stringify({ section: 'x'.repeat(65_537) }), 413, 'BODY_TOO_LARGE'],
    ['an unknown event', { event_id: randomUUID(), ...good }, 404, 'EVENT_NOT_FOUND'],
    ['an unknown section', { section: 'Z', ...good }, 404, 'SECTION_NOT_FOUND'],
  ]
  for (const [name, body, status, code, path] of bodies) {
    test(name, async () => {
      const before = await counts()
      const isObject = body !== null && typeof body === 'object' && !Array.isArray(body)
      const answer = await api.call('POST', 'reservations', {
        user: 'ann',
        body: isObject ? { event_id: eventId, ...body } : body === null ? 'null' : body,
      })
      assert.deepEqual([answer.status, answer.json.code], [status, code], answer.text)
      assert.equal(answer.headers['content-type'], 'application/problem+json; charset=utf-8')
      if (path !== undefined) {
        assert.ok(
          answer.json.errors.some((error: { path: string }) => error.path === path),
          answer.text,
        )
      }
      // A decision is kept under its key; nothing else may have changed.
      const kept = status === 404 ? { records: String(Number(await records(before)) + 1) } : {}
      assert.deepEqual(await counts(), { ...(before as object), ...kept })
    })
  }
  const records = async (row: unknown) => (row as { records: string }).records

  const keys: [string, string | false, string][] = [
    ['no key', false, 'IDEMPOTENCY_KEY_MISSING'],
    ['an empty key', '', 'IDEMPOTENCY_KEY_MISSING'],
    ['a word', 'abc', 'IDEMPOTENCY_KEY_INVALID'],
    ['upper case', newKey().toUpperCase(), 'IDEMPOTENCY_KEY_INVALID'],
    ['hyphens', randomUUID(), 'IDEMPOTENCY_KEY_INVALID'],
    ['a UUID of version 1', 'a0eebc999c0b1ef8bb6d6bb9bd380a11', 'IDEMPOTENCY_KEY_INVALID'],
    ['two keys', `${newKey()}, ${newKey()}`, 'IDEMPOTENCY_KEY_INVALID'],
    ['an open quote', `"${newKey()}`, 'IDEMPOTENCY_KEY_INVALID'],
  ]
  for (const [name, key, code] of keys) {
    test(`key: ${name}`, async () => {
      const before = await counts()
      const answer = await hold(good, { key })
      assert.deepEqual([answer.status, answer.json.code], [400, code], answer.text)
      assert.deepEqual(await counts(), before)
    })
  }

  test('another media type', async () => {
    for (const type of [
      'text/plain',
      'application/x-www-form-urlencoded',
      'application/xml',
      'x',
    ]) {
      const answer = await hold(good, { headers: { 'content-type': type } })
      assert.deepEqual([answer.status, answer.json.code], [415, 'UNSUPPORTED_MEDIA_TYPE'], type)
    }
  })

  test('a compressed body', async () => {
    const answer = await hold(good, { headers: { 'content-encoding': 'gzip' } })
    assert.deepEqual([answer.status, answer.json.code], [415, 'UNSUPPORTED_MEDIA_TYPE'])
  })

  test('the sentence says what is right', async () => {
    const both = await hold({ quantity: 1, seats: ['A-1-1'] })
    assert.equal(both.json.detail, 'the body must have either quantity or seats, not both')
    const many = await hold({ quantity: 21 })
    assert.equal(many.json.detail, '/quantity must be a whole number from 1 to 20')
    const unknown = await hold({ quantity: 1, vip: true })
    assert.equal(
      unknown.json.detail,
      '/vip is not a known field; known are event_id, quantity, seats, section',
    )
  })
})

test('a body that is no object is told so, also none at all', async () => {
  const paths: ['POST' | 'PUT', string, object][] = [
    ['POST', 'reservations', { user: 'ann' }],
    ['POST', 'events', { internal: true }],
    ['PUT', 'users/ann', { user: 'ann' }],
  ]
  for (const [method, path, caller] of paths) {
    for (const body of [undefined, '', '[]', 'null', '5', '"x"', 'true']) {
      const answer = await api.call(method, path, { ...caller, body })
      assert.deepEqual([answer.status, answer.json.code], [400, 'VALIDATION_FAILED'], body)
      assert.deepEqual(answer.json.errors, [{ path: '', message: 'must be an object' }], body)
      assert.equal(answer.json.detail, 'the body must be an object')
    }
  }
  const sections = [5]
  const inner = await api.call('POST', 'events', {
    internal: true,
    body: { name: 'x', starts_at: '2030-01-01T00:00:00Z', sections },
  })
  assert.equal(inner.json.detail, '/sections/0 must be an object')
})

describe('on a real socket', () => {
  let real: Api
  let port: number
  const lines: Record<string, unknown>[] = []
  const steps = new EventEmitter()

  before(async () => {
    const log = pino({ level: 'debug' }, { write: (line: string) => lines.push(JSON.parse(line)) })
    const run: ServerParts['run'] = async (command, receipt) => {
      steps.emit('run')
      await once(steps, 'go on')
      return await api.commands.run(command, receipt)
    }
    real = await openApi(database.database, { log, run }, { HTTP_REQUEST_TIMEOUT: 1 })
    await real.app.listen({ port: 0, host: '127.0.0.1' })
    port = (real.app.server.address() as AddressInfo).port
  })
  after(() => real.close())

  const head = (key: string, length: number) =>
    `POST /api/v1/reservations HTTP/1.1\r\nhost: x\r\nx-mock-user-id: ann\r\nidempotency-key: ${key}\r\n` +
    `content-type: application/json\r\ncontent-length: ${length}\r\n\r\n`

  const send = (text: string) => {
    const socket = connect(port, '127.0.0.1').on('error', () => {})
    socket.write(text)
    return socket
  }

  const answerTo = async (text: string): Promise<string> => {
    const socket = send(text)
    const [answer] = await once(socket, 'data')
    socket.destroy()
    return String(answer)
  }

  test('a 10 MB body is refused before it is read', async () => {
    const answer = await answerTo(head(newKey(), 10 * 1024 * 1024))
    assert.match(answer, /^HTTP\/1\.1 413 /)
    assert.match(answer, /BODY_TOO_LARGE/)
    assert.match(answer, /connection: close/i)
  })

  test('a body of no told length is refused at 64 kB', async () => {
    const chunk = `10000\r\n${'x'.repeat(65_536)}\r\n`
    const unknown = head(newKey(), 0).replace(/content-length: 0/, 'transfer-encoding: chunked')
    assert.match(await answerTo(unknown + chunk + chunk), /^HTTP\/1\.1 413 /)
  })

  test('what is not HTTP is told so', async () => {
    const answer = await answerTo('GARBAGE\r\n\r\n')
    assert.match(answer, /^HTTP\/1\.1 400 .*application\/problem\+json.*"BAD_REQUEST"/s)
    const flood = `GET / HTTP/1.1\r\nhost: x\r\nx: ${'x'.repeat(20_000)}\r\n\r\n`
    assert.match(await answerTo(flood), /^HTTP\/1\.1 431 /)
  })

  test('a client that sends too slowly is let go', async () => {
    const answer = await answerTo(`${head(newKey(), 100)}{"half":`)
    assert.match(answer, /^HTTP\/1\.1 408 /)
  })

  test('one that hangs up within its body is no fault of ours', async () => {
    lines.length = 0
    const socket = send(`${head(newKey(), 100)}{"half":`)
    await once(real.app.server, 'request')
    socket.destroy()
    await until(() => lines.some(({ code }) => code === 'BAD_REQUEST'))
    assert.ok(lines.every(({ level }) => Number(level) < 40))
  })

  test('one that hangs up before the answer has its write done, and may ask again', async () => {
    const key = newKey()
    const body = JSON.stringify({ event_id: eventId, quantity: 1 })
    const socket = send(head(key, Buffer.byteLength(body)) + body)
    await once(steps, 'run')
    socket.destroy()
    await once(socket, 'close')
    steps.emit('go on')
    let again = await hold({ quantity: 1 }, { key })
    await until(async () => {
      again = await hold({ quantity: 1 }, { key })
      return again.status !== 409
    })
    assert.deepEqual([again.status, again.headers['idempotent-replayed']], [201, 'true'])
  })
})

describe('a repeated request', () => {
  test('gets the first answer byte for byte, and runs once', async () => {
    const key = newKey()
    const first = await hold({ quantity: 1 }, { key })
    const before = await counts()
    const second = await hold({ quantity: 1 }, { key: `"${key}"` })
    assert.equal(second.status, 201)
    assert.equal(second.text, first.text)
    assert.equal(second.headers['content-type'], first.headers['content-type'])
    assert.equal(second.headers['idempotent-replayed'], 'true')
    assert.equal(first.headers['idempotent-replayed'], undefined)
    assert.deepEqual(await counts(), before)
  })

  test('may order and space its JSON differently', async () => {
    const key = newKey()
    const first = await hold({ quantity: 1 }, { key })
    const body = ` { "quantity" : 1.0, "event_id": "${eventId}" } `
    const second = await api.call('POST', 'reservations', { user: 'ann', key, body })
    assert.equal(second.text, first.text)
  })

  test('keeps a refusal that was decided', async () => {
    await hold({ seats: ['A-1-1'] })
    const key = newKey()
    const first = await hold({ seats: ['A-1-1'] }, { key })
    assert.deepEqual([first.status, first.json.code], [409, 'SEATS_UNAVAILABLE'])
    const second = await hold({ seats: ['A-1-1'] }, { key })
    assert.deepEqual([second.text, second.headers['idempotent-replayed']], [first.text, 'true'])
  })

  test('with another body, user, path or method is refused, and the first answer stays', async () => {
    const key = newKey()
    const first = await hold({ quantity: 1 }, { key })
    const { reservation_id } = first.json
    const others = [
      hold({ quantity: 2 }, { key }),
      hold({ quantity: 1 }, { key, user: 'bob' }),
      api.call('POST', `reservations/${reservation_id}/cancel`, { key, user: 'ann' }),
      api.call('PUT', 'users/ann', { key, user: 'ann', body: {} }),
      api.call('POST', 'reservations?x=1', {
        key,
        user: 'ann',
        body: { event_id: eventId, quantity: 1 },
      }),
    ]
    for (const other of await Promise.all(others)) {
      assert.deepEqual([other.status, other.json.code], [422, 'IDEMPOTENCY_KEY_REUSED'], other.text)
    }
    assert.equal((await hold({ quantity: 1 }, { key })).text, first.text)
  })

  test('while the first is at work is told to wait', async () => {
    const gate = Promise.withResolvers<void>()
    const started = Promise.withResolvers<void>()
    const slow = await openApi(database.database, {
      run: async (command, receipt) => {
        started.resolve()
        await gate.promise
        return await api.commands.run(command, receipt)
      },
    })
    const key = newKey()
    const body = { event_id: eventId, quantity: 1 }
    const first = slow.call('POST', 'reservations', { user: 'ann', key, body })
    await started.promise
    const second = await hold({ quantity: 1 }, { key })
    assert.deepEqual([second.status, second.json.code], [409, 'IDEMPOTENCY_KEY_IN_USE'])
    assert.ok(Number(second.headers['retry-after']) >= 1)
    const other = await hold({ quantity: 2 }, { key })
    assert.equal(other.json.code, 'IDEMPOTENCY_KEY_REUSED')
    gate.resolve()
    assert.equal((await first).status, 201)
    await slow.close()
  })

  test('sent ten times at once runs once', async () => {
    const key = newKey()
    const before = await database.db.selectFrom('reservations').select('id').execute()
    const answers = await Promise.all(
      Array.from({ length: 10 }, () => hold({ quantity: 1 }, { key })),
    )
    const made = answers.filter(({ status }) => status === 201)
    const told = answers.filter(({ status }) => status === 409)
    assert.equal(made.length + told.length, 10)
    assert.equal(new Set(made.map(({ text }) => text)).size, 1)
    assert.ok(told.every(({ json }) => json.code === 'IDEMPOTENCY_KEY_IN_USE'))
    const after = await database.db.selectFrom('reservations').select('id').execute()
    assert.equal(after.length, before.length + 1)
  })

  test('after a refusal that was no decision runs', async () => {
    const key = newKey()
    assert.equal((await hold({ quantity: 0 }, { key })).status, 400)
    assert.equal((await hold({ quantity: 1 }, { key })).status, 201)
  })

  test('after a fault runs, and the fault stays in the log', async () => {
    const lines: string[] = []
    const faulty = await openApi(database.database, {
      log: pino({}, { write: (line: string) => lines.push(line) }),
      run: async () => {
        throw new Error('a secret of the house')
      },
    })
    const key = newKey()
    const body = { event_id: eventId, quantity: 1 }
    const headers = { 'x-request-id': 'abc-1' }
    const bad = await faulty.call('POST', 'reservations', { user: 'ann', key, body, headers })
    assert.deepEqual([bad.status, bad.json.code], [500, 'INTERNAL'])
    assert.doesNotMatch(bad.text, /secret/)
    const [line] = lines.map((text) => JSON.parse(text))
    assert.equal(line.request_id, 'abc-1')
    assert.match(line.err.message, /a secret of the house/)
    assert.equal((await hold({ quantity: 1 }, { key })).status, 201)
    await faulty.close()
  })

  test('whose lock ran out before its command was started does not start it', async () => {
    let nowMs = 0
    const late = await openApi(database.database, { nowMs: () => (nowMs += 30_000) })
    const key = newKey()
    const body = { event_id: eventId, quantity: 1 }
    const before = await counts()
    const answer = await late.call('POST', 'reservations', { user: 'ann', key, body })
    assert.deepEqual([answer.status, answer.json.code], [503, 'OVERLOADED'])
    assert.deepEqual(await counts(), before)
    await late.close()
  })
})

describe('a limit', () => {
  test('of a user’s writes refuses the one too many, and charges no replay', async () => {
    const limited = await openApi(database.database, {}, { RATE_LIMIT_USER_PER_MINUTE: 2 })
    const user = `user-${randomUUID()}`
    const body = { event_id: eventId, quantity: 1 }
    const key = newKey()
    for (let i = 0; i < 4; i++) {
      const answer = await limited.call('POST', 'reservations', { user, body, key })
      assert.equal(answer.status, 201)
    }
    const second = await limited.call('POST', 'reservations', { user, body })
    assert.equal(second.status, 201)
    assert.equal(second.headers['ratelimit-policy'], '"user";q=2;w=60')
    assert.equal(second.headers.ratelimit, '"user";r=0')
    const refused = newKey()
    const third = await limited.call('POST', 'reservations', { user, body, key: refused })
    assert.deepEqual([third.status, third.json.code], [429, 'RATE_LIMITED'])
    const wait = Number(third.headers['retry-after'])
    // Both were counted in this minute, so half of the next one has to pass.
    assert.ok(wait > 1 && wait <= 90, String(wait))
    assert.equal(third.headers.ratelimit, `"user";r=0;t=${wait}`)
    // The refusal is not kept under its key.
    const allowed = await api.call('POST', 'reservations', { user, body, key: refused })
    assert.equal(allowed.status, 201)
    assert.equal((await limited.call('GET', `events/${eventId}`)).status, 200)
    await limited.close()
  })

  test('of all counts reads too', async () => {
    const limited = await openApi(database.database, {}, { RATE_LIMIT_GLOBAL_PER_MINUTE: 1 })
    const first = await limited.call('GET', `events/${eventId}`)
    const second = await limited.call('GET', `events/${eventId}`)
    assert.deepEqual([first.status, second.status], [200, 429])
    assert.equal(second.headers['ratelimit-policy'], '"global";q=1;w=60')
    await limited.close()
  })
})

describe('the protocol', () => {
  test('an unknown path is not found, a wrong method is told the right ones', async () => {
    const unknown = await api.call('GET', '/api/v1/nothing')
    assert.deepEqual([unknown.status, unknown.json.code], [404, 'NOT_FOUND'])
    const posted = await api.call('POST', '/nothing', {
      headers: { 'content-type': 'x/y' },
      body: '',
    })
    assert.equal(posted.status, 404)
    const wrong = await api.call('DELETE', 'reservations')
    assert.deepEqual([wrong.status, wrong.json.code], [405, 'METHOD_NOT_ALLOWED'])
    assert.equal(wrong.headers.allow, 'POST, OPTIONS')
    const read = await api.call('GET', `reservations/${randomUUID()}/confirm`)
    assert.deepEqual([read.status, read.headers.allow], [405, 'POST, OPTIONS'])
    const options = await api.call('OPTIONS', `events/${eventId}`)
    assert.deepEqual([options.status, options.headers.allow], [204, 'GET, HEAD, OPTIONS'])
  })

  test('what is not found below the page of the docs is told as elsewhere', async () => {
    for (const path of ['/docs/nothing', '/docs/static/nothing.js', '/docs/a/b?c']) {
      const answer = await api.call('GET', path)
      assert.equal(answer.status, 404, path)
      assert.equal(answer.headers['content-type'], 'application/problem+json; charset=utf-8', path)
      assert.equal(answer.json.code, 'NOT_FOUND')
      assert.equal(answer.json.detail, `there is nothing at ${path.split('?')[0]}`)
      assert.ok(answer.headers['x-request-id'])
    }
  })

  test('connections are bounded, so that descriptors remain for the database', async () => {
    const bounded = await openApi(database.database)
    assert.equal(bounded.app.server.maxConnections, connectionsMax)
    // Lowered here, since it is the bound that is seen, not its size.
    bounded.app.server.maxConnections = 1
    await bounded.app.listen({ port: 0, host: '127.0.0.1' })
    const { port } = bounded.app.server.address() as AddressInfo
    const first = connect(port, '127.0.0.1')
    await once(bounded.app.server, 'connection')
    const second = connect(port, '127.0.0.1').on('error', () => {})
    await once(second, 'close')
    assert.equal(first.destroyed, false)
    first.destroy()
    await bounded.close()
  })

  test('HEAD answers as GET does, without the body', async () => {
    const head = await api.call('HEAD', `events/${eventId}`)
    assert.deepEqual([head.status, head.text], [200, ''])
    assert.ok(Number(head.headers['content-length']) > 100)
  })

  test('a malformed path is a bad request', async () => {
    const answer = await api.call('GET', '/api/v1/events/%zz')
    assert.deepEqual([answer.status, answer.json.code], [400, 'BAD_REQUEST'])
  })

  test('X-Request-Id comes back, or a new one for one that cannot be used', async () => {
    const path = `events/${eventId}`
    const kept = await api.call('GET', path, { headers: { 'x-request-id': 'from-me' } })
    assert.equal(kept.headers['x-request-id'], 'from-me')
    for (const bad of ['x'.repeat(129), 'a b', 'ü']) {
      const made = await api.call('GET', path, { headers: { 'x-request-id': bad } })
      assert.match(String(made.headers['x-request-id']), /^[0-9a-f-]{36}$/)
    }
  })

  test('an event carries the request id of its write', async () => {
    await hold({ quantity: 1 }, { headers: { 'x-request-id': 'traced-1' } })
    const row = await database.db
      .selectFrom('outbox')
      .select('type')
      .where('request_id', '=', 'traced-1')
      .executeTakeFirst()
    assert.equal(row?.type, 'reservation.held')
  })

  test('answers are not to be cached or sniffed', async () => {
    const { headers } = await api.call('GET', `events/${eventId}`)
    assert.equal(headers['cache-control'], 'no-store')
    assert.equal(headers['x-content-type-options'], 'nosniff')
  })

  test('a database that cannot be reached is told as 503 with Retry-After', async () => {
    const gone = unreachableDatabase()
    const cut = await openApi(gone)
    const read = await cut.call('GET', `events/${eventId}`)
    assert.deepEqual([read.status, read.json.code], [503, 'UNAVAILABLE'], read.text)
    assert.ok(Number(read.headers['retry-after']) >= 1)
    const body = { event_id: eventId, quantity: 1 }
    const write = await cut.call('POST', 'reservations', { user: 'ann', body })
    assert.deepEqual([write.status, write.json.code], [503, 'UNAVAILABLE'], write.text)
    await cut.close()
    await gone.close()
  })

  test('a database that is out of disk, of memory or of connections is told so too', async () => {
    for (const code of ['53000', '53100', '53200', '53300', '58000', '58030', '57P03', '08006']) {
      const full = await openApi(database.database, {
        run: () => Promise.reject(Object.assign(new Error('could not extend file'), { code })),
      })
      const key = newKey()
      const body = { event_id: eventId, quantity: 1 }
      const answer = await full.call('POST', 'reservations', { user: 'ann', key, body })
      await full.close()
      assert.deepEqual([answer.status, answer.json.code], [503, 'UNAVAILABLE'], code)
      assert.equal(answer.headers['retry-after'], '2')
      assert.doesNotMatch(answer.text, /extend file/)
      assert.equal((await hold({ quantity: 1 }, { key })).status, 201)
    }
  })

  test('a request in hand is finished at the close, a new one is refused', async () => {
    const gate = Promise.withResolvers<void>()
    const started = Promise.withResolvers<void>()
    const closing = await openApi(database.database, {
      run: async (command, receipt) => {
        started.resolve()
        await gate.promise
        return await api.commands.run(command, receipt)
      },
    })
    await closing.app.listen({ port: 0, host: '127.0.0.1' })
    const { port } = closing.app.server.address() as AddressInfo
    const base = `http://127.0.0.1:${port}/api/v1`
    const write = fetch(`${base}/reservations`, {
      method: 'POST',
      headers: {
        'x-mock-user-id': 'ann',
        'idempotency-key': newKey(),
        'content-type': 'application/json',
      },
      body: JSON.stringify({ event_id: eventId, quantity: 1 }),
    })
    await started.promise
    const closed = closing.close()
    await assert.rejects(fetch(`${base}/events/${eventId}`))
    gate.resolve()
    const answer = await write
    assert.equal(answer.status, 201)
    assert.equal(answer.headers.get('connection'), 'close')
    await closed
  })
})

describe('the description', () => {
  test('names every route with its key, who may call it, and its problems', async () => {
    const { json } = await api.call('GET', '/openapi.json')
    assert.equal(json.openapi, '3.1.0')
    assert.deepEqual(
      Object.keys(json.paths).sort(),
      [
        '/api/v1/commands/{id}',
        '/api/v1/events/',
        '/api/v1/events/{id}',
        '/api/v1/items/',
        '/api/v1/items/{id}',
        '/api/v1/items/{id}/similar',
        '/api/v1/jobs/{queue}',
        '/api/v1/jobs/{queue}/{id}',
        '/api/v1/quotas/',
        '/api/v1/reservations/',
        '/api/v1/reservations/{id}',
        '/api/v1/reservations/{id}/cancel',
        '/api/v1/reservations/{id}/confirm',
        '/api/v1/users/{id}',
        '/api/v1/webhooks/mailgun/',
        '/api/v1/webhooks/stripe/',
      ].map((path) => path.replace(/\/$/, '')),
    )
    const { post } = json.paths['/api/v1/reservations']
    const key = post.parameters.find(({ name }: { name: string }) => name === 'Idempotency-Key')
    assert.equal(key.required, true)
    assert.deepEqual(post.security, [{ bearer: [] }, { mockUser: [] }])
    const problem = post.responses[409].content['application/problem+json'].schema
    assert.deepEqual(problem.properties.code.enum.sort(), [
      'IDEMPOTENCY_KEY_IN_USE',
      'SEATS_UNAVAILABLE',
      'SOLD_OUT',
    ])
    assert.ok(post.responses[201] && post.responses[202] && post.responses[429])
  })

  test('has a page that loads nothing from elsewhere', async () => {
    const page = await api.call('GET', '/docs/')
    assert.equal(page.status, 200)
    assert.doesNotMatch(page.text, /(src|href)="(https?:)?\/\//)
    assert.match(String(page.headers['content-security-policy']), /default-src 'self'/)
    const files = [...page.text.matchAll(/(?:src|href)="\.?\/?([^"]+)"/g)].map(([, file]) => file)
    assert.ok(files.length > 3)
    for (const file of files) {
      const path = file?.startsWith('docs') ? `/${file}` : `/docs/${file}`
      assert.equal((await api.call('GET', path)).status, 200, path)
    }
    assert.equal((await api.call('HEAD', '/openapi.json')).status, 200)
    assert.equal((await api.call('GET', '/docs/../../package.json')).status, 404)
  })
})
