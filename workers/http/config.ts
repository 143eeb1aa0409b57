// The settings of the HTTP shim, and the rules between them: which go together, and what production refuses.

import { redisUrl } from '../../redis/address.ts'
import { authFaults, authSettings } from '../authSettings.ts'
import {
  commonSettings,
  type Environment,
  generatedSecret,
  int,
  readConfig,
  requiredText,
  type Setting,
  text,
  url,
  type Values,
} from '../config.ts'
import { openSearchSettings } from '../openSearchSettings.ts'

/** What Postgres's integer holds. */
const perMinuteMax = 2_147_483_647

export const httpSettings = {
  ...commonSettings,
  HTTP_HOST: requiredText({ doc: 'address the API listens on', fallback: '127.0.0.1' }),
  HTTP_PORT: int({ doc: 'port the API listens on; 0: any free one', fallback: 8080, max: 65535 }),
  REDIS_URL: text({
    doc: 'limits and the idempotency fast path; unset: Postgres does both',
    secret: true,
    parse: redisUrl,
  }),
  ...authSettings,
  RESERVATION_TTL: int({ doc: 'how long a hold lasts, s', fallback: 900, min: 1, max: 86_400 }),
  RATE_LIMIT_USER_PER_MINUTE: int({
    doc: 'writes a minute a user; 0: no limit',
    fallback: 10,
    max: perMinuteMax,
  }),
  RATE_LIMIT_GLOBAL_PER_MINUTE: int({
    doc: 'API requests a minute over all instances; 0: no limit',
    fallback: 1000,
    max: perMinuteMax,
  }),
  MAILGUN_SIGNING_KEY: text({
    doc: 'Mailgun’s webhook signing key; unset: its webhooks are not taken',
    secret: true,
  }),
  ...openSearchSettings,
  CONSOLE_PASSWORD: generatedSecret({ doc: 'what lets people into /console' }),
  WAITINGROOM_URL: url({
    doc: 'where people reach the waiting room, for links; unset: the Host of the request, WAITINGROOM_PORT',
    schemes: ['http', 'https'],
  }),
  WAITINGROOM_PORT: int({
    doc: 'port of the waiting room, for links',
    fallback: 8090,
    max: 65535,
  }),
  STRIPE_WEBHOOK_SECRET: {
    doc: 'signing secret of Stripe’s webhook endpoint; several in a comma list while one is exchanged; unset: its webhooks are not taken',
    secret: true,
    parse: signingSecrets,
  } satisfies Setting<string[]> as Setting<string[] | undefined>,
  HTTP_REQUEST_TIMEOUT: int({
    doc: 'how long a client may take to send one request, s',
    fallback: 30,
    min: 1,
    max: 600,
  }),
} as const

/** Stripe's begin with whsec_; with a short one anybody could sign. */
function signingSecrets(value: string): string[] {
  const secrets = value.split(',').map((secret) => secret.trim())
  if (secrets.every((secret) => secret.length >= 16)) return secrets
  throw new Error('must be a secret of at least 16 characters, or several in a comma list')
}

export type HttpConfig = Values<typeof httpSettings>

/** @throws ConfigError with every fault, also those between settings */
export function readHttpConfig(env: Environment): HttpConfig {
  return readConfig(httpSettings, env, authFaults)
}
