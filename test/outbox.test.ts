// The outbox on a real Postgres: what is written is relayed once, in the order of the commits, by any number of relays.

import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { after, before, beforeEach, describe, test } from 'node:test'
import { sql } from 'kysely'
import { type Jobs, openJobs } from '../db/jobs.ts'
import { pruneOutbox, readOutboxLag, relayEvents, slotOf, writeEvents } from '../db/outbox.ts'
import { transaction } from '../db/transaction.ts'
import type { DatabaseBroker } from '../domain/broker.ts'
import type { CloudEvent, NewEvent } from '../domain/events.ts'
import { createDatabaseBroker } from '../workers/outbox/database.ts'
import { relayPass } from '../workers/outbox/outbox.ts'
import { type TestDatabase, testDatabase } from './database.ts'
import { emptyJobs } from './jobRows.ts'
import { exited, startWorker, until } from './worker.ts'

const signal = new AbortController().signal
const order = {
  order_id: randomUUID(),
  reservation_id: randomUUID(),
  event_id: randomUUID(),
  event_name: 'Opening night',
  starts_at: '2027-01-01T19:00:00Z',
  user_id: 'anna',
  section: 'A',
  quantity: 1,
  total: { amount_minor: 4500, currency: 'EUR' },
}
const completed = (subject: string, sequence: number): NewEvent => ({
  messageId: randomUUID(),
  type: 'order.completed',
  subject,
  sequence,
  data: order,
  requestId: `request-${sequence}`,
})
const held = (subject: string): NewEvent => ({
  messageId: randomUUID(),
  type: 'reservation.held',
  subject,
  sequence: 1,
  data: { ...order, reservation_id: subject, expires_at: '2027-01-01T19:00:00Z' },
})
/** Two subjects of different slots. */
const [left, right] = ((): [string, string] => {
  const one = randomUUID()
  for (;;) {
    const other = randomUUID()
    if (slotOf(other) !== slotOf(one)) return [one, other]
  }
})()

