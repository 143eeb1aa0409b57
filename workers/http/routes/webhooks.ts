// What providers tell of their own accord. Mailgun: an address that cannot be reached for good, a complaint or an
// unsubscription suppresses the address; whatever it has taken is known to have been sent. Answered as Mailgun reads it:
// 200 done, 406 never send it again, anything else is sent again for hours.

import type { FastifyInstance } from 'fastify'
import { confirmEmailSent } from '../../../db/emailSends.ts'
import type { Db } from '../../../db/schema.ts'
import { suppress, takeWebhook } from '../../../db/suppressions.ts'
import { transaction } from '../../../db/transaction.ts'
import { isAddress, normalAddress, type Suppression } from '../../../domain/emails.ts'
import { AppError } from '../../../domain/errors.ts'
import { json } from '../../problem.ts'
import type { HttpConfig } from '../config.ts'
import { send } from '../guard.ts'
import { type Signature, signatureFault } from '../mailgunSignature.ts'
import { mailgunWebhook } from '../schemas.ts'

type MailgunEvent = {
  event: string
  id?: string
  severity?: string
  reason?: string
  recipient?: string
  'user-variables'?: Record<string, unknown>
}

/** A receiver that blocks us, or did not answer for days: that is not the address's fault. */
const notTheirs: ReadonlySet<string> = new Set(['espblock', 'old'])

export type WebhookParts = { db: Db; config: Pick<HttpConfig, 'MAILGUN_SIGNING_KEY'> }

/** Not charged to the limits that users share: what is not signed costs a hash. */
export function addWebhookRoutes(api: FastifyInstance, { db, config }: WebhookParts): void {
  api.post('/webhooks/mailgun', {
    attachValidation: true,
    config: { problems: ['WEBHOOK_REFUSED'] },
    schema: {
      tags: ['webhooks'],
      summary: 'Takes what Mailgun tells of mails it has sent',
      description: 'Bounces, complaints and unsubscriptions suppress the address.',
      body: mailgunWebhook,
      response: { 200: { description: 'Done, now or before' } },
    },
    handler: async (request, reply) => {
      const key = config.MAILGUN_SIGNING_KEY
      if (key === undefined) {
        throw new AppError('UNAVAILABLE', 'MAILGUN_SIGNING_KEY is not set', {
          retryAfterMs: 600_000,
        })
      }
      if (request.unparsed || request.validationError) {
        throw new AppError('WEBHOOK_REFUSED', 'this is no webhook of Mailgun’s')
      }
      const body = request.body as { signature: Signature; 'event-data': MailgunEvent }
      const fault = signatureFault(body.signature, key)
      if (fault !== undefined) throw new AppError('WEBHOOK_REFUSED', fault)
      const event = body['event-data']
      const isNew = await take(db, body.signature.token, event)
      request.log.info({ event: event.event, is_new: isNew, reason: event.reason }, 'webhook')
      return send(reply, json(200, { message: isNew ? 'done' : 'done before' }))
    },
  })
}

/** @returns false when the token has been used */
async function take(db: Db, token: string, event: MailgunEvent): Promise<boolean> {
  return await transaction(
    db,
    async (tx) => {
      const payload = { event: event.event, id: event.id }
      if (!(await takeWebhook(tx, { provider: 'mailgun', id: token, payload }))) return false
      const suppression = suppressionOf(event)
      if (suppression) await suppress(tx, suppression)
      const jobId = event['user-variables']?.['flotilla-job']
      if (typeof jobId === 'string' && event.event !== 'rejected') await confirmEmailSent(tx, jobId)
      return true
    },
    { isolation: 'read committed' },
  )
}

function suppressionOf(event: MailgunEvent): Suppression | undefined {
  const address = normalAddress(event.recipient ?? '')
  const reason = reasonOf(event)
  return reason && isAddress(address) ? { address, reason, source: 'mailgun' } : undefined
}

function reasonOf({
  event,
  severity,
  reason = '',
}: MailgunEvent): Suppression['reason'] | undefined {
  if (event === 'complained') return 'complaint'
  if (event === 'unsubscribed') return 'unsubscribe'
  if (event !== 'failed' || severity !== 'permanent' || notTheirs.has(reason)) return undefined
  if (reason === 'suppress-complaint') return 'complaint'
  return reason === 'suppress-unsubscribe' ? 'unsubscribe' : 'bounce'
}
