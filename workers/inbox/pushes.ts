// Which event becomes which push, as pure rules: its texts in the user's language, how long it is worth something, and
// which of them overtake the rest. What is told of one queue has one key, so that a phone shows the last word of it.

import { v5 as uuidv5 } from 'uuid'
import type { NewJob } from '../../db/jobs.ts'
import type { KnownDevice, Recipient } from '../../db/users.ts'
import type { CloudEvent, EventType } from '../../domain/events.ts'
import type { PushJob, PushQueue, PushTemplate } from '../../domain/pushes.ts'
import { pushText } from '../../domain/pushTexts.ts'

type Values = Record<string, string | number | undefined>

type Wanted = Pick<PushJob, 'expires_at' | 'collapse_key' | 'priority'> & {
  template: PushTemplate
  queue?: PushQueue
  values?: Values
  data: Record<string, string | undefined>
}

/** A place in a queue is old news after so long. */
const positionMs = 300_000

const rules: { [T in EventType]?: (event: CloudEvent<T>) => Wanted } = {
  'ticket.generated': ({ data: { event_name, order_id, event_id } }) => ({
    template: 'ticket_ready',
    values: { event_name },
    data: { order_id, event_id },
  }),
  'quota.invitation': ({ data: { quota_id, event_id, event_name, expires_at } }) => ({
    template: 'quota_invitation',
    values: { event_name },
    data: { quota_id, event_id },
    ...(expires_at && { expires_at }),
  }),
  'queue.turn_granted': ({ time, data: { match_id, expires_at, checkout_url } }) => ({
    template: 'queue_your_turn',
    queue: 'push:priority',
    priority: 'high',
    values: { minutes: minutesBetween(time, expires_at) },
    data: { match_id, expires_at, checkout_url },
    expires_at,
    collapse_key: keyOf(match_id),
  }),
  'queue.expired': ({ data: { match_id, reason } }) => ({
    template: 'queue_expired',
    data: { match_id, reason },
    collapse_key: keyOf(match_id),
  }),
  'queue.position_update': ({ time, data: { match_id, position, estimated_wait_minutes } }) => ({
    template: 'queue_position',
    values: { position, minutes: estimated_wait_minutes },
    data: { match_id, position: String(position) },
    expires_at: new Date(Date.parse(time) + positionMs).toISOString(),
    collapse_key: keyOf(match_id),
  }),
}

const minutesBetween = (from: string, to: string): number =>
  Math.max(1, Math.round((Date.parse(to) - Date.parse(from)) / 60_000))

/** Whatever a match is called, short and of ASCII. */
const keyOf = (matchId: string): string => uuidv5(`queue ${matchId}`, uuidv5.URL)

/** None: nobody is pushed for such an event, or the user has no device. */
export function toPush(
  event: CloudEvent,
  user: Recipient | undefined,
  devices: readonly KnownDevice[],
): { queue: PushQueue; job: NewJob } | undefined {
  const rule = rules[event.type] as ((event: CloudEvent) => Wanted) | undefined
  if (rule === undefined || user === undefined || devices.length === 0) return undefined
  const { template, queue = 'push', values, data, ...rest } = rule(event)
  const id = uuidv5(`push ${template}`, event.id)
  const known = Object.entries(data).filter(([, value]) => value !== undefined)
  const job: PushJob = {
    job_id: id,
    type: 'push',
    template,
    user_id: user.id,
    fcm_tokens: devices.map(({ kind, value }) => (kind === 'fid' ? { fid: value } : value)),
    payload: {
      ...pushText(template, user.locale, values),
      data: Object.fromEntries(known) as Record<string, string>,
    },
    priority: 'normal',
    ...rest,
    created_at: event.time,
    ...(event.requestid === undefined ? {} : { request_id: event.requestid }),
    ...(event.traceparent === undefined ? {} : { traceparent: event.traceparent }),
  }
  return { queue, job: { id, data: job } }
}
