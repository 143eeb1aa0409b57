// Quotas: tickets of an event set aside for one user, who is invited to take them. The quota and the event that tells of
// it come to be together.

import { v7 as uuidv7 } from 'uuid'
import { AppError } from '../domain/errors.ts'
import { writeEvents } from './outbox.ts'
import type { Tx } from './schema.ts'

export type NewQuota = {
  event_id: string
  user_id: string
  quantity: number
  /** ISO 8601; undefined: until the event. */
  expires_at?: string | undefined
}

/** Gives its id, or EVENT_NOT_FOUND. */
export async function createQuota(
  tx: Tx,
  quota: NewQuota,
  requested: { requestId?: string | undefined; traceparent?: string | undefined },
): Promise<string | AppError> {
  const { event_id, user_id, quantity } = quota
  const event = await tx
    .selectFrom('events')
    .select(['name', 'starts_at'])
    .where('id', '=', event_id)
    .executeTakeFirst()
  if (event === undefined) return new AppError('EVENT_NOT_FOUND', `there is no event ${event_id}`)
  const id = uuidv7()
  const { expires_at } = await tx
    .insertInto('quotas')
    .values({ id, event_id, user_id, quantity, expires_at: dateOf(quota.expires_at) })
    .returning('expires_at')
    .executeTakeFirstOrThrow()
  const data = {
    quota_id: id,
    event_id,
    event_name: event.name,
    starts_at: event.starts_at.toISOString(),
    user_id,
    quantity,
    ...(expires_at && { expires_at: expires_at.toISOString() }),
  }
  const about = { messageId: uuidv7(), subject: id, sequence: 1, ...requested }
  await writeEvents(tx, [{ type: 'quota.invitation', data, ...about }])
  return id
}

const dateOf = (text: string | undefined): Date | null =>
  text === undefined ? null : new Date(text)
