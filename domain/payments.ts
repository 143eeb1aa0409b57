// Payments: what a job of the queue `payments` brings, and what Stripe's webhooks say of one. Pure rules: whether a payment
// is an order or due back is decided in db/payments.ts.

import { type Money, type PaymentData, paymentOutcomes } from './events.ts'
import { faultOf, type Schema } from './schema.ts'

export type PaymentJob = PaymentData & {
  type: 'payment'
  request_id?: string
  traceparent?: string
}

const id = { type: 'string', minLength: 1, maxLength: 200 } as const

export const paymentSchema: Schema = {
  type: 'object',
  required: ['type', 'provider', 'payment_id', 'outcome', 'reservation_id'],
  properties: {
    type: { type: 'string', const: 'payment' },
    provider: { type: 'string', const: 'stripe' },
    payment_id: id,
    outcome: { enum: paymentOutcomes },
    reservation_id: id,
    total: {
      type: 'object',
      required: ['amount_minor', 'currency'],
      properties: {
        amount_minor: { type: 'integer', minimum: 0 },
        currency: { type: 'string', pattern: '^[A-Z]{3}$' },
      },
    },
  },
}

/** @throws Error that says what is wrong with it and what is right; values are not in the message */
export function decodePayment(data: unknown): PaymentJob {
  const fault = faultOf(paymentSchema, data)
  if (fault !== undefined) throw new Error(fault)
  const job = data as PaymentJob
  if (job.outcome === 'paid' && job.total === undefined) throw new Error('total is missing')
  return job
}

/** As much of an event of Stripe's as is looked at: https://docs.stripe.com/api/events/object */
export type StripeEvent = { id: string; type: string; data: { object: Record<string, unknown> } }

/** https://docs.stripe.com/api/events/types; a session without its money yet is told of once more. */
const outcomes: Readonly<Record<string, PaymentData['outcome']>> = {
  'payment_intent.succeeded': 'paid',
  'payment_intent.payment_failed': 'failed',
  'payment_intent.canceled': 'failed',
  'checkout.session.completed': 'paid',
  'checkout.session.async_payment_succeeded': 'paid',
  'checkout.session.async_payment_failed': 'failed',
  'checkout.session.expired': 'failed',
}

/**
 * What the event says of a payment of ours. Undefined: nothing, as it is of another type, not paid yet, or of a payment
 * that names no reservation, such as those of another shop in the same account.
 */
export function readStripeEvent({ type, data: { object } }: StripeEvent): PaymentData | undefined {
  const outcome = Object.hasOwn(outcomes, type) ? outcomes[type] : undefined
  const reservation_id = textOf(
    (object.metadata as { reservation_id?: unknown } | null)?.reservation_id,
  )
  const isSession = type.startsWith('checkout.')
  // One payment, whichever of its two objects tells of it: a session names its intent, once there is one.
  const payment_id = (isSession ? idOf(object.payment_intent) : undefined) ?? textOf(object.id)
  if (outcome === undefined || reservation_id === undefined || payment_id === undefined) {
    return undefined
  }
  const said = { provider: 'stripe', payment_id, reservation_id, outcome } as const
  if (outcome === 'failed') return said
  if (isSession && object.payment_status === 'unpaid') return undefined
  const amount = isSession ? object.amount_total : (object.amount_received ?? object.amount)
  const total = moneyOf(amount, object.currency)
  return total && { ...said, total }
}

/** 1 to 200 characters that can be kept. */
const textOf = (value: unknown): string | undefined =>
  typeof value === 'string' && /^[^\p{Cc}\p{Cs}]{1,200}$/u.test(value) ? value : undefined

/** An id, or the object it is of where Stripe was asked to expand it. */
const idOf = (value: unknown): string | undefined =>
  textOf(value) ?? textOf((value as { id?: unknown } | null | undefined)?.id)

/** Both of us count in the least unit of the currency (https://docs.stripe.com/currencies). */
function moneyOf(amount: unknown, currency: unknown): Money | undefined {
  if (!Number.isSafeInteger(amount) || (amount as number) < 0) return undefined
  const code = String(currency).toUpperCase()
  return /^[A-Z]{3}$/.test(code) ? { amount_minor: amount as number, currency: code } : undefined
}
