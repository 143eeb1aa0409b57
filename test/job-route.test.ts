// POST /jobs/{queue}: jobs of every queue made by internal programs, once, and what is refused with what is right.

import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { after, beforeEach, describe, test } from 'node:test'
import { sql } from 'kysely'
import { queues } from '../domain/queues.ts'
import { newKey, openApi } from './api.ts'
import { testDatabase } from './database.ts'
import { mailJob } from './emailJobs.ts'
import { completed, toCloudEvent } from './events.ts'
import { emptyJobs, everyJob } from './jobRows.ts'
import { newPayment } from './stripe.ts'

const fresh = await testDatabase()
const { db } = fresh
const api = await openApi(fresh.database)
after(() => api.close())
beforeEach(() => emptyJobs(db))

type Row = { id: string; name: string; data: object; wait: number }
const rows = async (): Promise<Row[]> => {
  const found = await sql<Row>`
    select id, name, data, extract(epoch from start_after - clock_timestamp())::float8 as wait
    from ${everyJob} order by name`.execute(db)
  return found.rows
}
const make = (queue: string, body: unknown, key = newKey()) =>
  api.call('POST', `jobs/${queue}`, { internal: true, key, body })

const push = {
  job_id: 'p-1',
  type: 'push',
  template: 'ticket_ready',
  user_id: 'anna',
  fcm_tokens: ['token-of-a-phone'],
  payload: { title: 'Hello', body: 'There' },
}
const event = toCloudEvent(completed(randomUUID(), 1))
const good: Record<string, object> = {
  commands: { command_id: randomUUID() },
  outbox: event,
  inbox: event,
  email: mailJob(),
  push,
  'push:priority': push,
  alert: {
    type: 'NotifyDeadLetters',
    queue: 'email',
    count: 1,
    error: 'no',
    at: '2027-01-01T00:00:00Z',
  },
  payments: {
    type: 'payment',
    provider: 'stripe',
    payment_id: newPayment(),
    outcome: 'failed',
    reservation_id: randomUUID(),
  },
}

describe('a job by the API', () => {
  test('is made of every queue there is', async () => {
    for (const { name } of queues) {
      const data = good[name]
      if (data === undefined) continue
      const answer = await make(name, { data })
      assert.equal(answer.status, 202, answer.text)
      assert.deepEqual(Object.keys(answer.json), ['job_id', 'queue'])
      const made = (await rows()).find(({ id }) => id === answer.json.job_id)
      assert.deepEqual([made?.name, made?.data], [name, data])
      const shown = await api.call('GET', String(answer.headers.location), { internal: true })
      assert.deepEqual([shown.status, shown.json.state, shown.json.attempts], [200, 'ready', 0])
      assert.equal(shown.json.data, undefined)
    }
    assert.equal((await rows()).length, Object.keys(good).length)
  })

  test('is made once, by its key and by its id', async () => {
    const job_id = randomUUID()
    const key = newKey()
    const body = { data: mailJob(), job_id }
    const [first, again] = [await make('email', body, key), await make('email', body, key)]
    assert.equal(again.headers['idempotent-replayed'], 'true')
    assert.equal(again.text, first.text)
    const byId = await make('email', { ...body, job_id: job_id.toUpperCase() })
    assert.deepEqual(byId.json, { job_id, queue: 'email' })
    assert.equal((await rows()).length, 1)
  })

  test('waits for its time, and goes before others', async () => {
    const start_after = new Date(Date.now() + 3_600_000).toISOString()
    await make('email', { data: mailJob(), start_after, priority: 7 })
    const [row] = await rows()
    assert.ok(row !== undefined && row.wait > 3500 && row.wait < 3700, String(row?.wait))
    const { rows: kept } = await sql<{ priority: number }>`
      select priority from pgboss.job where name = 'email'`.execute(db)
    assert.equal(kept[0]?.priority, 7)
  })

  test('may be asked for later', async () => {
    const headers = { prefer: 'respond-async' }
    const body = { data: mailJob() }
    const answer = await api.call('POST', 'jobs/email', { internal: true, body, headers })
    assert.equal(answer.status, 202)
    assert.match(String(answer.headers.location), /^\/api\/v1\/commands\//)
  })

  test('is refused with what is right, and without what was wrong in it', async () => {
    const secret = 'sk_live_0123456789abcdef'
    const cases: [string, unknown, number, string, RegExp][] = [
      ['nothing', { data: {} }, 404, 'QUEUE_NOT_FOUND', /no queue "nothing"; .*commands.*email/],
      ['email.dead', { data: {} }, 404, 'QUEUE_NOT_FOUND', /takes no jobs: send them to email/],
      [secret, { data: {} }, 404, 'QUEUE_NOT_FOUND', /no queue "\*\*\*"/],
      ['email', {}, 400, 'VALIDATION_FAILED', /\/data is required/],
      ['email', { data: [] }, 400, 'VALIDATION_FAILED', /\/data must be an object/],
      ['email', { data: { type: 'email', template: secret } }, 400, 'VALIDATION_FAILED', /one of/],
      ['email', { data: { ...mailJob(), recipient: secret } }, 400, 'VALIDATION_FAILED', /address/],
      ['email', { data: { ...mailJob(), x: '\0' } }, 400, 'VALIDATION_FAILED', /NUL/],
      ['payments', { data: { type: 'payment' } }, 400, 'VALIDATION_FAILED', /provider is missing/],
      ['alert', { data: { type: 'Shout' } }, 400, 'VALIDATION_FAILED', /NotifyFlagAutoDisabled/],
      ['push', { data: push, job_id: '1' }, 400, 'VALIDATION_FAILED', /job_id must be a UUID/],
      ['push', { data: push, priority: -1 }, 400, 'VALIDATION_FAILED', /priority must be a whole/],
      ['push', { data: push, start_after: 'soon' }, 400, 'VALIDATION_FAILED', /start_after/],
      [
        'push',
        { data: push, start_after: '0000-01-01T00:00:00Z' },
        400,
        'VALIDATION_FAILED',
        /must be a time that exists/,
      ],
      ['push', { data: push, more: 1 }, 400, 'VALIDATION_FAILED', /not a known field/],
    ]
    for (const [queue, body, status, code, right] of cases) {
      const answer = await make(queue, body)
      assert.deepEqual([answer.status, answer.json.code], [status, code], answer.text)
      assert.match(answer.json.detail, right)
      assert.ok(!answer.text.includes(secret))
    }
    assert.deepEqual(await rows(), [])
  })

  test('that is nowhere is said to be so', async () => {
    for (const [path, code] of [
      [`jobs/email/${randomUUID()}`, 'JOB_NOT_FOUND'],
      ['jobs/email/1', 'JOB_NOT_FOUND'],
      [`jobs/nothing/${randomUUID()}`, 'QUEUE_NOT_FOUND'],
    ] as const) {
      const answer = await api.call('GET', path, { internal: true })
      assert.deepEqual([answer.status, answer.json.code], [404, code])
    }
  })

  test('is for internal programs, with a key', async () => {
    const body = { data: mailJob() }
    const byUser = await api.call('POST', 'jobs/email', { user: 'anna', body })
    assert.equal(byUser.json.code, 'FORBIDDEN')
    assert.equal((await api.call('POST', 'jobs/email', { body })).json.code, 'UNAUTHENTICATED')
    const keyless = await api.call('POST', 'jobs/email', { internal: true, key: false, body })
    assert.equal(keyless.json.code, 'IDEMPOTENCY_KEY_MISSING')
  })
})
