// The catalogue of domain events: each type with its data, and the CloudEvents 1.0 envelope they travel in.
// Written to the outbox in the transaction that makes them true; a consumer sees them at least once, in order of
// `sequence` for one subject.

export type Money = { amount_minor: number; currency: string }

export type ReservationData = {
  reservation_id: string
  event_id: string
  user_id: string
  section: string
  quantity: number
  seats?: string[]
}

export type TicketData = { ticket_id: string; seat?: string; code: string }

export type OrderData = {
  order_id: string
  reservation_id: string
  event_id: string
  event_name: string
  starts_at: string
  user_id: string
  section: string
  quantity: number
  seats?: string[]
  total: Money
}

export type QuotaData = {
  quota_id: string
  event_id: string
  event_name: string
  starts_at: string
  user_id: string
  quantity: number
  /** Left out: until the event. */
  expires_at?: string
}

export const paymentOutcomes = ['paid', 'failed'] as const

/** What a provider said of a payment, as far as it matters to us. */
export type PaymentData = {
  provider: 'stripe'
  payment_id: string
  outcome: (typeof paymentOutcomes)[number]
  /** As the payment's metadata has it: whether there is one is found out later. */
  reservation_id: string
  /** Of what was paid. */
  total?: Money
}

export const refundReasons = [
  'unknown_reservation',
  'wrong_amount',
  'paid_already',
  'cancelled',
  'places_gone',
] as const
export type RefundReason = (typeof refundReasons)[number]

export type RefundData = {
  provider: 'stripe'
  payment_id: string
  reservation_id: string
  total: Money
  reason: RefundReason
}

export type QueueData = { match_id: string; user_id: string }

export type EventData = {
  'reservation.held': ReservationData & { expires_at: string }
  'reservation.confirmed': ReservationData & { order_id: string }
  'reservation.cancelled': ReservationData
  'reservation.expired': ReservationData
  /** Subject: the order. */
  'order.completed': OrderData
  /** All tickets of one order. Subject: the order. */
  'ticket.generated': OrderData & { tickets: TicketData[] }
  /** Subject: the quota. */
  'quota.invitation': QuotaData
  /**
   * Subject: the place, `<match>:<seat>`, as for queue.expired. The token that opens the purchase window is not in it: an
   * event goes to whoever subscribes.
   */
  'queue.turn_granted': QueueData & { expires_at: string; checkout_url?: string }
  'queue.expired': QueueData & { reason: string }
  /** Of somebody near the front who is not connected. Subject: `<match>:<seat>:position`. */
  'queue.position_update': QueueData & { position: number; estimated_wait_minutes: number }
  /** Subject: the provider's id of its event. */
  'payment.webhook': PaymentData & { webhook_id: string; webhook_type: string }
  /** Money was taken, and nothing is given for it: it is to be paid back, once. Subject: the payment. */
  'payment.refund_due': RefundData
}

export type EventType = keyof EventData

/** An event on its way into the outbox. */
export type NewEvent = {
  [T in EventType]: {
    messageId: string
    type: T
    /** The aggregate's id. */
    subject: string
    /** Counts the aggregate's events from 1. */
    sequence: number
    data: EventData[T]
    requestId?: string | undefined
    traceparent?: string | undefined
  }
}[EventType]

/** https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/spec.md; sequence, requestid and traceparent are extensions. */
export type CloudEvent<T extends EventType = EventType> = {
  specversion: '1.0'
  id: string
  source: '/flotilla'
  type: T
  subject: string
  time: string
  datacontenttype: 'application/json'
  sequence: string
  requestid?: string
  /** W3C trace context of the command that made it true. */
  traceparent?: string
  data: EventData[T]
}

/** An event as the outbox holds it, without its data. */
export type EventHead = {
  messageId: string
  type: string
  subject: string
  sequence: number
  requestId: string | null
  traceparent: string | null
  /** ms since 1970 */
  createdMs: number
}

/** The envelope, to which `data` is added. */
export const envelopeOf = (head: EventHead) => ({
  specversion: '1.0' as const,
  id: head.messageId,
  source: '/flotilla' as const,
  type: head.type,
  subject: head.subject,
  time: new Date(head.createdMs).toISOString(),
  datacontenttype: 'application/json' as const,
  sequence: String(head.sequence),
  ...(head.requestId === null ? {} : { requestid: head.requestId }),
  ...(head.traceparent === null ? {} : { traceparent: head.traceparent }),
})
