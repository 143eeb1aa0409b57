// What a mail is asked for with: the payload of a job in the queue `email` (SPEC 9), each template with the values it
// needs. No I/O, no rendering.

import type { Money } from './events.ts'

type OrderValues = {
  order_id: string
  event_name: string
  /** ISO 8601. */
  starts_at: string
  section: string
  quantity: number
  seats?: string[]
  total: Money
}

export type EmailTemplates = {
  order_confirmation: OrderValues
  ticket_delivery: OrderValues & { tickets: { ticket_id: string; seat?: string; code: string }[] }
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
    created_at: string
    /** Attempts spent before this job was made; the job table counts its own. */
    attempts: number
    max_attempts: 3
    request_id?: string
    traceparent?: string
  }
}[EmailTemplate]

export const emailTemplates: readonly EmailTemplate[] = ['order_confirmation', 'ticket_delivery']

/** One address as it may stand in a header: no spaces, no line ends, no second one. */
const address = /^[^\s@<>(),;:"\\[\]]{1,64}@[^\s@<>(),;:"\\[\]]{1,255}$/

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
  if (typeof job.recipient !== 'string' || !address.test(job.recipient)) {
    throw new Error('recipient must be one e-mail address')
  }
  const values = record(job.payload, 'payload')
  for (const name of ['order_id', 'event_name', 'starts_at', 'section']) {
    if (typeof values[name] !== 'string') throw new Error(`payload.${name} must be a text`)
  }
  if (!Number.isInteger(values.quantity)) throw new Error('payload.quantity must be a number')
  if (Number.isNaN(Date.parse(values.starts_at as string))) {
    throw new Error('payload.starts_at must be a time')
  }
  const total = record(values.total, 'payload.total')
  if (!Number.isSafeInteger(total.amount_minor) || !/^[A-Z]{3}$/.test(String(total.currency))) {
    throw new Error('payload.total must be {amount_minor, currency}')
  }
  if (job.template === 'ticket_delivery' && !Array.isArray(values.tickets)) {
    throw new Error('payload.tickets must be a list')
  }
  return data as EmailJob
}

function record(value: unknown, name: string): Record<string, unknown> {
  if (typeof value === 'object' && value !== null && !Array.isArray(value)) {
    return value as Record<string, unknown>
  }
  throw new Error(`${name} must be an object`)
}
