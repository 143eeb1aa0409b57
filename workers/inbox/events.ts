// Turns events into the jobs they ask for, as pure rules: which event becomes which mail; pushes stand in pushes.ts. A
// job's id is made of the event's id and what it becomes, so that however the event comes a second time it asks for the
// same job.

import { v5 as uuidv5 } from 'uuid'
import type { NewJob } from '../../db/jobs.ts'
import type { KnownDevice, Recipient } from '../../db/users.ts'
import { eventSchema, eventTypes } from '../../domain/catalogue.ts'
import type { EmailJob } from '../../domain/emails.ts'
import type { CloudEvent, EventType } from '../../domain/events.ts'
import type { QueueName } from '../../domain/queues.ts'
import { faultOf, type Schema } from '../../domain/schema.ts'
import { unstorable } from '../storable.ts'
import { toPush } from './pushes.ts'

export type Outcome = {
  jobs: { queue: QueueName; job: NewJob }[]
  /** Mails that nobody can get: the user has no address. */
  unreachable: { type: EventType; userId: string; eventId: string }[]
}

const schemas = new Map<string, Schema>(eventTypes.map((type) => [type, eventSchema(type)]))

/** @throws Error when it is no CloudEvent of the catalogue: what does not fit, and where; values are not in it */
export function decodeEvent(data: unknown): CloudEvent {
  if (typeof data !== 'object' || data === null || Array.isArray(data)) {
    throw new Error('an event must be an object')
  }
  const why = unstorable(data)
  if (why !== undefined) throw new Error(why)
  const { specversion, type } = data as Partial<CloudEvent>
  if (specversion !== '1.0') throw new Error('specversion must be "1.0"')
  const schema = typeof type === 'string' ? schemas.get(type) : undefined
  if (schema === undefined) {
    const named = typeof type === 'string' && /^[\w.-]{1,100}$/.test(type) ? ` "${type}"` : ''
    throw new Error(`type${named} is not known: the catalogue has ${eventTypes.join(', ')}`)
  }
  const fault = faultOf(schema, data)
  if (fault !== undefined) throw new Error(fault)
  return data as CloudEvent
}

/** Whom the events are for. */
export const usersOf = (events: readonly CloudEvent[]): string[] => [
  ...new Set(events.map((event) => event.data.user_id).filter((id) => typeof id === 'string')),
]

export function toJobs(
  events: readonly CloudEvent[],
  users: ReadonlyMap<string, Recipient>,
  devices: ReadonlyMap<string, readonly KnownDevice[]> = new Map(),
): Outcome {
  const outcome: Outcome = { jobs: [], unreachable: [] }
  for (const event of events) {
    const { user_id: userId } = event.data
    const push = toPush(event, users.get(userId), devices.get(userId) ?? [])
    if (push !== undefined) outcome.jobs.push(push)
    const email = toEmail(event)
    if (email === undefined) continue
    const user = users.get(event.data.user_id)
    if (!user?.email) {
      const { type, id: eventId } = event
      outcome.unreachable.push({ type, userId: event.data.user_id, eventId })
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
