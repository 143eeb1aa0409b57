// Random interleavings of hold, confirm, cancel, expire and replay, on several connections of two instances at once:
// no place is sold twice, no command takes effect twice, and the tables agree with every answer that was given.

import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { test } from 'node:test'
import fc from 'fast-check'
import { sql } from 'kysely'
import { auditLedger } from '../db/ledger.ts'
import { expireReservations } from '../db/settlements.ts'
import type { StoredResponse } from '../domain/idempotency.ts'
import { type Command, createCommands } from '../workers/http/commands.ts'
import { testDatabase } from './database.ts'

const { db, open } = await testDatabase()
const instances = [db, open('second').db].map((pool) =>
  createCommands({ db: pool, ttlSeconds: 900 }),
)

const key = () => {
  const hex = randomBytes(16).toString('hex')
  return `${hex.slice(0, 12)}4${hex.slice(13, 16)}8${hex.slice(17)}`
}

const sections = [
  { name: 'A', rows: 2, seats_per_row: 3, price_minor: 5000, currency: 'EUR' },
  { name: 'B', rows: 1, seats_per_row: 2, price_minor: 3000, currency: 'EUR' },
  { name: 'F', capacity: 4, price_minor: 1000, currency: 'EUR' },
]

async function makeEvent(): Promise<string> {
  const event = { name: 'Gala', starts_at: '2027-05-01T19:00:00Z', waiting_room: false, sections }
  const answer = await instances[0]!.run(
    { name: 'createEvent', event },
    { kind: 'key', key: key(), fingerprint: 'event' },
  )
  return JSON.parse(answer.body).event_id
}

/** What a buyer may do; `of` picks one of the reservations or requests there are by then. */
type Step =
  | { do: 'hold'; user: number; quantity: number; section?: string | undefined }
  | { do: 'seats'; user: number; seats: string[] }
  | { do: 'confirm' | 'cancel'; of: number; stranger: boolean }
  | { do: 'replay'; of: number }
  | { do: 'runOut'; of: number }
  | { do: 'sweep' }

const user = fc.nat(3)
const labels = ['A-1-1', 'A-1-2', 'A-2-3', 'B-1-1', 'B-1-2', 'A-9-9']
const step: fc.Arbitrary<Step> = fc.oneof(
  fc.record({
    do: fc.constant('hold' as const),
    user,
    quantity: fc.integer({ min: 1, max: 4 }),
    section: fc.option(fc.constantFrom('A', 'B', 'F', 'Z'), { nil: undefined }),
  }),
  fc.record({
    do: fc.constant('seats' as const),
    user,
    seats: fc.subarray(labels, { minLength: 1, maxLength: 2 }),
  }),
  fc.record({
    do: fc.constantFrom('confirm' as const, 'cancel' as const),
    of: fc.nat(99),
    stranger: fc.boolean().map((b) => b && Math.random() < 0.3),
  }),
  fc.record({ do: fc.constant('replay' as const), of: fc.nat(99) }),
  fc.record({ do: fc.constant('runOut' as const), of: fc.nat(99) }),
  fc.record({ do: fc.constant('sweep' as const) }),
)

type Sent = { command: Command; key: string; answers: StoredResponse[] }
type Run = { eventId: string; sent: Sent[]; reservations: { id: string; user: string }[] }

async function send(run: Run, sent: Sent, instance: number): Promise<void> {
  const answer = await instances[instance % 2]!.run(sent.command, {
    kind: 'key',
    key: sent.key,
    fingerprint: JSON.stringify(sent.command),
  })
  sent.answers.push(answer)
  const body = JSON.parse(answer.body)
  if (answer.status === 201) run.reservations.push({ id: body.reservation_id, user: body.user })
}

async function take(run: Run, action: Step, instance: number): Promise<void> {
  const fresh = (command: Command) => {
    const sent: Sent = { command, key: key(), answers: [] }
    run.sent.push(sent)
    return send(run, sent, instance)
  }
  const { eventId } = run
  switch (action.do) {
    case 'hold': {
      const { quantity, section } = action
      const userId = `u${action.user}`
      return await fresh({ name: 'createReservation', eventId, userId, quantity, section })
    }
    case 'seats': {
      const { seats } = action
      return await fresh({ name: 'createReservation', eventId, userId: `u${action.user}`, seats })
    }
    case 'confirm':
    case 'cancel': {
      const target = run.reservations[action.of % Math.max(1, run.reservations.length)]
      if (target === undefined) return
      const owner = await db
        .selectFrom('reservations')
        .select('user_id')
        .where('id', '=', target.id)
        .executeTakeFirstOrThrow()
      const userId = action.stranger ? 'stranger' : owner.user_id
      return await fresh({ name: `${action.do}Reservation`, reservationId: target.id, userId })
    }
    case 'replay': {
      const sent = run.sent[action.of % Math.max(1, run.sent.length)]
      return sent && (await send(run, sent, instance + 1))
    }
    case 'runOut': {
      const target = run.reservations[action.of % Math.max(1, run.reservations.length)]
      if (target === undefined) return
      await sql`
        update reservations set expires_at = clock_timestamp() - interval '1 second'
        where id = ${target.id} and state = 'held'`
        .execute(db)
        .catch((error) => assert.equal(error.code, '40001'))
      return
    }
    case 'sweep':
      await expireReservations(db, 200)
  }
}

