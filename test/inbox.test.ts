// The inbox on a real Postgres: an event becomes its mail once, however often and to however many it comes.

import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { after, before, beforeEach, describe, test } from 'node:test'
import { sql } from 'kysely'
import { processOnce, pruneInbox } from '../db/inbox.ts'
import { type Jobs, openJobs } from '../db/jobs.ts'
import { transaction } from '../db/transaction.ts'
import { putUser } from '../db/users.ts'
import type { EmailJob } from '../domain/emails.ts'
import type { CloudEvent, EventData, EventType } from '../domain/events.ts'
import { decodePushJob, type PushJob } from '../domain/pushes.ts'
import { inboxPass } from '../workers/inbox/inbox.ts'
import { createLog } from '../workers/log.ts'
import { type TestDatabase, testDatabase } from './database.ts'
import { emptyJobs, everyJob } from './jobRows.ts'
import { exited, startWorker, until } from './worker.ts'

const signal = new AbortController().signal
const all = Number.POSITIVE_INFINITY
const order = {
  order_id: randomUUID(),
  reservation_id: randomUUID(),
  event_id: randomUUID(),
  event_name: 'Opening night',
  starts_at: '2027-01-01T19:00:00.000Z',
  user_id: 'anna',
  section: 'A',
  quantity: 2,
  seats: ['A-1-1', 'A-1-2'],
  total: { amount_minor: 9000, currency: 'EUR' },
}
const envelope = (): Pick<
  CloudEvent,
  'specversion' | 'id' | 'source' | 'subject' | 'time' | 'datacontenttype' | 'requestid'
> => ({
  specversion: '1.0',
  id: randomUUID(),
  source: '/flotilla',
  subject: order.order_id,
  time: '2026-12-01T10:00:00.000Z',
  datacontenttype: 'application/json',
  requestid: 'request-1',
})
const completed = (data = order): CloudEvent => ({
  ...envelope(),
  type: 'order.completed',
  sequence: '1',
  data,
})
const generated = (): CloudEvent => ({
  ...envelope(),
  type: 'ticket.generated',
  sequence: '2',
  data: { ...order, tickets: [{ ticket_id: randomUUID(), seat: 'A-1-1', code: 'TCK-1' }] },
})

