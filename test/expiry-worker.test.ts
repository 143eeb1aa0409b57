// The expiry worker: holds whose time is over are freed, each once, by any number of workers, whenever one is killed.

import assert from 'node:assert/strict'
import { before, beforeEach, describe, test } from 'node:test'
import { sql } from 'kysely'
import { createEvent } from '../db/events.ts'
import { holdPlaces } from '../db/holds.ts'
import { auditLedger } from '../db/ledger.ts'
import { transaction } from '../db/transaction.ts'
import { expiryPass } from '../workers/expiry/expiry.ts'
import { type TestDatabase, testDatabase } from './database.ts'
import { exited, startWorker, until } from './worker.ts'

const signal = new AbortController().signal
const all = Number.POSITIVE_INFINITY

describe('the expiry worker', () => {
  let fresh: TestDatabase
  before(async () => {
    fresh = await testDatabase()
  })
  beforeEach(async () => {
    await sql`truncate seats, sections, standing_sections, reservations, due_holds, events, outbox`.execute(
      fresh.db,
    )
  })

  /** So many holds of one seat, all over. */
  const overdue = async (count: number) => {
    const sections = [
      { name: 'A', rows: 1, seats_per_row: count, price_minor: 5000, currency: 'EUR' },
    ]
    const starts_at = '2027-05-01T19:00:00Z'
    await transaction(fresh.db, async (tx) => {
      const eventId = await createEvent(tx, {
        name: 'Gala',
        starts_at,
        waiting_room: false,
        sections,
      })
      const holds = Array.from({ length: count }, (_, i) => ({ userId: `user-${i}`, quantity: 1 }))
      const outcomes = await holdPlaces(tx, holds, { eventId, ttlSeconds: 900, patient: true })
      assert.ok(outcomes.every((outcome) => outcome !== 'undecided' && 'reservationId' in outcome))
    })
    await sql`update reservations set created_at = created_at - interval '1 hour',
      expires_at = expires_at - interval '1 hour'`.execute(fresh.db)
  }
  const counts = async () => {
    const { rows } = await sql<{ expired: number; free: number; events: number }>`
      select (select count(*)::int from reservations where state = 'expired') as expired,
        (select count(*)::int from seats where state = 'free') as free,
        (select count(*)::int from outbox where type = 'reservation.expired') as events`.execute(
      fresh.db,
    )
    return rows[0]
  }

  test('frees a batch a pass, seats and all, and tells of each', async () => {
    await overdue(5)
    const pass = expiryPass({ db: fresh.db, batchMax: 3 })
    assert.equal(await pass(signal, all), 3)
    assert.deepEqual(await counts(), { expired: 3, free: 3, events: 3 })
    assert.equal(await pass(signal, all), 2)
    assert.equal(await pass(signal, all), 0)
    assert.deepEqual(await counts(), { expired: 5, free: 5, events: 5 })
  })

  test('leaves a hold alone whose time is not over', async () => {
    await overdue(2)
    await sql`update reservations set expires_at = clock_timestamp() + interval '1 minute'
      where user_id = 'user-0'`.execute(fresh.db)
    const pass = expiryPass({ db: fresh.db, batchMax: 10 })
    assert.equal(await pass(signal, all), 1)
    assert.deepEqual(await counts(), { expired: 1, free: 1, events: 1 })
  })

  test('frees no more than the limit that is left', async () => {
    await overdue(5)
    assert.equal(await expiryPass({ db: fresh.db, batchMax: 10 })(signal, 2), 2)
  })

  test('two at once free each hold once', async () => {
    await overdue(40)
    const passes = [fresh.db, fresh.open().db].map((db) => expiryPass({ db, batchMax: 10 }))
    const freed = await Promise.all(
      passes.map(async (pass) => {
        let sum = 0
        for (let n = -1; n !== 0; sum += n) n = Number(await pass(signal, all))
        return sum
      }),
    )
    assert.equal(freed[0]! + freed[1]!, 40)
    assert.deepEqual(await counts(), { expired: 40, free: 40, events: 40 })
  })

  test('the process frees all there is and stops with exit 0; a killed one leaves nothing half', async () => {
    await overdue(600)
    const killed = startWorker('expiry', fresh.url, [], { EXPIRY_BATCH: '1' })
    await until(async () => (await counts())!.expired >= 3)
    killed.process.kill('SIGKILL')
    assert.equal(await exited(killed), 'SIGKILL')
    const between = await counts()
    assert.deepEqual(new Set(Object.values(between!)).size, 1, 'seats and events agree')
    const worker = startWorker('expiry', fresh.url)
    await until(async () => (await counts())!.expired === 600)
    worker.process.kill('SIGTERM')
    assert.equal(await exited(worker), 0, worker.output())
    assert.deepEqual(await counts(), { expired: 600, free: 600, events: 600 })
    assert.deepEqual(await auditLedger(fresh.db), [])
  })
})
