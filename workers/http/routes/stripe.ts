// What Stripe tells of payments. Kept with its event payment.webhook in one transaction, and answered: what becomes of the
// payment is decided later (workers/inbox/payments.ts), as Stripe does not wait. Anything but 2xx is sent again for days.

import type { FastifyInstance } from 'fastify'
import { v7 as uuidv7 } from 'uuid'
import { writeEvents } from '../../../db/outbox.ts'
import type { Db } from '../../../db/schema.ts'
import { takeWebhook } from '../../../db/suppressions.ts'
import { transaction } from '../../../db/transaction.ts'
import { AppError } from '../../../domain/errors.ts'
import type { PaymentData } from '../../../domain/events.ts'
import { readStripeEvent, type StripeEvent } from '../../../domain/payments.ts'
import { json } from '../../problem.ts'
import type { HttpConfig } from '../config.ts'
import { send } from '../guard.ts'
import { stripeWebhook } from '../schemas.ts'
import { stripeSignatureFault } from '../stripeSignature.ts'

export type StripeParts = { db: Db; config: Pick<HttpConfig, 'STRIPE_WEBHOOK_SECRET'> }

/** Not charged to the limits that users share: what is not signed costs a hash. */
export function addStripeRoutes(api: FastifyInstance, { db, config }: StripeParts): void {
  api.post('/webhooks/stripe', {
    attachValidation: true,
    config: { keepsText: true, problems: ['WEBHOOK_REFUSED'] },
    schema: {
      tags: ['webhooks'],
      summary: 'Takes what Stripe tells of payments',
      description:
        'A payment confirms the reservation that its metadata names as reservation_id, one that failed cancels it. Money that buys nothing makes the event payment.refund_due.',
      body: stripeWebhook,
      response: { 200: { description: 'Kept, now or before; or of no interest' } },
    },
    handler: async (request, reply) => {
      const secrets = config.STRIPE_WEBHOOK_SECRET
      if (secrets === undefined) {
        throw new AppError('UNAVAILABLE', 'STRIPE_WEBHOOK_SECRET is not set', {
          retryAfterMs: 600_000,
        })
      }
      const header = request.headers['stripe-signature']
      const fault = stripeSignatureFault(header?.toString(), request.text ?? '', secrets)
      if (fault !== undefined) throw new AppError('WEBHOOK_REFUSED', fault)
      if (request.unparsed || request.validationError) {
        throw new AppError('WEBHOOK_REFUSED', 'this is no event of Stripe’s')
      }
      const event = request.body as StripeEvent
      const payment = readStripeEvent(event)
      const { traceparent } = request.span
      const isNew =
        payment && (await keep(db, event, payment, { requestId: request.id, traceparent }))
      request.log.info(
        { webhook_id: event.id, type: event.type, payment_id: payment?.payment_id, is_new: isNew },
        'webhook',
      )
      const message = payment === undefined ? 'of no interest' : isNew ? 'done' : 'done before'
      return send(reply, json(200, { message }))
    },
  })
}

type Requested = { requestId: string; traceparent: string | undefined }

/** @returns false when it came before */
async function keep(
  db: Db,
  { id, type }: StripeEvent,
  payment: PaymentData,
  requested: Requested,
): Promise<boolean> {
  return await transaction(
    db,
    async (tx) => {
      const { payment_id, outcome } = payment
      const payload = { type, payment_id, outcome }
      if (!(await takeWebhook(tx, { provider: 'stripe', id, payload }))) return false
      const data = { ...payment, webhook_id: id, webhook_type: type }
      await writeEvents(tx, [
        {
          messageId: uuidv7(),
          type: 'payment.webhook',
          subject: id,
          sequence: 1,
          ...requested,
          data,
        },
      ])
      return true
    },
    { isolation: 'read committed' },
  )
}
