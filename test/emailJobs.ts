// Mail jobs for tests, and a worker's passes over them.

import { randomUUID } from 'node:crypto'
import type { EmailJob } from '../domain/emails.ts'
import type { Pass } from '../workers/loop.ts'

export type Tickets = Extract<EmailJob, { template: 'ticket_delivery' }>['payload']
export const values: Tickets = {
  order_id: '0190a1b2-0000-7000-8000-000000000001',
  event_name: 'Opening night',
  starts_at: '2027-01-01T19:00:00.000Z',
  section: 'Stalls',
  quantity: 2,
  seats: ['Stalls-1-1', 'Stalls-1-2'],
  total: { amount_minor: 123450, currency: 'EUR' },
  tickets: [
    { ticket_id: randomUUID(), seat: 'Stalls-1-1', code: 'K7QF-22' },
    { ticket_id: randomUUID(), seat: 'Stalls-1-2', code: 'M3XD-91' },
  ],
}
export const mailJob = (
  template: EmailJob['template'] = 'order_confirmation',
  changed: Partial<Tickets> & { locale?: string } = {},
): EmailJob =>
  ({
    job_id: randomUUID(),
    type: 'email',
    template,
    recipient: 'anna@example.org',
    payload: { ...values, ...changed },
    created_at: '2026-12-01T10:00:00.000Z',
    attempts: 0,
    max_attempts: 3,
  }) as EmailJob

/** Passes until nothing is left to do, or nothing can be done now. @returns how many were handled */
export async function drain(pass: Pass): Promise<number> {
  const signal = new AbortController().signal
  for (let handled = 0; ; ) {
    const outcome = await pass(signal, Number.POSITIVE_INFINITY)
    if (outcome === 0 || (typeof outcome === 'object' && outcome.waitMs > 0)) return handled
    handled += typeof outcome === 'number' ? outcome : 0
  }
}