describe('the inbox', () => {
  let fresh: TestDatabase
  let jobs: Jobs
  const worker = { log: createLog('test', 'silent'), failed() {}, dying: signal }

  before(async () => {
    fresh = await testDatabase()
    jobs = openJobs(fresh.database)
    await transaction(fresh.db, async (tx) => {
      await putUser(tx, { userId: 'anna', email: 'anna@example.org', locale: 'de' })
      await putUser(tx, { userId: 'bert' })
    })
  })
  after(() => jobs.close())
  beforeEach(async () => {
    await emptyJobs(fresh.db)
    await sql`delete from inbox_processed`.execute(fresh.db)
  })

  const send = (...events: object[]) =>
    jobs.send(
      fresh.db,
      'inbox',
      events.map((data) => ({ data })),
    )
  const mails = async () => {
    const { rows } = await sql<{ id: string; data: EmailJob }>`
      select id, data from pgboss.job where name = 'email' order by data->>'template'`.execute(
      fresh.db,
    )
    return rows
  }
  const states = async (queue = 'inbox') => {
    const { rows } = await sql<{ state: string }>`
      select state from ${everyJob} where name = ${queue}`.execute(fresh.db)
    return rows.map((row) => row.state)
  }

  const run = (onProcessed?: Parameters<typeof inboxPass>[0]['onProcessed'], batchMax = 100) =>
    inboxPass({ db: fresh.db, jobs, batchMax, worker, ...(onProcessed && { onProcessed }) })(
      signal,
      all,
    )

  test('turns an order and its tickets into two mails', async () => {
    const event = completed()
    await send(event, generated())
    assert.equal(await run(), 2)
    const [confirmation, delivery] = await mails()
    const { user_id, event_id, reservation_id, ...payload } = order
    assert.deepEqual(confirmation?.data, {
      job_id: confirmation?.id,
      type: 'email',
      template: 'order_confirmation',
      recipient: 'anna@example.org',
      payload: { ...payload, locale: 'de' },
      created_at: event.time,
      attempts: 0,
      max_attempts: 3,
      request_id: 'request-1',
    })
    assert.equal(delivery?.data.template, 'ticket_delivery')
    assert.deepEqual(await states(), [])
  })

  describe('pushes', () => {
    const pushes = async () => {
      const { rows } = await sql<{ name: string; data: PushJob }>`
        select name, data from pgboss.job where name in ('push', 'push:priority')
        order by data->>'template'`.execute(fresh.db)
      return rows
    }
    const queueEvent = <T extends Extract<EventType, `queue.${string}`>>(
      type: T,
      data: EventData[T],
    ) => ({
      ...envelope(),
      subject: `match-1/${data.user_id}`,
      type,
      sequence: '1',
      data,
    })
    before(() =>
      transaction(fresh.db, async (tx) => {
        const devices = [{ token: 'phone' }, { fid: 'tablet' }]
        await putUser(tx, { userId: 'dora', email: 'dora@example.org', locale: 'hr', devices })
      }),
    )

    test('go to all devices of a user whose tickets are ready, and to nobody without one', async () => {
      const tickets = (user_id: string) => {
        const event = generated()
        return { ...event, data: { ...event.data, user_id } }
      }
      const event = tickets('dora')
      await send(event, event, tickets('anna'), completed({ ...order, user_id: 'dora' }))
      await run()
      const [push, ...others] = await pushes()
      assert.deepEqual(others, [])
      assert.equal(push?.name, 'push')
      assert.deepEqual(decodePushJob(push?.data), push?.data)
      assert.partialDeepStrictEqual(push?.data, {
        type: 'push',
        template: 'ticket_ready',
        user_id: 'dora',
        fcm_tokens: [{ fid: 'tablet' }, 'phone'],
        payload: {
          title: 'Tvoje ulaznice su stigle',
          body: 'Opening night: pronađi ih u aplikaciji.',
          data: { order_id: order.order_id, event_id: order.event_id },
        },
        created_at: event.time,
        request_id: 'request-1',
      })
    })

    test('tell of the waiting room, the turn before all others and until it is over', async () => {
      const place = { match_id: 'match-1', user_id: 'dora' }
      const expires_at = '2026-12-01T10:20:00.000Z'
      await send(
        queueEvent('queue.turn_granted', {
          ...place,
          expires_at,
          checkout_url: 'https://x.example',
        }),
        queueEvent('queue.expired', { ...place, reason: 'window_timeout' }),
        queueEvent('queue.position_update', { ...place, position: 7, estimated_wait_minutes: 3 }),
        queueEvent('queue.turn_granted', { match_id: 'match-1', user_id: 'nobody', expires_at }),
      )
      assert.equal(await run(), 4)
      const [expired, position, turn, ...others] = await pushes()
      assert.deepEqual(others, [])
      assert.deepEqual(
        [expired, position, turn].map((one) => one?.name),
        ['push', 'push', 'push:priority'],
      )
      assert.partialDeepStrictEqual(turn?.data, {
        template: 'queue_your_turn',
        priority: 'high',
        expires_at,
        payload: {
          title: 'Na redu si',
          body: 'Ulaznice možeš kupiti sada, preostalo minuta: 20.',
          data: { match_id: 'match-1', expires_at, checkout_url: 'https://x.example' },
        },
      })
      assert.equal(position?.data.expires_at, '2026-12-01T10:05:00.000Z')
      assert.equal(position?.data.payload.title, 'Tvoje mjesto u redu: 7')
      // One replaces the other on the phone.
      assert.equal(new Set([expired, position, turn].map((one) => one?.data.collapse_key)).size, 1)
      for (const push of [expired, position, turn]) decodePushJob(push?.data)
    })
  })

  test('drops what it has seen, in one batch and in a later one', async () => {
    const event = completed()
    await send(event, event)
    const seen: object[] = []
    await run((counts) => seen.push(counts))
    await send(event)
    await run((counts) => seen.push(counts))
    assert.deepEqual(seen, [
      { processed: 1, duplicates: 1, unreachable: 0 },
      { processed: 0, duplicates: 1, unreachable: 0 },
    ])
    assert.equal((await mails()).length, 1)
    assert.deepEqual(await states(), [])
  })

  test('makes one mail when two inboxes get the same event at once', async () => {
    const event = completed()
    await send(event, event)
    await Promise.all([run(undefined, 1), run(undefined, 1)])
    assert.equal((await mails()).length, 1)
  })

  test('counts, and makes no mail for, a user without an address or unknown', async () => {
    const seen: object[] = []
    await send(completed({ ...order, user_id: 'bert' }), completed({ ...order, user_id: 'nobody' }))
    await run((counts) => seen.push(counts))
    assert.deepEqual(seen, [{ processed: 2, duplicates: 0, unreachable: 2 }])
    assert.deepEqual(await mails(), [])
    assert.deepEqual(await states(), [])
  })

  test('an event that cannot be read goes to the dead letter queue, its neighbours on', async () => {
    await send(completed(), { specversion: '0.3' }, generated())
    await run()
    assert.equal((await mails()).length, 2)
    const { rows } = await sql<{ message: string }>`
      select source_output->>'message' as message from pgboss.job
      where name = 'inbox.dead'`.execute(fresh.db)
    assert.deepEqual(rows, [{ message: 'the payload cannot be read: specversion must be "1.0"' }])
  })

  test('a mark without its effect does not exist: both roll back', async () => {
    const undone = transaction(fresh.db, async (tx) => {
      const { length } = await processOnce(tx, 'other', [{ id: randomUUID() }])
      throw new Error(`rolled back ${length}`)
    })
    await assert.rejects(undone, /rolled back 1/)
    const { rows } = await sql`select from inbox_processed`.execute(fresh.db)
    assert.equal(rows.length, 0)
  })

  test('each consumer sees a message once, in the order they came', async () => {
    const messages = Array.from({ length: 5 }, () => ({ id: randomUUID() }))
    const once = (consumer: string, some: { id: string }[]) =>
      transaction(fresh.db, (tx) => processOnce(tx, consumer, some))
    assert.deepEqual(await once('one', messages.slice(0, 3)), messages.slice(0, 3))
    assert.deepEqual(await once('one', messages), messages.slice(3))
    assert.deepEqual(await once('two', messages), messages)
  })

  test('forgets a message after eight days', async () => {
    await transaction(fresh.db, (tx) =>
      processOnce(tx, 'one', [{ id: randomUUID() }, { id: randomUUID() }]),
    )
    await sql`update inbox_processed set processed_at = processed_at - interval '8 days 1 minute'
      where message_id = (select message_id from inbox_processed limit 1)`.execute(fresh.db)
    assert.equal(await pruneInbox(fresh.db), 1)
    assert.equal(await pruneInbox(fresh.db), 0)
  })

  test('the process turns events into mails, and stops when it is told, with exit 0', async () => {
    const process = startWorker('inbox', fresh.url)
    await send(completed())
    await until(async () => (await mails()).length === 1)
    process.process.kill('SIGTERM')
    assert.equal(await exited(process), 0, process.output())
    assert.deepEqual(await states(), [])
  })
})
