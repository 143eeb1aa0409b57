// Payments: from Stripe's webhook over outbox and inbox to an order or a refund, on a real database. Whatever comes forged,
// late, twice, out of order or at the same time: money that was taken has exactly one of the two.

import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { after, afterEach, beforeEach, describe, test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { sql } from 'kysely'
import { openJobs } from '../db/jobs.ts'
import { auditLedger } from '../db/ledger.ts'
import { relayEvents } from '../db/outbox.ts'
import { settlePayments } from '../db/payments.ts'
import { expireReservations } from '../db/settlements.ts'
import { decodePayment, type PaymentJob, readStripeEvent } from '../domain/payments.ts'
import { stripeSignatureFault } from '../workers/http/stripeSignature.ts'
import { inboxPass } from '../workers/inbox/inbox.ts'
import { paymentsPass } from '../workers/inbox/payments.ts'
import { createLog } from '../workers/log.ts'
import { createDatabaseBroker } from '../workers/outbox/database.ts'
import { openApi } from './api.ts'
import { testDatabase } from './database.ts'
import { drain } from './emailJobs.ts'
import { emptyJobs, everyJob, loseLife } from './jobRows.ts'
import {
  intentEvent,
  newPayment,
  secret,
  sessionEvent,
  signatureOf,
  signed,
  type Told,
} from './stripe.ts'
import { endWorkers, startWorker, until } from './worker.ts'

const fresh = await testDatabase()
const { db } = fresh
const oldSecret = 'whsec_the-secret-that-is-exchanged'
const api = await openApi(fresh.database, {}, { STRIPE_WEBHOOK_SECRET: [secret, oldSecret] })
const jobs = openJobs(fresh.database)
const { signal } = new AbortController()
const worker = { log: createLog('test', 'silent'), failed() {}, dying: signal }
const broker = createDatabaseBroker(jobs)
const inbox = inboxPass({ db, jobs, worker, batchMax: 100 })
const payments = paymentsPass({ db, jobs, worker })
after(async () => {
  await endWorkers()
  await Promise.all([inbox.finish?.(), payments.finish?.()])
  await jobs.close()
  await api.close()
})
beforeEach(async () => {
  await emptyJobs(db)
  await sql`truncate payments, webhook_events, outbox, inbox_processed, reservations, due_holds, orders,
    tickets, events, sections, seats, standing_sections, idempotency_records`.execute(db)
})
afterEach(async () => assert.deepEqual(await auditLedger(db), []))

const post = (event: object, header?: string | false) => {
  const body = JSON.stringify(event)
  const headers: Record<string, string> =
    header === false ? {} : { 'stripe-signature': header ?? signed(body) }
  return api.call('POST', 'webhooks/stripe', { key: false, body, headers })
}

const countOf = async (query: ReturnType<typeof sql<{ n: number }>>) =>
  (await query.execute(db)).rows[0]?.n ?? 0
const told = () =>
  countOf(sql`select count(*)::int as n from outbox where type = 'payment.webhook'`)
const settled = () =>
  countOf(
    sql`select count(*)::int as n from ${everyJob} where name = 'payments' and state = 'completed'`,
  )

async function settleOnce(): Promise<boolean> {
  await relayEvents(db, broker.publish, 1000)
  await drain(inbox)
  await drain(payments)
  return (await settled()) === (await told())
}

/** Until every webhook that was kept has had its effect. */
const settle = () => until(settleOnce)

async function say(event: object): Promise<void> {
  const answer = await post(event)
  assert.equal(answer.status, 200, answer.text)
  await settle()
}

/** One seat of A-1-… held. */
async function hold(eventId: string, over: object = { seats: ['A-1-1'] }, user = 'anna') {
  const body = { event_id: eventId, ...over }
  const answer = await api.call('POST', 'reservations', { user, body })
  assert.equal(answer.status, 201, answer.text)
  return answer.json.reservation_id as string
}

const stateOf = async (reservation: string, user = 'anna') =>
  (await api.call('GET', `reservations/${reservation}`, { user })).json.status
const end = (reservation: string) =>
  sql`update reservations set expires_at = clock_timestamp() where id = ${reservation}`.execute(db)
const readPayments = async () => {
  const { rows } = await sql<{ id: string; state: string; reason: string | null }>`
    select id, state, reason from payments order by settled_at`.execute(db)
  return rows.map(({ state, reason }) => (reason === null ? state : `${state} ${reason}`))
}
const refunds = async () => {
  const { rows } = await sql<{ subject: string; data: { reason: string } }>`
    select subject, data from outbox where type = 'payment.refund_due' order by txid, id`.execute(
    db,
  )
  return rows.map(({ subject, data }) => `${subject} ${data.reason}`)
}
const orderCount = () => countOf(sql`select count(*)::int as n from orders`)

describe('a webhook of Stripe', () => {
  test('is believed by its signature alone: of any secret that holds, not old, not from the future', () => {
    const now = 1_800_000_000
    const body = '{"id":"evt_1"}'
    const faultOf = (header: string | undefined, text = body) =>
      stripeSignatureFault(header, text, [secret, oldSecret], now * 1000)
    for (const header of [
      signed(body, [secret], now),
      signed(body, [oldSecret], now),
      signed(body, ['another secret', secret], now),
      signed(body, [secret], now - 300),
      signed(body, [secret], now + 300),
      ` v1=${signatureOf(body, secret, now)} , t=${now}`,
    ]) {
      assert.equal(faultOf(header), undefined, header)
    }
    const wrong: [string | undefined, RegExp, string?][] = [
      [undefined, /is missing/],
      ['', /must be t=/],
      ['t=1', /must be t=/],
      [`v1=${signatureOf(body, secret, now)}`, /must be t=/],
      [`t=${now},v1=abc`, /must be t=/],
      [`t=${now}x,v1=${signatureOf(body, secret, now)}`, /must be t=/],
      // Of no secret of ours, of another time, of another body.
      [signed(body, ['another secret'], now), /no signature is right/],
      [`t=${now},v1=${signatureOf(body, secret, now - 1)}`, /no signature is right/],
      [signed(body, [secret], now), /no signature is right/, `${body} `],
      // v0 is no signature, right as it may be.
      [`t=${now},v0=${signatureOf(body, secret, now)}`, /must be t=/],
      [signed(body, [secret], now - 301), /5 minutes old/],
      [signed(body, [secret], now + 301), /from the future/],
    ]
    for (const [header, why, text] of wrong) assert.match(faultOf(header, text) ?? '', why)
  })

  test('is refused when it is forged, old, or nothing at all, and leaves no trace', async () => {
    const eventId = await api.makeEvent()
    const reservation = await hold(eventId)
    const event = intentEvent('succeeded', { payment: newPayment(), reservation })
    const body = JSON.stringify(event)
    const now = Math.floor(Date.now() / 1000)
    const headers = [
      false,
      'nonsense',
      signed(body, ['whsec_of somebody else']),
      signed(body, [secret], now - 400),
      signed(body, [secret], now + 400),
      signed(JSON.stringify({ ...event, id: 'evt_2' })),
    ] as const
    for (const header of headers) {
      const answer = await post(event, header)
      assert.deepEqual([answer.status, answer.json.code], [406, 'WEBHOOK_REFUSED'])
      assert.ok(!answer.text.includes(secret))
    }
    for (const text of ['{', '', '[]', '{"id":1}', '{"id":"evt_1","type":"x","data":{}}']) {
      const given = { 'content-type': 'application/json', 'stripe-signature': signed(text) }
      const answer = await api.call('POST', 'webhooks/stripe', {
        key: false,
        body: text,
        headers: given,
      })
      assert.equal(answer.status, 406, text)
    }
    assert.equal(await told(), 0)
    assert.equal(await stateOf(reservation), 'held')
  })

  test('is not taken without a secret', async () => {
    const bare = await openApi(fresh.database)
    const answer = await bare.call('POST', 'webhooks/stripe', { key: false, body: {} })
    assert.equal(answer.status, 503)
    assert.match(answer.json.detail, /STRIPE_WEBHOOK_SECRET is not set/)
    await bare.close()
  })

  test('confirms what was paid, once, by whichever of its objects, and is signed over the bytes as sent', async () => {
    const eventId = await api.makeEvent()
    const reservation = await hold(eventId)
    const payment = newPayment()
    // Other spacing than ours: the signature is of the bytes.
    const body = JSON.stringify(intentEvent('succeeded', { payment, reservation }), null, 2)
    const send = () =>
      api.call('POST', 'webhooks/stripe', {
        key: false,
        body,
        headers: { 'stripe-signature': signed(body, [oldSecret]) },
      })
    const answers = await Promise.all([send(), send(), send()])
    assert.deepEqual(answers.map(({ json }) => json.message).sort(), [
      'done',
      'done before',
      'done before',
    ])
    await settle()
    await say(sessionEvent('completed', { payment, reservation }))
    await say(intentEvent('succeeded', { payment, reservation }))
    assert.equal(await stateOf(reservation), 'confirmed')
    assert.deepEqual(await readPayments(), ['confirmed'])
    assert.deepEqual([await orderCount(), await refunds()], [1, []])
    const kept = await sql<{ payload: object }>`select payload from webhook_events`.execute(db)
    const jobsKept = await sql<{ data: object }>`
      select data from ${everyJob} where name = 'payments'`.execute(db)
    assert.equal(kept.rows.length, 3)
    assert.ok(!JSON.stringify([kept.rows, jobsKept.rows]).includes('anna@'))
    for (const { data } of jobsKept.rows) decodePayment(data)
  })

  test('cancels what failed, by each of the ways that Stripe says so', async () => {
    const eventId = await api.makeEvent()
    const failures = [
      (told: Told) => intentEvent('payment_failed', told),
      (told: Told) => intentEvent('canceled', told),
      (told: Told) => sessionEvent('expired', { ...told, over: { payment_intent: null } }),
      (told: Told) => sessionEvent('async_payment_failed', told),
    ]
    for (const failure of failures) {
      const reservation = await hold(eventId)
      await say(failure({ payment: newPayment(), reservation }))
      assert.equal(await stateOf(reservation), 'cancelled')
    }
    assert.deepEqual([await orderCount(), await refunds()], [0, []])
  })

  test('is of no interest when it is not paid yet, of another kind, or of another shop', async () => {
    const eventId = await api.makeEvent()
    const reservation = await hold(eventId)
    const payment = newPayment()
    const unpaid = { payment_status: 'unpaid' }
    for (const event of [
      intentEvent('created', { payment, reservation }),
      sessionEvent('completed', { payment, reservation, over: unpaid }),
      intentEvent('succeeded', { payment }),
      { ...intentEvent('succeeded', { payment, reservation }), type: 'constructor' },
    ]) {
      assert.equal((await post(event)).json.message, 'of no interest')
    }
    assert.equal(await told(), 0)
    await say(sessionEvent('async_payment_succeeded', { payment, reservation }))
    assert.equal(await stateOf(reservation), 'confirmed')
  })

  test('names one payment, whether Stripe was asked to expand it or not', () => {
    const payment = newPayment()
    const reservation = randomUUID()
    const over = { payment_intent: { id: payment, object: 'payment_intent' } }
    for (const event of [
      intentEvent('succeeded', { payment, reservation }),
      sessionEvent('completed', { payment, reservation }),
      sessionEvent('completed', { payment, reservation, over }),
    ]) {
      const total = { amount_minor: 2500, currency: 'EUR' }
      assert.deepEqual(readStripeEvent(event as never), {
        provider: 'stripe',
        payment_id: payment,
        reservation_id: reservation,
        outcome: 'paid',
        total,
      })
    }
  })
})

describe('a payment', () => {
  test('that failed after it had succeeded changes nothing', async () => {
    const reservation = await hold(await api.makeEvent())
    const payment = newPayment()
    await say(intentEvent('succeeded', { payment, reservation }))
    await say(intentEvent('payment_failed', { payment, reservation }))
    await say(sessionEvent('expired', { payment: newPayment(), reservation }))
    assert.equal(await stateOf(reservation), 'confirmed')
    assert.deepEqual([await orderCount(), await refunds()], [1, []])
  })

  test('that succeeds after it had failed gets the same places while they are free', async () => {
    const eventId = await api.makeEvent()
    const reservation = await hold(eventId, { seats: ['A-2-4', 'A-2-5'] })
    const payment = newPayment()
    await say(intentEvent('payment_failed', { payment, reservation }))
    assert.equal(await stateOf(reservation), 'cancelled')
    await say(intentEvent('succeeded', { payment, reservation, amount: 5000 }))
    await say(intentEvent('payment_failed', { payment, reservation }))
    const { rows } = await sql<{ label: string }>`
      select label from tickets join seats using (event_id, seat_no) order by 1`.execute(db)
    assert.deepEqual(
      rows.map(({ label }) => label),
      ['A-2-4', 'A-2-5'],
    )
    assert.deepEqual([await readPayments(), await refunds()], [['confirmed'], []])
  })

  test('that comes after its hold is over gets the same places, swept or not, else others, else it is due back', async () => {
    const eventId = await api.makeEvent()
    for (const isSwept of [false, true]) {
      const reservation = await hold(eventId, { seats: [isSwept ? 'A-1-1' : 'A-1-2'] })
      await end(reservation)
      if (isSwept) assert.equal(await expireReservations(db, 10), 1)
      await say(intentEvent('succeeded', { payment: newPayment(), reservation }))
      assert.equal(await stateOf(reservation), 'expired')
    }
    // Somebody else has the seat, and there are others.
    const late = await hold(eventId, { seats: ['A-1-3'] })
    await end(late)
    await expireReservations(db, 10)
    await hold(eventId, { seats: ['A-1-3'] }, 'bert')
    await say(intentEvent('succeeded', { payment: newPayment(), reservation: late }))
    assert.deepEqual([await orderCount(), await refunds()], [3, []])
    // There are no others.
    const gone = await hold(eventId, { quantity: 1 })
    await end(gone)
    await expireReservations(db, 10)
    await hold(eventId, { quantity: 6 }, 'bert')
    const payment = newPayment()
    await say(intentEvent('succeeded', { payment, reservation: gone }))
    await say(sessionEvent('completed', { payment, reservation: gone }))
    assert.deepEqual(await refunds(), [`${payment} places_gone`])
    assert.equal(await orderCount(), 3)
  })

  test('for a place to stand is an order or due back as well', async () => {
    const sections = [{ name: 'Floor', capacity: 2, price_minor: 2500, currency: 'EUR' }]
    const eventId = await api.makeEvent({ sections })
    const [one, two] = [await hold(eventId, { quantity: 1 }), await hold(eventId, { quantity: 1 })]
    await say(intentEvent('succeeded', { payment: newPayment(), reservation: one }))
    await end(two)
    await say(intentEvent('succeeded', { payment: newPayment(), reservation: two }))
    assert.deepEqual([await orderCount(), await refunds()], [2, []])
  })

  test('in time or late needs no second turn in the waiting room', async () => {
    const eventId = await api.makeEvent({ waiting_room: true })
    await sql`insert into purchase_windows (event_id, user_id, session_token, expires_at)
      values (${eventId}, 'anna', 't', clock_timestamp() + interval '1 min')`.execute(db)
    const reservation = await hold(eventId)
    await sql`delete from purchase_windows`.execute(db)
    await end(reservation)
    await say(intentEvent('succeeded', { payment: newPayment(), reservation }))
    assert.deepEqual([await orderCount(), await refunds()], [1, []])
  })

  test('of nothing, of another amount, of what was given back or paid already is due back, once', async () => {
    const eventId = await api.makeEvent()
    const held = await hold(eventId, { seats: ['A-1-1'] })
    const bought = await hold(eventId, { seats: ['A-1-2'] })
    const left = await hold(eventId, { seats: ['A-1-3'] })
    await api.call('POST', `reservations/${left}/cancel`, { user: 'anna' })
    await say(intentEvent('succeeded', { payment: newPayment(), reservation: bought }))
    const cases: [Omit<Told, 'payment'>, string][] = [
      [{ reservation: randomUUID() }, 'unknown_reservation'],
      [{ reservation: 'no id at all' }, 'unknown_reservation'],
      [{ reservation: held, amount: 2499 }, 'wrong_amount'],
      [{ reservation: held, currency: 'usd' }, 'wrong_amount'],
      [{ reservation: bought }, 'paid_already'],
      [{ reservation: bought.toUpperCase() }, 'paid_already'],
      [{ reservation: left }, 'cancelled'],
    ]
    const expected: string[] = []
    for (const [told, reason] of cases) {
      const payment = newPayment()
      await say(intentEvent('succeeded', { payment, ...told }))
      await say(sessionEvent('completed', { payment, ...told }))
      await say(intentEvent('canceled', { payment, ...told }))
      expected.push(`${payment} ${reason}`)
    }
    assert.deepEqual(await refunds(), expected)
    assert.equal(await orderCount(), 1)
    assert.equal(await stateOf(held), 'held')
  })

  test('whose places are in dispute waits, and no attempt is spent', async () => {
    const reservation = await hold(await api.makeEvent())
    await sql`create function dispute() returns trigger language plpgsql as
      $$ begin raise exception 'in dispute' using errcode = '40001'; end $$`.execute(db)
    await sql`create trigger dispute before insert on payments execute function dispute()`.execute(
      db,
    )
    const waiting = async () =>
      (
        await sql<{ attempts: number }>`select retry_count as attempts from ${everyJob}
          where name = 'payments' and start_after > created_on`.execute(db)
      ).rows
    try {
      await post(intentEvent('succeeded', { payment: newPayment(), reservation }))
      await settleOnce()
      await until(async () => (await waiting()).length === 1)
      const failures = await countOf(sql`select count(*)::int as n from job_errors`)
      assert.deepEqual([await waiting(), failures], [[{ attempts: 0 }], 0])
    } finally {
      await sql`drop function dispute() cascade`.execute(db)
    }
    await settle()
    assert.deepEqual([await orderCount(), await refunds()], [1, []])
  })

  test('is settled with others in the order of the reservations, and told of in that of the payments', async () => {
    const eventId = await api.makeEvent()
    const one = await hold(eventId, { seats: ['A-1-1'] })
    const two = await hold(eventId, { seats: ['A-1-2'] })
    const paid = (reservation_id: string, amount_minor: number): PaymentJob => ({
      type: 'payment',
      provider: 'stripe',
      payment_id: newPayment(),
      outcome: 'paid',
      reservation_id,
      total: { amount_minor, currency: 'EUR' },
    })
    const outcomes = await settlePayments(db, [paid(two, 2500), paid(one, 1), paid(one, 2500)])
    assert.deepEqual(
      outcomes.map(({ is }) => is),
      ['confirmed', 'refund_due', 'confirmed'],
    )
    const { rows } = await sql<{ reservation_id: string }>`
      select reservation_id from payments order by settled_at`.execute(db)
    assert.deepEqual(
      rows.map((row) => row.reservation_id),
      [one, one, two],
    )
  })

  test('of what was confirmed without one pays for that', async () => {
    const reservation = await hold(await api.makeEvent())
    const confirmed = await api.call('POST', `reservations/${reservation}/confirm`, {
      user: 'anna',
    })
    assert.equal(confirmed.status, 200)
    await say(intentEvent('succeeded', { payment: newPayment(), reservation }))
    await say(intentEvent('succeeded', { payment: newPayment(), reservation }))
    assert.deepEqual(await readPayments(), ['confirmed', 'refund_due paid_already'])
  })

  test('that races expiry, its failure, another payment and other buyers has an order or a refund, never both', async () => {
    const sections = [
      { name: 'A', rows: 4, seats_per_row: 5, price_minor: 2500, currency: 'EUR' },
      { name: 'Floor', capacity: 20, price_minor: 2500, currency: 'EUR' },
    ]
    const eventId = await api.makeEvent({ sections })
    const seats = Array.from({ length: 20 }, (_, i) => `A-${1 + (i % 4)}-${1 + Math.floor(i / 4)}`)
    const reservations = await Promise.all([
      ...seats.map((seat) => hold(eventId, { seats: [seat] })),
      ...seats.map(() => hold(eventId, { section: 'Floor', quantity: 1 })),
    ])
    // All but the first ten of each are over in the middle of what follows.
    for (const [i, reservation] of reservations.entries()) {
      if (i % 20 < 10) continue
      await sql`update reservations set
        expires_at = clock_timestamp() + ${100 * (i % 10)} * interval '1 ms'
        where id = ${reservation}`.execute(db)
    }
    const events = reservations.flatMap((reservation, i) => {
      const paid = { payment: newPayment(), reservation }
      const failed = intentEvent('payment_failed', paid)
      return [
        ...(i % 6 === 0 ? [failed] : []),
        intentEvent('succeeded', paid),
        sessionEvent('completed', paid),
        ...(i % 6 === 3 ? [failed] : []),
        ...(i % 5 === 0 ? [intentEvent('succeeded', { ...paid, payment: newPayment() })] : []),
      ]
    })
    let isOver = false
    const meanwhile = async (act: (turn: number) => Promise<unknown>) => {
      for (let turn = 0; !isOver; turn++) await act(turn)
    }
    const tell = async (of: object[]) => {
      for (const event of of) assert.equal((await post(event)).status, 200)
    }
    const racing = [
      meanwhile(settleOnce),
      meanwhile(() => expireReservations(db, 3)),
      meanwhile(async (turn) => {
        const body = { event_id: eventId, quantity: 1 }
        if (turn < 12) await api.call('POST', 'reservations', { user: `bert${turn}`, body })
        else await sleep(10)
      }),
    ]
    await Promise.all([0, 1, 2, 3].map((lane) => tell(events.filter((_, i) => i % 4 === lane))))
    isOver = true
    await Promise.all(racing)
    await settle()
    const taken = 40 + 8
    const { rows } = await sql<{ state: string; n: number }>`
      select state, count(*)::int as n from payments group by 1`.execute(db)
    const count = (state: string) => rows.find((row) => row.state === state)?.n ?? 0
    assert.equal(count('confirmed') + count('refund_due'), taken, JSON.stringify(rows))
    assert.equal(count('failed'), 0)
    assert.equal(await orderCount(), count('confirmed'))
    assert.equal((await refunds()).length, count('refund_due'))
  })

  test('is settled once by workers that are killed at it again and again', async () => {
    const sections = [
      { name: 'A', rows: 10, seats_per_row: 10, price_minor: 2500, currency: 'EUR' },
      { name: 'Floor', capacity: 100, price_minor: 2500, currency: 'EUR' },
    ]
    const eventId = await api.makeEvent({ sections })
    const wishes = Array.from({ length: 60 }, (_, i) => ({
      section: i % 2 === 0 ? 'A' : 'Floor',
      quantity: 1,
    }))
    const reservations = await Promise.all(wishes.map((wish) => hold(eventId, wish)))
    const paid = reservations.map((reservation) => ({ payment: newPayment(), reservation }))
    for (const told of paid) {
      await post(intentEvent('succeeded', told))
      await post(sessionEvent('completed', told))
    }
    const start = () => {
      const env = { OUTBOX_POLL_MS: '20', INBOX_POLL_MS: '20', METRICS_PORT: '0' }
      return [startWorker('outbox', fresh.url, [], env), startWorker('inbox', fresh.url, [], env)]
    }
    for (let kills = 0; kills < 3; kills++) {
      const before = await settled()
      const workers = start()
      await until(async () => (await settled()) > before || (await settled()) === 120)
      for (const one of workers) one.process.kill('SIGKILL')
      await loseLife(db)
    }
    const workers = start()
    await until(async () => (await settled()) === 120)
    const ended = workers.map((one) => {
      one.process.kill('SIGTERM')
      return until(() => one.process.exitCode === 0)
    })
    await Promise.all(ended)
    assert.deepEqual([await orderCount(), await refunds()], [60, []])
  })
})
