// Events for the tests of the outbox, and the wait until they may be read.

import { randomUUID } from 'node:crypto'
import { sql } from 'kysely'
import { writeEvents } from '../db/outbox.ts'
import type { Db } from '../db/schema.ts'
import { transaction } from '../db/transaction.ts'
import type { CloudEvent, NewEvent } from '../domain/events.ts'
import { until } from './worker.ts'

export const order = {
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

export const completed = (subject: string, sequence: number): NewEvent => ({
  messageId: randomUUID(),
  type: 'order.completed',
  subject,
  sequence,
  data: order,
  requestId: `request-${sequence}`,
})

export const held = (subject: string, sequence = 1): NewEvent => ({
  messageId: randomUUID(),
  type: 'reservation.held',
  subject,
  sequence,
  data: { ...order, reservation_id: subject, expires_at: '2027-01-01T19:00:00Z' },
})

/** As it travels. */
export const toCloudEvent = (event: NewEvent): CloudEvent => ({
  specversion: '1.0',
  id: event.messageId,
  source: '/flotilla',
  type: event.type,
  subject: event.subject,
  time: '2026-12-01T10:00:00.000Z',
  datacontenttype: 'application/json',
  sequence: String(event.sequence),
  ...(event.requestId === undefined ? {} : { requestid: event.requestId }),
  data: event.data,
})

/** The horizon is that of the whole server: what other test files write must be out of the way. */
export async function write(db: Db, events: NewEvent[]): Promise<void> {
  await transaction(db, (tx) => writeEvents(tx, events))
  await until(async () => {
    const { rows } = await sql`
      select from pg_stat_activity
      where (datname is distinct from current_database() or backend_type <> 'client backend')
        and backend_xid::text::bigint <= (select max(txid)::text::bigint from outbox)`.execute(db)
    return rows.length === 0
  })
}

/** Subjects, each of another slot where there are enough. */
export const subjects = (count: number): string[] =>
  Array.from({ length: count }, () => randomUUID())
