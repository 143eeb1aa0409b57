// The settings of who a caller is, and the rules between them: for every worker that people call. workers/auth.ts goes
// by them.

import { isIP } from 'node:net'
import {
  type commonSettings,
  generatedSecret,
  oneOf,
  type Setting,
  text,
  url,
  type Values,
} from './config.ts'

export const authSettings = {
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
} as const

export type AuthConfig = Values<typeof authSettings>

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

type Given = Values<Pick<typeof commonSettings, 'NODE_ENV'> & typeof authSettings>

/** What is wrong between the settings, each in one line. */
export function authFaults(config: Given): string[] {
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
  return faults
}