test('no interleaving oversells, runs a command twice or loses an event', {
  timeout: 110_000,
}, async () => {
  let effects = 0
  await fc.assert(
    fc.asyncProperty(
      fc.array(fc.array(step, { minLength: 1, maxLength: 12 }), { minLength: 1, maxLength: 6 }),
      async (waves) => {
        const run: Run = { eventId: await makeEvent(), sent: [], reservations: [] }
        for (const wave of waves) {
          await Promise.all(wave.map((action, i) => take(run, action, i)))
          assert.deepEqual(await auditLedger(db), [])
        }
        for (const { answers, command } of run.sent) {
          for (const answer of answers) {
            assert.deepEqual(
              [answer.status, answer.body],
              [answers[0]!.status, answers[0]!.body],
              `${command.name} answered differently when it was repeated`,
            )
          }
        }
        const { made } = await db
          .selectFrom('reservations')
          .select(({ fn }) => fn.countAll<string>().as('made'))
          .where('event_id', '=', run.eventId)
          .executeTakeFirstOrThrow()
        const told = run.sent.filter(({ answers }) => answers[0]?.status === 201).length
        assert.equal(Number(made), told, 'as many holds as were told')
        effects += told
      },
    ),
    { numRuns: 40 },
  )
  assert.ok(effects > 100, `the runs held something: ${effects}`)
})

test('thirty buyers at once get exactly what the hall has, the rest is told SOLD_OUT', async () => {
  const eventId = await makeEvent()
  const answers = await Promise.all(
    Array.from({ length: 30 }, (_, i) =>
      instances[i % 2]!.run(
        { name: 'createReservation', eventId, userId: `b${i}`, quantity: 1 },
        { kind: 'key', key: key(), fingerprint: 'x' },
      ),
    ),
  )
  assert.equal(answers.filter((a) => a.status === 201).length, 12)
  const refused = answers.filter((a) => a.status !== 201)
  assert.ok(refused.every((a) => a.status === 409 && JSON.parse(a.body).code === 'SOLD_OUT'))
  assert.deepEqual(await auditLedger(db), [])
})

test('seats that are only locked are not sold out: the hold waits and takes them', async () => {
  const eventId = await makeEvent()
  const blocker = await open('blocker').db.startTransaction().execute()
  await sql`select 1 from seats where event_id = ${eventId} for update`.execute(blocker)
  await sql`select 1 from standing_sections where event_id = ${eventId}`.execute(blocker)
  const held = instances[0]!.run(
    { name: 'createReservation', eventId, userId: 'w', quantity: 3, section: 'A' },
    { kind: 'key', key: key(), fingerprint: 'w' },
  )
  await waitFor(async () => {
    const { rows } = await sql`
      select 1 from pg_stat_activity where wait_event_type = 'Lock' and query like '%from seats%'
        and datname = current_database()`.execute(db)
    return rows.length > 0
  })
  await blocker.rollback().execute()
  assert.equal((await held).status, 201)
})

test('confirm against expiry: exactly one wins', async () => {
  for (let round = 0; round < 10; round++) {
    const eventId = await makeEvent()
    const held = await instances[0]!.run(
      { name: 'createReservation', eventId, userId: 'r', quantity: 2 },
      { kind: 'key', key: key(), fingerprint: 'r' },
    )
    const reservationId = JSON.parse(held.body).reservation_id
    await sql`
      update reservations set expires_at = clock_timestamp() + interval '8 milliseconds'
      where id = ${reservationId}`.execute(db)
    const sweeps = async () => {
      for (let i = 0; i < 10; i++) await expireReservations(db, 200)
    }
    const [confirmed] = await Promise.all([
      instances[1]!.run(
        { name: 'confirmReservation', reservationId, userId: 'r' },
        { kind: 'key', key: key(), fingerprint: 'c' },
      ),
      sweeps(),
    ])
    assert.ok(confirmed.status === 200 || confirmed.status === 410, confirmed.body)
    assert.deepEqual(await auditLedger(db), [])
  }
})

async function waitFor(condition: () => Promise<boolean>): Promise<void> {
  for (let i = 0; i < 6000; i++) {
    if (await condition()) return
    await new Promise((resolve) => setTimeout(resolve, 10))
  }
  assert.fail('it never happened')
}
