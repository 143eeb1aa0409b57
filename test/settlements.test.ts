// What becomes of a hold, at the edges: settled at the very moment its time is over, and the order in which locks are
// taken.

import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { sql } from 'kysely'
import { createEvent } from '../db/events.ts'
import { type Held, holdPlaces } from '../db/holds.ts'
import { auditLedger } from '../db/ledger.ts'
import { confirmReservations } from '../db/orders.ts'
import type { Tx } from '../db/schema.ts'
import { cancelReservations } from '../db/settlements.ts'
import { transaction } from '../db/transaction.ts'
import { AppError } from '../domain/errors.ts'
import { testDatabase } from './database.ts'
import { until } from './worker.ts'

const { db, open } = await testDatabase()
const other = open('other').db

const standing = (name: string) => ({ name, capacity: 10, price_minor: 100, currency: 'EUR' })
const seated = { name: 'A', rows: 2, seats_per_row: 5, price_minor: 100, currency: 'EUR' }

const makeEvent = (sections: Parameters<typeof createEvent>[1]['sections']) =>
  transaction(db, (tx) =>
    createEvent(tx, {
      name: 'Gala',
      starts_at: '2030-05-01T19:00:00Z',
      waiting_room: false,
      sections,
    }),
  )

async function hold(eventId: string, section: string): Promise<string> {
  const [held] = await transaction(db, (tx) =>
    holdPlaces(tx, [{ userId: 'ann', section, quantity: 1 }], {
      eventId,
      ttlSeconds: 900,
      patient: false,
    }),
  )
  return (held as Held).reservationId
}

const isBlocked = async () => {
  const { rows } = await sql`
    select from pg_stat_activity
    where datname = current_database() and wait_event_type = 'Lock'`.execute(db)
  return rows.length > 0
}

const changes = {
  confirmed: confirmReservations,
  cancelled: cancelReservations,
} as const

describe('a hold that is over while its change waits for the lock', () => {
  for (const [name, change] of Object.entries(changes)) {
    test(`is not ${name}`, async () => {
      const eventId = await makeEvent([seated])
      const reservationId = await hold(eventId, 'A')
      const row = db
        .selectFrom('reservations')
        .select(['state', 'version', 'settled_at'])
        .where('id', '=', reservationId)
      const before = await row.executeTakeFirst()
      await sql`update reservations set expires_at = clock_timestamp() + interval '1 second'
        where id = ${reservationId}`.execute(db)

      const blocker = await other.startTransaction().execute()
      await sql`select from reservations where id = ${reservationId} for update`.execute(blocker)
      const outcome = transaction<unknown[]>(db, (tx) =>
        change(tx, [{ reservationId, userId: 'ann' }]),
      )
      await until(isBlocked)
      await until(async () => {
        const { rows } = await sql`select from reservations
          where id = ${reservationId} and expires_at <= clock_timestamp()`.execute(other)
        return rows.length > 0
      })
      await blocker.rollback().execute()

      const [refused] = await outcome
      assert.ok(refused instanceof AppError)
      assert.equal(refused.code, 'RESERVATION_EXPIRED')
      assert.deepEqual(await row.executeTakeFirst(), before)
      assert.deepEqual(await auditLedger(db), [])
    })
  }
})

test('standing counters are locked in the order of their numbers, as holds lock them', async () => {
  const names = Array.from({ length: 10 }, (_, i) => `S${i + 1}`)
  const eventId = await makeEvent(names.map(standing))
  const reservations = [await hold(eventId, 'S2'), await hold(eventId, 'S10')]

  const counter = (tx: Tx, sectionNo: number) =>
    tx
      .selectFrom('standing_sections')
      .select('section_no')
      .where('event_id', '=', eventId)
      .where('section_no', '=', sectionNo)
      .forUpdate()
      .skipLocked()
      .execute()
  const blocker = await other.startTransaction().execute()
  await counter(blocker, 2)
  const confirmed = transaction(db, (tx) =>
    confirmReservations(
      tx,
      reservations.map((reservationId) => ({ reservationId, userId: 'ann' })),
    ),
  )
  await until(isBlocked)
  const free = await counter(blocker, 10)
  await blocker.rollback().execute()
  assert.equal(free.length, 1, 'the tenth is not locked before the second')
  assert.ok((await confirmed).every((order) => !(order instanceof AppError)))
  assert.deepEqual(await auditLedger(db), [])
})
