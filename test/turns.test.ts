// Turns at the counters of standing sections: holds, confirmations and cancellations of two instances and the sweep, all at
// once on one event, meet no conflict.

import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { test } from 'node:test'
import { sql } from 'kysely'
import { auditLedger } from '../db/ledger.ts'
import { expireReservations } from '../db/settlements.ts'
import { conflictsSoFar, transaction } from '../db/transaction.ts'
import { isStanding, standingEventsOf, takeTurns } from '../db/turns.ts'
import { createCommands } from '../workers/http/commands.ts'
import { testDatabase } from './database.ts'
import { until } from './worker.ts'

const { db, open } = await testDatabase()
const instances = [db, open('second').db].map((pool) =>
  createCommands({ db: pool, ttlSeconds: 900 }),
)

const receipt = () => ({
  kind: 'key' as const,
  key: randomBytes(16).toString('hex'),
  fingerprint: 'turns',
})

async function makeEvent(section: object): Promise<string> {
  const event = {
    name: 'Gala',
    starts_at: '2030-05-01T19:00:00Z',
    waiting_room: false,
    sections: [{ name: 'F', price_minor: 1000, currency: 'EUR', ...section }],
  } as never
  const answer = await instances[0]!.run({ name: 'createEvent', event }, receipt())
  return JSON.parse(answer.body).event_id
}

test('two instances hold, confirm and cancel on one counter, and the sweep frees, without a conflict', async () => {
  const eventId = await makeEvent({ capacity: 10_000 })
  const before = conflictsSoFar().get('40001')
  let swept = 0
  let isOver = false

  async function buy(n: number): Promise<void> {
    const userId = `user-${n}`
    const instance = instances[n % 2]!
    for (let i = 0; i < 5; i++) {
      const command = { name: 'createReservation', eventId, userId, quantity: 1 } as const
      const held = await instance.run(command, receipt())
      assert.equal(held.status, 201, held.body)
      const { reservation_id: reservationId } = JSON.parse(held.body)
      if (i === 0) {
        await sql`update due_holds set expires_at = now() where reservation_id = ${reservationId}`.execute(
          db,
        )
        await sql`update reservations set expires_at = now() where id = ${reservationId}`.execute(
          db,
        )
        continue
      }
      const name = i % 2 ? 'confirmReservation' : 'cancelReservation'
      // The other one: no lane of its own keeps them apart.
      const answer = await instances[(n + 1) % 2]!.run({ name, reservationId, userId }, receipt())
      assert.equal(answer.status, 200, answer.body)
    }
  }

  const sweep = async () => {
    while (!isOver || swept < 20) swept += await expireReservations(db, 3)
  }
  const sweeping = sweep()
  await Promise.all(Array.from({ length: 20 }, (_, n) => buy(n)))
  isOver = true
  await sweeping
  assert.equal(conflictsSoFar().get('40001'), before)
  const { rows } = await sql`
    select held, sold from standing_sections where event_id = ${eventId}`.execute(db)
  assert.deepEqual(rows, [{ held: 0, sold: 40 }])
  assert.deepEqual(await auditLedger(db), [])
})

test('who waits for his turn sees what was committed meanwhile', async () => {
  const eventId = await makeEvent({ capacity: 10 })
  const count = (by: number) => async (tx: Parameters<typeof takeTurns>[0]) => {
    await takeTurns(tx, [eventId])
    await sql`update standing_sections set held = held + ${by} where event_id = ${eventId}`.execute(
      tx,
    )
  }
  const { promise: counted, resolve: goOn } = Promise.withResolvers<void>()
  const first = transaction(db, async (tx) => {
    await count(1)(tx)
    await counted
  })
  const isBlocked = async () => {
    const { rows } = await sql`
      select from pg_stat_activity
      where datname = current_database() and wait_event_type = 'Lock' and query like 'lock table%'`.execute(
      db,
    )
    return rows.length > 0
  }
  const second = transaction(open('third').db, count(2), { maxAttempts: 1 })
  await until(isBlocked)
  goOn()
  await Promise.all([first, second])
  const { rows } = await sql`
    select held from standing_sections where event_id = ${eventId}`.execute(db)
  assert.deepEqual(rows, [{ held: 3 }])
})

test('only the counters of standing sections have turns', async () => {
  const [counted, seated] = [
    await makeEvent({ capacity: 10 }),
    await makeEvent({ rows: 1, seats_per_row: 4 }),
  ]
  const unknown = '019b0000-0000-7000-8000-000000000000'
  assert.deepEqual(await Promise.all([counted, seated, unknown].map((id) => isStanding(db, id))), [
    true,
    false,
    false,
  ])
  const hold = async (eventId: string) => {
    const command = { name: 'createReservation', eventId, userId: 'ann', quantity: 1 } as const
    return JSON.parse((await instances[0]!.run(command, receipt())).body).reservation_id as string
  }
  const ids = [await hold(counted), await hold(counted), await hold(seated)]
  assert.deepEqual(await standingEventsOf(db, ids), [counted])
})
