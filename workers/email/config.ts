// The settings of the email worker.

import { commonSettings, int, oneOf, requiredText, type Values } from '../config.ts'

export const emailSettings = {
  ...commonSettings,
  EMAIL_PROVIDER: oneOf({
    doc: 'who takes the mails; log: each is written as a file, and sent to nobody',
    fallback: 'log',
    values: ['log'],
  }),
  EMAIL_FROM: requiredText({
    doc: 'sender of all mails: an address, or Name <address>',
    fallback: 'Flotilla Tickets <tickets@flotilla.example>',
    parse: sender,
  }),
  EMAIL_RATE: int({
    doc: 'mails a second over all instances',
    fallback: 100,
    min: 1,
    max: 10_000,
  }),
  EMAIL_BATCH: int({ doc: 'mails taken at once', fallback: 100, min: 1, max: 1000 }),
  EMAIL_POLL_MS: int({ doc: 'how often an idle worker looks again, ms', fallback: 500, min: 10 }),
} as const

export type EmailConfig = Values<typeof emailSettings>

function sender(value: string): string {
  if (/^([^<>\r\n]+<[^\s<>@,]+@[^\s<>@,]+>|[^\s<>@,]+@[^\s<>@,]+)$/.test(value)) return value
  throw new Error('must be an address, or Name <address>')
}
