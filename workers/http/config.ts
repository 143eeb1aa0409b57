// The settings of the HTTP shim, and the rules between them: which go together, and what production refuses.

import { isIP } from 'node:net'
import { parseRedisUrl } from '../../redis/address.ts'
import {
  ConfigError,
  commonSettings,
  type Environment,
  generatedSecret,
  int,
  oneOf,
  readConfig,
  requiredText,
  type Setting,
  text,
  url,
  type Values,
} from '../config.ts'

/** What Postgres's integer holds. */
const perMinuteMax = 2_147_483_647

export const httpSettings = {
  ...commonSettings,
  HTTP_HOST: requiredText({ doc: 'address the API listens on', fallback: '127.0.0.1' }),
  HTTP_PORT: int({ doc: 'port the API listens on; 0: any free one', fallback: 8080, max: 65535 }),
  REDIS_URL: {
    doc: 'limits and the idempotency fast path; unset: Postgres does both',
    secret: true,
    parse: (value: string) => {
      parseRedisUrl(value)
      return value
    },
  } satisfies Setting<string> as Setting<string | undefined>,
  AUTH_MODE: oneOf({
    doc: 'mock: X-Mock-User-Id is believed (never in production); jwt: a bearer token is verified',
    fallback: 'mock',
    values: ['mock', 'jwt'],
  }),
  JWT_JWKS_URL: url({ doc: 'where the public keys of the issuer are', schemes: ['https', 'http'] }),
  JWT_PUBLIC_KEY: text({
    doc: 'the public key of the issuer as PEM, instead of JWT_JWKS_URL',
    secret: true,
    parse: publicKey,
  }),
  JWT_AUDIENCE: text({ doc: 'the aud a token must have' }),
  JWT_ISSUER: text({ doc: 'the iss a token must have' }),
  INTERNAL_AUTH_SECRET: generatedSecret({
    doc: 'what X-Internal-Auth must say on internal routes',
  }),
  TRUSTED_PROXIES: {
    doc: 'comma list of addresses or CIDR ranges whose X-Forwarded-For is believed; unset: none',
    parse: addresses,
  } as Setting<string[] | undefined>,
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
  HTTP_REQUEST_TIMEOUT: int({
    doc: 'how long a client may take to send one request, s',
    fallback: 30,
    min: 1,
    max: 600,
  }),
} as const

export type HttpConfig = Values<typeof httpSettings>

/** A PEM on one line has `\n` for its line ends, as environment files often do. */
function publicKey(value: string): string {
  const pem = value.replaceAll('\\n', '\n').trim()
  if (/^-----BEGIN (RSA )?PUBLIC KEY-----\n[^-]+-----END (RSA )?PUBLIC KEY-----$/.test(pem))
    return pem
  throw new Error('must be a public key in PEM form, beginning with -----BEGIN PUBLIC KEY-----')
}

/** Each an address, or a range as address/bits. */
function addresses(value: string): string[] {
  const parts = value.split(',').map((part) => part.trim())
  for (const part of parts) {
    const [address = '', bits = '0'] = part.split('/')
    const most = isIP(address) === 4 ? 32 : 128
    if (isIP(address) === 0 || !/^\d{1,3}$/.test(bits) || Number(bits) > most) {
      throw new Error(`must be a list of addresses or ranges such as 10.0.0.0/8: ${part} is none`)
    }
  }
  return parts
}

/** @throws ConfigError with every fault, also those between settings */
export function readHttpConfig(env: Environment): HttpConfig {
  const config = readConfig(httpSettings, env)
  const faults: string[] = []
  if (config.AUTH_MODE === 'mock' && config.NODE_ENV === 'production') {
    faults.push('AUTH_MODE mock is refused when NODE_ENV is production: set jwt')
  }
  if (config.AUTH_MODE === 'jwt') {
    if (!config.JWT_AUDIENCE) faults.push('JWT_AUDIENCE is not set, and AUTH_MODE is jwt')
    if (!config.JWT_ISSUER) faults.push('JWT_ISSUER is not set, and AUTH_MODE is jwt')
    if (!config.JWT_JWKS_URL === !config.JWT_PUBLIC_KEY) {
      faults.push(
        'exactly one of JWT_JWKS_URL and JWT_PUBLIC_KEY must be set when AUTH_MODE is jwt',
      )
    }
  }
  if (faults.length > 0) throw new ConfigError(faults)
  return config
}
