// The settings of the email worker, and what each provider that is named needs of them.

import { redisUrl } from '../../redis/address.ts'
import {
  commonSettings,
  type Environment,
  int,
  oneOf,
  readConfig,
  requiredText,
  type Setting,
  text,
  url,
  type Values,
} from '../config.ts'
import { parseSmtpUrl, type SmtpServer } from './smtpUrl.ts'

const providerNames = ['log', 'smtp', 'mailgun'] as const
export type ProviderName = (typeof providerNames)[number]

export const emailSettings = {
  ...commonSettings,
  REDIS_URL: text({
    doc: 'counts the rate over all instances; unset: Postgres does',
    secret: true,
    parse: redisUrl,
  }),
  EMAIL_PROVIDER: {
    doc: 'who takes the mails: log (files, sent to nobody), smtp, mailgun; of a comma list the first that is there',
    fallback: 'log',
    parse: providers,
  } as Setting<ProviderName[]>,
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
  EMAIL_TIMEOUT: int({
    doc: 'how long a provider may take to answer, s; a mail server thrice that for the text',
    fallback: 20,
    min: 1,
    max: 30,
  }),
  EMAIL_ABSENT_AFTER: int({
    doc: 'a mail of unknown outcome that the provider’s events do not show for so long is sent again, s',
    fallback: 300,
    min: 0,
    max: 86_400,
  }),
  EMAIL_UNASKABLE: oneOf({
    doc: 'a mail of unknown outcome at a mail server: give-up (dead letter, a person decides) or resend (may come twice)',
    fallback: 'give-up',
    values: ['give-up', 'resend'],
  }),
  EMAIL_DRY_RUN: oneOf({
    doc: 'on: mailgun is told to accept and deliver to nobody, what smtp would send is written as files',
    fallback: 'off',
    values: ['off', 'on'],
  }),
  SMTP_URL: {
    doc: 'the mail server: smtp://user:password@host:587, or smtps:// for TLS from the start',
    secret: true,
    parse: parseSmtpUrl,
  } as Setting<SmtpServer | undefined>,
  MAILGUN_URL: url({
    doc: 'Mailgun’s API; of the EU: https://api.eu.mailgun.net',
    fallback: 'https://api.mailgun.net',
    schemes: ['https', 'http'],
  }),
  MAILGUN_DOMAIN: text({
    doc: 'the domain mails are sent from, as Mailgun knows it',
    parse: (value) => {
      if (/^[a-z0-9-]+(\.[a-z0-9-]+)+$/i.test(value)) return value
      throw new Error('must be a domain such as mg.example.com')
    },
  }),
  MAILGUN_API_KEY: text({ doc: 'a key for Mailgun’s API', secret: true }),
} as const

export type EmailConfig = Values<typeof emailSettings>

/** @throws ConfigError with every fault, also what a named provider lacks */
export function readEmailConfig(env: Environment): EmailConfig {
  return readConfig(emailSettings, env, providerFaults)
}

function providerFaults(config: EmailConfig): string[] {
  const named = (name: ProviderName) => config.EMAIL_PROVIDER.includes(name)
  const faults: string[] = []
  const lacks = (name: keyof EmailConfig, provider: ProviderName) => {
    if (named(provider) && config[name] === undefined) {
      faults.push(`${name} is not set, and EMAIL_PROVIDER names ${provider}`)
    }
  }
  lacks('SMTP_URL', 'smtp')
  lacks('MAILGUN_DOMAIN', 'mailgun')
  lacks('MAILGUN_API_KEY', 'mailgun')
  const isPlain = config.MAILGUN_URL?.startsWith('http:') === true
  if (named('mailgun') && isPlain && config.NODE_ENV === 'production') {
    faults.push('MAILGUN_URL must begin with https:// when NODE_ENV is production')
  }
  return faults
}

function providers(value: string): ProviderName[] {
  const names = value.split(',').map((name) => name.trim())
  const right = `must be one of ${providerNames.join(', ')}, or several in their order`
  const found = names.map((name) => providerNames.find((one) => one === name))
  if (found.includes(undefined) || new Set(found).size < found.length) throw new Error(right)
  return found as ProviderName[]
}

function sender(value: string): string {
  if (/^([^<>\r\n]+<[^\s<>@,]+@[^\s<>@,]+>|[^\s<>@,]+@[^\s<>@,]+)$/.test(value)) return value
  throw new Error('must be an address, or Name <address>')
}
