// What a mail is asked for with: the payload of a job in the queue `email` (SPEC 9), each template with the values it
// needs; and addresses that get none. No I/O, no rendering.

import type { Money } from './events.ts'

/** What is sold, and when: every template that goes to a buyer has it. */
type EventValues = {
  event_name: string
  /** ISO 8601. */
  starts_at: string
  /** IANA name of the zone the reader is told the time in, that of the place; left out: UTC. */
  time_zone?: string
}

type OrderValues = EventValues & {
  order_id: string
  section: string
  quantity: number
  seats?: string[]
  total: Money
}

export type EmailTemplates = {
  order_confirmation: OrderValues
  ticket_delivery: OrderValues & { tickets: { ticket_id: string; seat?: string; code: string }[] }
  quota_invitation: EventValues & {
    quota_id: string
    quantity: number
    /** ISO 8601; left out: until the event. */
    expires_at?: string
  }
  /** To those who run the fleet; of no event. */
  alert: { title: string; facts: { label: string; value: string }[] }
}

export type EmailTemplate = keyof EmailTemplates

export type EmailJob = {
  [T in EmailTemplate]: {
    job_id: string
    type: 'email'
    template: T
    /** One address. */
    recipient: string
    /** The values of the template, and the reader's language. */
    payload: EmailTemplates[T] & { locale?: string }
    /** The Date of the mail, in all its attempts; left out: when its job was made. */
    created_at?: string
    /** Attempts spent before this job was made; the job table counts its own. */
    attempts: number
    max_attempts: 3
    request_id?: string
    traceparent?: string
  }
}[EmailTemplate]

export const emailTemplates: readonly EmailTemplate[] = [
  'order_confirmation',
  'ticket_delivery',
  'quota_invitation',
  'alert',
]

/** Characters of one value, and entries of one list: what is longer is no name and no order. */
export const emailLimits = { text: 1000, list: 2000 } as const

/** One address as it may stand in a header: no spaces, no line ends, no second one. */
const address = /^[^\s@<>(),;:"\\[\]\p{Cc}]{1,64}@[^\s@<>(),;:"\\[\]\p{Cc}]{1,255}$/u

export const isAddress = (text: string): boolean => address.test(text)

/**
 * One text for all ways to write an address: composed, in lower case. The part before the @ may tell upper from lower
 * case (RFC 5321 2.4), and no mailbox in use does.
 */
export const normalAddress = (text: string): string => text.trim().normalize('NFC').toLowerCase()

export const suppressionReasons = ['bounce', 'complaint', 'unsubscribe', 'manual'] as const

/** An address that gets no mail, and who said so. */
export type Suppression = {
  address: string
  reason: (typeof suppressionReasons)[number]
  source: string
}

/**
 * Checks what a job brought. @throws Error that says what is wrong with it; values are not in the message
 */
export function decodeEmailJob(data: unknown): EmailJob {
  const job = record(data, 'an e-mail job')
  if (job.type !== 'email') throw new Error('type must be "email"')
  if (!emailTemplates.some((name) => name === job.template)) {
    throw new Error(`template must be one of ${emailTemplates.join(', ')}`)
  }
  if (typeof job.job_id !== 'string' || !/^[\w-]{1,64}$/.test(job.job_id)) {
    throw new Error('job_id must be an id of letters, digits, - and _')
  }
  if (typeof job.recipient !== 'string' || !isAddress(job.recipient)) {
    throw new Error('recipient must be one e-mail address')
  }
  if (job.created_at !== undefined) time(job, 'created_at', 'created_at')
  const values = record(job.payload, 'payload')
  if (values.locale !== undefined) text(values, 'locale')
  if (job.template === 'alert') {
    checkAlert(values)
    return data as EmailJob
  }
  text(values, 'event_name')
  time(values, 'starts_at')
  if (values.time_zone !== undefined && !isTimeZone(values.time_zone)) {
    throw new Error('payload.time_zone must be a time zone such as Europe/Zagreb')
  }
  if (!Number.isSafeInteger(values.quantity)) throw new Error('payload.quantity must be a number')
  if (job.template === 'quota_invitation') {
    text(values, 'quota_id')
    if (values.expires_at !== undefined) time(values, 'expires_at')
  } else checkOrder(values, job.template === 'ticket_delivery')
  return data as EmailJob
}

function checkAlert(values: Record<string, unknown>): void {
  text(values, 'title')
  for (const one of list(values, 'facts')) {
    const fact = record(one, 'payload.facts[]')
    text(fact, 'label', 'payload.facts[].label')
    text(fact, 'value', 'payload.facts[].value')
  }
}

function checkOrder(values: Record<string, unknown>, hasTickets: boolean): void {
  for (const name of ['order_id', 'section']) text(values, name)
  if (values.seats !== undefined) {
    for (const seat of list(values, 'seats')) text({ seat }, 'seat', 'payload.seats[]')
  }
  const total = record(values.total, 'payload.total')
  if (!Number.isSafeInteger(total.amount_minor) || !/^[A-Z]{3}$/.test(String(total.currency))) {
    throw new Error('payload.total must be {amount_minor, currency}')
  }
  if (!hasTickets) return
  for (const one of list(values, 'tickets')) {
    const ticket = record(one, 'payload.tickets[]')
    text(ticket, 'code', 'payload.tickets[].code')
    if (ticket.seat !== undefined) text(ticket, 'seat', 'payload.tickets[].seat')
  }
}

function record(value: unknown, name: string): Record<string, unknown> {
  if (typeof value === 'object' && value !== null && !Array.isArray(value)) {
    return value as Record<string, unknown>
  }
  throw new Error(`${name} must be an object`)
}

function text(values: Record<string, unknown>, name: string, path = `payload.${name}`): void {
  const value = values[name]
  if (typeof value !== 'string') throw new Error(`${path} must be a text`)
  if (value.length > emailLimits.text) {
    throw new Error(`${path} must have at most ${emailLimits.text} characters`)
  }
}

function list(values: Record<string, unknown>, name: string): unknown[] {
  const value = values[name]
  if (!Array.isArray(value)) throw new Error(`payload.${name} must be a list`)
  if (value.length <= emailLimits.list) return value
  throw new Error(`payload.${name} must have at most ${emailLimits.list} entries`)
}

function time(values: Record<string, unknown>, name: string, path = `payload.${name}`): void {
  const value = values[name]
  if (typeof value !== 'string' || value.length > 64 || Number.isNaN(Date.parse(value))) {
    throw new Error(`${path} must be a time`)
  }
}

/** Known to this Node's ICU. */
function isTimeZone(value: unknown): boolean {
  try {
    new Intl.DateTimeFormat('en', { timeZone: String(value) })
    return typeof value === 'string'
  } catch {
    return false
  }
}
