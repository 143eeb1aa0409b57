// The schema of each event type, as JSON Schema (draft 2020-12): what its `data` holds and what its CloudEvent looks like.
// Fields may be added to a type, never taken away or changed: a reader lets pass what it does not know. The inbox checks
// what comes against these (domain/schema.ts), and docs/events/ has them for others (cli/exportSchemas.ts).

import { type EventType, paymentOutcomes, refundReasons } from './events.ts'

const id = { type: 'string', minLength: 1, maxLength: 200 } as const
const uuid = {
  type: 'string',
  pattern: '^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$',
} as const
const time = {
  type: 'string',
  pattern: '^\\d{4}-\\d\\d-\\d\\dT\\d\\d:\\d\\d:\\d\\d(\\.\\d+)?Z$',
} as const
const count = { type: 'integer', minimum: 1 } as const
const text = { type: 'string' } as const
const seats = { type: 'array', items: text } as const

const reservation = {
  reservation_id: uuid,
  event_id: uuid,
  user_id: id,
  section: text,
  quantity: count,
  seats,
} as const
const reservationRequired = [
  'reservation_id',
  'event_id',
  'user_id',
  'section',
  'quantity',
] as const

const money = {
  type: 'object',
  required: ['amount_minor', 'currency'],
  properties: {
    amount_minor: { type: 'integer' },
    currency: { type: 'string', pattern: '^[A-Z]{3}$' },
  },
} as const
const order = {
  order_id: uuid,
  ...reservation,
  event_name: text,
  starts_at: time,
  total: money,
} as const
const orderRequired = [
  'order_id',
  'reservation_id',
  'event_id',
  'event_name',
  'starts_at',
  'user_id',
  'section',
  'quantity',
  'total',
] as const

const ticket = {
  type: 'object',
  required: ['ticket_id', 'code'],
  properties: { ticket_id: uuid, seat: text, code: text },
} as const

const place = { match_id: id, user_id: id } as const
const placeRequired = ['match_id', 'user_id'] as const

const provider = { const: 'stripe' } as const
const payment = { provider, payment_id: id, reservation_id: id } as const

/** Of `data`. */
export const dataSchemas = {
  'reservation.held': {
    type: 'object',
    required: [...reservationRequired, 'expires_at'],
    properties: { ...reservation, expires_at: time },
  },
  'reservation.confirmed': {
    type: 'object',
    required: [...reservationRequired, 'order_id'],
    properties: { ...reservation, order_id: uuid },
  },
  'reservation.cancelled': {
    type: 'object',
    required: reservationRequired,
    properties: reservation,
  },
  'reservation.expired': {
    type: 'object',
    required: reservationRequired,
    properties: reservation,
  },
  'order.completed': { type: 'object', required: orderRequired, properties: order },
  'ticket.generated': {
    type: 'object',
    required: [...orderRequired, 'tickets'],
    properties: { ...order, tickets: { type: 'array', items: ticket } },
  },
  'quota.invitation': {
    type: 'object',
    required: ['quota_id', 'event_id', 'event_name', 'starts_at', 'user_id', 'quantity'],
    properties: {
      quota_id: uuid,
      event_id: uuid,
      event_name: text,
      starts_at: time,
      user_id: id,
      quantity: count,
      expires_at: time,
    },
  },
  'queue.turn_granted': {
    type: 'object',
    required: [...placeRequired, 'expires_at'],
    properties: { ...place, expires_at: time, checkout_url: text },
  },
  'queue.expired': {
    type: 'object',
    required: [...placeRequired, 'reason'],
    properties: { ...place, reason: text },
  },
  'queue.position_update': {
    type: 'object',
    required: [...placeRequired, 'position', 'estimated_wait_minutes'],
    properties: {
      ...place,
      position: count,
      estimated_wait_minutes: { type: 'integer', minimum: 0 },
    },
  },
  'payment.webhook': {
    type: 'object',
    required: ['provider', 'payment_id', 'reservation_id', 'outcome', 'webhook_id', 'webhook_type'],
    properties: {
      ...payment,
      outcome: { enum: paymentOutcomes },
      total: money,
      webhook_id: id,
      webhook_type: id,
    },
  },
  'payment.refund_due': {
    type: 'object',
    required: ['provider', 'payment_id', 'reservation_id', 'total', 'reason'],
    properties: {
      ...payment,
      total: money,
      reason: { enum: refundReasons },
    },
  },
} as const satisfies Record<EventType, object>

const purposes: Record<EventType, string> = {
  'reservation.held': 'Places are held for a user, until expires_at.',
  'reservation.confirmed': 'A hold became an order.',
  'reservation.cancelled': 'A hold was given back by its user.',
  'reservation.expired': 'A hold was over, and its places are free again.',
  'order.completed': 'An order was placed. Subject: the order.',
  'ticket.generated': 'The tickets of an order are there. Subject: the order.',
  'quota.invitation': 'Tickets are set aside for a user, until expires_at. Subject: the quota.',
  'queue.turn_granted':
    'A user may buy, until expires_at. Neither the event nor checkout_url has the token that lets him.',
  'queue.expired': 'The place of a user in a waiting room, or his time to buy, is over.',
  'payment.webhook':
    'What a payment provider said of a payment. Whether it is paid, or due back, is told by later events.',
  'payment.refund_due':
    'Money was taken and nothing is given for it: pay it back. Subject: the payment; once for each.',
  'queue.position_update': 'Where a user who is not connected stands in a waiting room.',
}

export const eventTypes = Object.keys(dataSchemas) as EventType[]

/** Of the whole event: the CloudEvents 1.0 envelope in JSON, with this type's data. */
export const eventSchema = (type: EventType) =>
  ({
    $schema: 'https://json-schema.org/draft/2020-12/schema',
    title: type,
    description: purposes[type],
    type: 'object',
    required: ['specversion', 'id', 'source', 'type', 'subject', 'time', 'sequence', 'data'],
    properties: {
      specversion: { const: '1.0' },
      id: { ...uuid, description: 'of the message: the same each time it is sent' },
      source: text,
      type: { const: type },
      subject: { ...id, description: 'the id of the aggregate' },
      time,
      datacontenttype: { const: 'application/json' },
      sequence: {
        type: 'string',
        pattern: '^[1-9]\\d*$',
        description: 'counts the events of the aggregate from 1',
      },
      requestid: { ...text, description: 'X-Request-Id of the request that made it true' },
      traceparent: { ...text, description: 'W3C trace context of that request' },
      data: dataSchemas[type],
    },
  }) as const
