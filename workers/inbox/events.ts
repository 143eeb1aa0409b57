// Turns events into the jobs they ask for, as pure rules: which event becomes which mail or payment; pushes stand in pushes.ts. A
// job's id is made of the event's id and what it becomes, so that however the event comes a second time it asks for the
// same job.

import { v5 as uuidv5 } from 'uuid'
import type { NewJob } from '../../db/jobs.ts'
import type { KnownDevice, Recipient } from '../../db/users.ts'
import type { EmailJob } from '../../domain/emails.ts'
import type { CloudEvent, EventType } from '../../domain/events.ts'
import type { PaymentJob } from '../../domain/payments.ts'
import type { QueueName } from '../../domain/queues.ts'
import { toPush } from './pushes.ts'

export type Outcome = {
  jobs: { queue: QueueName; job: NewJob }[]
  /** Mails that nobody can get: the user has no address. */
  unreachable: { type: EventType; userId: string; eventId: string }[]
}

/** Whom the events are for. */
export const usersOf = (events: readonly CloudEvent[]): string[] => [
  ...new Set(events.map(userOf).filter((id) => id !== undefined)),
]

/** Undefined: it is about no user. */
function userOf({ data }: CloudEvent): string | undefined {
  const { user_id: id } = data as { user_id?: unknown }
  return typeof id === 'string' ? id : undefined
}

export function toJobs(
  events: readonly CloudEvent[],
  users: ReadonlyMap<string, Recipient>,
  devices: ReadonlyMap<string, readonly KnownDevice[]> = new Map(),
): Outcome {
  const outcome: Outcome = { jobs: [], unreachable: [] }
  for (const event of events) {
    if (event.type === 'payment.webhook') outcome.jobs.push(toPayment(event as never))
    const userId = userOf(event)
    if (userId === undefined) continue
    const push = toPush(event, users.get(userId), devices.get(userId) ?? [])
    if (push !== undefined) outcome.jobs.push(push)
    const email = toEmail(event)
    if (email === undefined) continue
    const user = users.get(userId)
    if (!user?.email) {
      const { type, id: eventId } = event
      outcome.unreachable.push({ type, userId, eventId })
      continue
    }
    const { template, payload } = email
    const id = uuidv5(template, event.id)
    const data = {
      job_id: id,
      type: 'email',
      template,
      recipient: user.email,
      payload: { ...payload, locale: user.locale },
      created_at: event.time,
      attempts: 0,
      max_attempts: 3,
      ...(event.requestid === undefined ? {} : { request_id: event.requestid }),
      ...(event.traceparent === undefined ? {} : { traceparent: event.traceparent }),
    } as EmailJob
    outcome.jobs.push({ queue: 'email', job: { id, data } })
  }
  return outcome
}

function toPayment({ id, requestid, traceparent, data }: CloudEvent<'payment.webhook'>) {
  const { provider, payment_id, outcome, reservation_id, total } = data
  const job: PaymentJob = {
    type: 'payment',
    provider,
    payment_id,
    outcome,
    reservation_id,
    ...(total && { total }),
    ...(requestid !== undefined && { request_id: requestid }),
    ...(traceparent !== undefined && { traceparent }),
  }
  return { queue: 'payments', job: { id: uuidv5('payment', id), data: job } } as const
}

function toEmail(event: CloudEvent): Pick<EmailJob, 'template' | 'payload'> | undefined {
  switch (event.type) {
    case 'order.completed':
      return { template: 'order_confirmation', payload: orderOf(event as never) }
    case 'ticket.generated': {
      const { data } = event as CloudEvent<'ticket.generated'>
      const tickets = data.tickets
      return { template: 'ticket_delivery', payload: { ...orderOf(event as never), tickets } }
    }
    case 'quota.invitation': {
      const { data } = event as CloudEvent<'quota.invitation'>
      const { quota_id, event_name, starts_at, quantity, expires_at } = data
      const payload = { quota_id, event_name, starts_at, quantity }
      return {
        template: 'quota_invitation',
        payload: { ...payload, ...(expires_at && { expires_at }) },
      }
    }
    default:
      return undefined
  }
}

/** What the reader may see of an order: no ids of users or reservations. */
function orderOf({ data }: CloudEvent<'order.completed' | 'ticket.generated'>) {
  const { order_id, event_name, starts_at, section, quantity, seats, total } = data
  return { order_id, event_name, starts_at, section, quantity, ...(seats && { seats }), total }
}
