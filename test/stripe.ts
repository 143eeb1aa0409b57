// Stripe's webhooks as it sends them: events of a payment in their two shapes, signed with a secret of the endpoint.
// https://docs.stripe.com/api/payment_intents/object, https://docs.stripe.com/api/checkout/sessions/object

import { createHmac, randomBytes } from 'node:crypto'

export const secret = 'whsec_0123456789abcdefghijklmnop'

export const newPayment = (): string => `pi_${randomBytes(12).toString('hex')}`

export type Told = {
  payment: string
  reservation?: string | undefined
  amount?: number
  currency?: string
  /** Of the event; left out: a new one. */
  id?: string
  over?: Record<string, unknown>
}

const eventOf = (type: string, id: string | undefined, object: object) => ({
  id: id ?? `evt_${randomBytes(12).toString('hex')}`,
  object: 'event',
  api_version: '2026-09-30.preview',
  created: Math.floor(Date.now() / 1000),
  data: { object },
  livemode: false,
  pending_webhooks: 1,
  request: { id: null, idempotency_key: null },
  type,
})

export function intentEvent(
  type: 'succeeded' | 'payment_failed' | 'canceled' | 'created',
  { payment, reservation, amount = 2500, currency = 'eur', id, over }: Told,
) {
  return eventOf(`payment_intent.${type}`, id, {
    id: payment,
    object: 'payment_intent',
    amount,
    amount_received: type === 'succeeded' ? amount : 0,
    currency,
    metadata: reservation === undefined ? {} : { reservation_id: reservation },
    receipt_email: 'anna@example.org',
    status: type === 'succeeded' ? 'succeeded' : 'requires_payment_method',
    ...over,
  })
}

export function sessionEvent(
  type: 'completed' | 'expired' | 'async_payment_succeeded' | 'async_payment_failed',
  { payment, reservation, amount = 2500, currency = 'eur', id, over }: Told,
) {
  const paid = type === 'completed' || type === 'async_payment_succeeded'
  return eventOf(`checkout.session.${type}`, id, {
    id: `cs_test_${payment.slice(3)}`,
    object: 'checkout.session',
    amount_total: amount,
    currency,
    customer_details: { email: 'anna@example.org', name: 'Anna' },
    metadata: reservation === undefined ? {} : { reservation_id: reservation },
    payment_intent: payment,
    payment_status: paid ? 'paid' : 'unpaid',
    status: type === 'expired' ? 'expired' : 'complete',
    ...over,
  })
}

export function signatureOf(body: string, key = secret, at = Math.floor(Date.now() / 1000)) {
  return createHmac('sha256', key).update(`${at}.${body}`).digest('hex')
}

/** The header for a body; several keys while a secret is exchanged. */
export function signed(
  body: string,
  keys: readonly string[] = [secret],
  at = Math.floor(Date.now() / 1000),
): string {
  return [`t=${at}`, ...keys.map((key) => `v1=${signatureOf(body, key, at)}`), 'v0=00'].join(',')
}
