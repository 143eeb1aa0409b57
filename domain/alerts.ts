// What people are told of when something went wrong: the payload of a job in the queue `alert`, and its schema. Texts of
// vendors and of failed jobs are redacted before they come here (domain/redact.ts); no payload of a job is in it.

import { faultOf, type Schema } from './schema.ts'

/** ISO 8601. */
type Time = string

export type Alert =
  /** A vendor is away: its circuit opened, and the flag was switched off. */
  | { type: 'NotifyFlagAutoDisabled'; flag: string; circuit: string; reason: string; at: Time }
  /** The vendor is back, and so is the flag. */
  | { type: 'NotifyFlagRecovered'; flag: string; circuit: string; seconds: number; at: Time }
  /** Jobs were given up since the last time this was told of their queue. */
  | {
      type: 'NotifyDeadLetters'
      queue: string
      count: number
      /** What the youngest of them ended with. */
      error: string
      at: Time
    }

export type AlertType = Alert['type']

const word = { type: 'string', minLength: 1, maxLength: 100 } as const
const text = { type: 'string', maxLength: 2000 } as const
const time = {
  type: 'string',
  pattern: '^\\d{4}-\\d\\d-\\d\\dT\\d\\d:\\d\\d:\\d\\d(\\.\\d+)?Z$',
} as const
const count = { type: 'integer', minimum: 0 } as const

const schemaOf = (type: AlertType, properties: Readonly<Record<string, Schema>>): Schema => ({
  type: 'object',
  required: ['type', ...Object.keys(properties)],
  properties: { type: { type: 'string', const: type }, ...properties },
})

export const alertSchemas: Readonly<Record<AlertType, Schema>> = {
  NotifyFlagAutoDisabled: schemaOf('NotifyFlagAutoDisabled', {
    flag: word,
    circuit: word,
    reason: text,
    at: time,
  }),
  NotifyFlagRecovered: schemaOf('NotifyFlagRecovered', {
    flag: word,
    circuit: word,
    seconds: count,
    at: time,
  }),
  NotifyDeadLetters: schemaOf('NotifyDeadLetters', {
    queue: word,
    count: { type: 'integer', minimum: 1 },
    error: text,
    at: time,
  }),
}

/** @throws Error that says what is wrong with it and what is right; values are not in the message */
export function decodeAlert(data: unknown): Alert {
  const { type } = (data ?? {}) as { type?: unknown }
  const known = Object.keys(alertSchemas)
  if (typeof type !== 'string' || !known.includes(type)) {
    throw new Error(`type must be one of ${known.join(', ')}`)
  }
  const fault = faultOf(alertSchemas[type as AlertType], data)
  if (fault !== undefined) throw new Error(fault)
  return data as Alert
}

/** As people read it, whatever it is sent by. */
export type AlertText = {
  title: string
  facts: { label: string; value: string }[]
  /** Somebody has to do something. */
  isUrgent: boolean
}

export function describeAlert(alert: Alert): AlertText {
  const at = { label: 'At', value: alert.at }
  switch (alert.type) {
    case 'NotifyFlagAutoDisabled':
      return {
        title: `${alert.flag} was switched off: ${alert.circuit} is away`,
        facts: [
          { label: 'Why', value: alert.reason },
          at,
          { label: 'Next', value: 'it comes back by itself; see: fleet flags' },
        ],
        isUrgent: true,
      }
    case 'NotifyFlagRecovered':
      return {
        title: `${alert.flag} is on again: ${alert.circuit} was away for ${inWords(alert.seconds)}`,
        facts: [at],
        isUrgent: false,
      }
    case 'NotifyDeadLetters': {
      const jobs = alert.count === 1 ? 'a job was' : `${alert.count} jobs were`
      return {
        title: `${jobs} given up in the queue ${alert.queue}`,
        facts: [
          { label: 'Last error', value: alert.error },
          at,
          { label: 'Next', value: `jobs failed:show --queue ${alert.queue}` },
        ],
        isUrgent: true,
      }
    }
  }
}

const inWords = (seconds: number): string =>
  seconds < 120
    ? `${seconds} s`
    : seconds < 7200
      ? `${Math.round(seconds / 60)} min`
      : `${Math.round(seconds / 3600)} h`

export type Channel = 'slack' | 'email'

/**
 * Where an alert goes, of what there is. Not by the way that it says is broken, if there is another: dead letters of
 * `alert` are what Slack refused, those of `email` are mails.
 */
export function channelsFor(alert: Alert, there: readonly Channel[]): readonly Channel[] {
  if (alert.type !== 'NotifyDeadLetters') return there
  const broken = ({ alert: 'slack', email: 'email' } as Record<string, Channel>)[alert.queue]
  const others = there.filter((channel) => channel !== broken)
  return others.length > 0 ? others : there
}