describe('the outbox', () => {
  let fresh: TestDatabase
  let jobs: Jobs

  before(async () => {
    fresh = await testDatabase()
    jobs = openJobs(fresh.database)
  })
  after(() => jobs.close())
  beforeEach(async () => {
    await emptyJobs(fresh.db)
    await sql`delete from outbox`.execute(fresh.db)
    await sql`update outbox_cursors set txid = '0', id = 0, relayed = 0`.execute(fresh.db)
  })

  /** The horizon is that of the whole server: what other test files write must be out of the way. */
  const write = async (events: NewEvent[]) => {
    await transaction(fresh.db, (tx) => writeEvents(tx, events))
    await until(async () => {
      const { rows } = await sql`
        select from pg_stat_activity
        where (datname is distinct from current_database() or backend_type <> 'client backend')
          and backend_xid::text::bigint <= (select max(txid)::text::bigint from outbox)`.execute(
        fresh.db,
      )
      return rows.length === 0
    })
  }
  const relay = (broker: DatabaseBroker<never>, db = fresh.db) =>
    relayPass({ db, broker: broker as never, batchMax: 500 })(signal, Number.POSITIVE_INFINITY)
  const recorder = () => {
    const taken: CloudEvent[] = []
    const broker: DatabaseBroker<never> = {
      name: 'recorder',
      async publish(_tx, events) {
        taken.push(...events)
      },
    }
    return { taken, broker }
  }
  const relayed = async () => {
    const { rows } = await sql<{ n: number }>`
      select sum(relayed)::int as n from outbox_cursors`.execute(fresh.db)
    return rows[0]?.n
  }

  test('relays an event as a CloudEvent, once', async () => {
    const event = completed(left, 7)
    await write([event])
    const { taken, broker } = recorder()
    assert.equal(await relay(broker), 1)
    assert.equal(await relay(broker), 0)
    const [{ time, ...rest } = {} as CloudEvent] = taken
    assert.ok(Math.abs(Date.parse(time) - Date.now()) < 60_000)
    assert.deepEqual(rest, {
      specversion: '1.0',
      id: event.messageId,
      source: '/flotilla',
      type: 'order.completed',
      subject: left,
      datacontenttype: 'application/json',
      sequence: '7',
      requestid: 'request-7',
      data: order,
    })
    assert.equal(await relayed(), 1)
  })

  test('waits for a transaction that began to write before, whoever commits first', async () => {
    const slow = await fresh.open().db.startTransaction().execute()
    await writeEvents(slow, [completed(left, 1)])
    await write([completed(left, 2)])
    const { taken, broker } = recorder()
    // It looks again soon, whatever the poll.
    assert.deepEqual(await relay(broker), { waitMs: 10 })
    const lag = await readOutboxLag(fresh.db)
    assert.equal(lag.rows, 1)
    assert.ok(lag.horizonSeconds > 0)
    await slow.commit().execute()
    assert.equal(await relay(broker), 2)
    assert.deepEqual(
      taken.map((event) => event.sequence),
      ['1', '2'],
    )
    assert.equal((await readOutboxLag(fresh.db)).rows, 0)
    assert.equal(await relay(broker), 0)
  })

  test('keeps the order of an aggregate over many batches', async () => {
    for (let first = 1; first <= 901; first += 300) {
      await write(Array.from({ length: 300 }, (_, i) => completed(left, first + i)))
    }
    const { taken, broker } = recorder()
    while ((await relay(broker)) !== 0);
    assert.deepEqual(
      taken.map((event) => Number(event.sequence)),
      Array.from({ length: 1200 }, (_, i) => i + 1),
    )
  })

  test('two relays at once take different slots', async () => {
    await write([completed(left, 1), completed(right, 1)])
    const other = fresh.open().db
    const seen: string[][] = []
    await relayEvents(
      fresh.db,
      async (_tx, events) => {
        seen.push(events.map((event) => event.subject))
        // The first holds its slots: the second finds none with events that are free.
        assert.deepEqual(await relay(recorder().broker, other as never), { waitMs: 10 })
        await write([completed(right, 2)])
      },
      500,
    )
    assert.deepEqual(new Set(seen.flat()), new Set([left, right]))
    const { taken, broker } = recorder()
    assert.equal(await relay(broker), 1)
    assert.equal(taken[0]?.sequence, '2')
  })

  test('many relays at once relay everything once, each aggregate in its order', async () => {
    const subjects = Array.from({ length: 40 }, () => randomUUID())
    for (let sequence = 1; sequence <= 5; sequence++) {
      await write(subjects.map((subject) => completed(subject, sequence)))
    }
    const { taken, broker } = recorder()
    const pools = [fresh.db, fresh.open().db, fresh.open().db]
    await Promise.all(
      pools.map(async (db) => {
        while ((await relay(broker, db as never)) !== 0 || (await readOutboxLag(db)).rows > 0);
      }),
    )
    assert.equal(taken.length, 200)
    for (const subject of subjects) {
      const sequences = taken.filter((e) => e.subject === subject).map((e) => e.sequence)
      assert.deepEqual(sequences, ['1', '2', '3', '4', '5'])
    }
  })

  test('relays nothing when the broker refuses, and all of it later', async () => {
    await write([completed(left, 1)])
    const refusing: DatabaseBroker<never> = {
      name: 'refusing',
      publish: () => Promise.reject(new Error('no room')),
    }
    await assert.rejects(relay(refusing), /no room/)
    assert.equal(await relayed(), 0)
    assert.equal(await relay(recorder().broker), 1)
  })

  test('makes one job of an event that somebody subscribed to, and none of the others', async () => {
    const event = completed(left, 1)
    await write([held(right), event])
    assert.equal(await relay(createDatabaseBroker(jobs) as never), 2)
    const taken = await jobs.fetch('inbox', 10)
    assert.deepEqual(
      taken.map((job) => job.id),
      [event.messageId],
    )
    assert.equal((taken[0]?.data as CloudEvent | undefined)?.subject, left)
    // The cursor is lost, as after a restore: the same id makes no second job.
    await sql`update outbox_cursors set txid = '0', id = 0`.execute(fresh.db)
    assert.equal(await relay(createDatabaseBroker(jobs) as never), 2)
    const { rows } = await sql`select from pgboss.job where name = 'inbox'`.execute(fresh.db)
    assert.equal(rows.length, 1)
  })

  test('prunes what was relayed long ago, and nothing else', async () => {
    await write([completed(left, 1), completed(right, 1)])
    await relay(recorder().broker)
    await write([completed(left, 2)])
    await sql`update outbox set created_at = created_at - interval '4 days'
      where subject = ${left}`.execute(fresh.db)
    assert.equal(await pruneOutbox(fresh.db), 1)
    assert.equal(await pruneOutbox(fresh.db), 0)
    const { rows } = await sql<{ subject: string; sequence: number }>`
      select subject, sequence from outbox order by sequence`.execute(fresh.db)
    assert.deepEqual(rows, [
      { subject: right, sequence: 1 },
      { subject: left, sequence: 2 },
    ])
  })

  test('the process relays, and stops when it is told, with exit 0', async () => {
    const worker = startWorker('outbox', fresh.url)
    await write([completed(left, 1)])
    await until(async () => (await relayed()) === 1)
    worker.process.kill('SIGTERM')
    assert.equal(await exited(worker), 0)
    await write([completed(left, 2)])
    const again = startWorker('outbox', fresh.url, ['--once'])
    assert.equal(await exited(again), 0, again.output())
    assert.equal(await relayed(), 2)
  })
})
