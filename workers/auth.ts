// Who is calling: a user, an internal program, or both. Mock mode believes a header and is for development; jwt mode
// verifies a bearer token of the identity provider. Nothing here decides what the caller may do (guard.ts does).

import { createPublicKey, hash, timingSafeEqual } from 'node:crypto'
import type { IncomingHttpHeaders } from 'node:http'
import { AppError } from '../domain/errors.ts'
import type { AuthConfig } from './authSettings.ts'

export type Caller = {
  /** Undefined: no user was named. */
  userId: string | undefined
  /** Knows the internal secret. */
  internal: boolean
}

export type Authenticate = {
  /**
   * @throws AppError UNAUTHENTICATED for credentials that are wrong; none at all is a caller without a user
   * @throws AppError UNAVAILABLE when the issuer's keys cannot be fetched
   */
  caller(headers: IncomingHttpHeaders): Caller | Promise<Caller>
  /** WWW-Authenticate of a 401. */
  challenge(headers: IncomingHttpHeaders): string
}

type FindUser = (headers: IncomingHttpHeaders) => string | undefined | Promise<string | undefined>

export async function openAuth(config: Omit<AuthConfig, 'TRUSTED_PROXIES'>): Promise<Authenticate> {
  const findUser = config.AUTH_MODE === 'jwt' ? await jwtUser(config) : mockUser
  const secret = digest(config.INTERNAL_AUTH_SECRET)
  return {
    caller(headers) {
      const internal = isInternal(headers, secret)
      const userId = findUser(headers)
      if (userId instanceof Promise) return userId.then((id) => ({ userId: id, internal }))
      return { userId, internal }
    },
    challenge: ({ authorization }) =>
      config.AUTH_MODE === 'mock'
        ? 'Mock realm="flotilla"'
        : `Bearer realm="flotilla"${authorization ? ', error="invalid_token"' : ''}`,
  }
}

/** Equal lengths of hashes: the compare takes the same time whatever the header says. */
const digest = (text: string) => hash('sha256', text, 'buffer')

function isInternal(headers: IncomingHttpHeaders, secret: Buffer): boolean {
  const given = headers['x-internal-auth']
  if (given === undefined) return false
  if (typeof given === 'string' && timingSafeEqual(digest(given), secret)) return true
  throw new AppError('UNAUTHENTICATED', 'X-Internal-Auth is wrong')
}

const mockUserId = /^[A-Za-z0-9_.:@-]{1,128}$/

function mockUser(headers: IncomingHttpHeaders): string | undefined {
  const id = headers['x-mock-user-id']
  if (id === undefined) return undefined
  if (typeof id === 'string' && mockUserId.test(id)) return id
  throw new AppError(
    'UNAUTHENTICATED',
    'X-Mock-User-Id must have 1 to 128 letters, digits or any of _ . : @ -',
  )
}

/** Only asymmetric: with HS256 the public key would be the secret (RFC 8725, 2.1). */
const algorithms = [
  'RS256',
  'RS384',
  'RS512',
  'PS256',
  'PS384',
  'PS512',
  'ES256',
  'ES384',
  'ES512',
  'EdDSA',
  'Ed25519',
]
const clockToleranceSeconds = 5
const jwksTimeoutMs = 3000
/** OpenID Connect Core 2: a sub has 255 ASCII characters at most. */
const subject = /^[\x21-\x7e]{1,255}$/

/** jose is loaded only where tokens are verified: it costs 15 MB. */
async function jwtUser(config: Parameters<typeof openAuth>[0]): Promise<FindUser> {
  const { createRemoteJWKSet, errors, jwtVerify } = await import('jose')
  const keys = config.JWT_JWKS_URL
    ? createRemoteJWKSet(new URL(config.JWT_JWKS_URL), { timeoutDuration: jwksTimeoutMs })
    : createPublicKey(config.JWT_PUBLIC_KEY!)
  const options = {
    algorithms,
    audience: config.JWT_AUDIENCE!,
    issuer: config.JWT_ISSUER!,
    clockTolerance: clockToleranceSeconds,
    requiredClaims: ['exp', 'sub'],
  }
  const verify = (token: string) =>
    typeof keys === 'function' ? jwtVerify(token, keys, options) : jwtVerify(token, keys, options)
  /** What went wrong at the issuer's says nothing of the token. */
  const isIssuers = (error: unknown) =>
    typeof keys === 'function' &&
    (!(error instanceof errors.JOSEError) ||
      error instanceof errors.JWKSTimeout ||
      error instanceof errors.JWKSInvalid ||
      error.code === 'ERR_JOSE_GENERIC')

  return async ({ authorization }) => {
    if (authorization === undefined) return undefined
    const token = /^Bearer +([\w.~+/-]+=*) *$/i.exec(authorization)?.[1]
    if (token === undefined) {
      throw new AppError('UNAUTHENTICATED', 'Authorization must be: Bearer <token>')
    }
    try {
      const { payload } = await verify(token)
      if (subject.test(payload.sub ?? '')) return payload.sub
    } catch (cause) {
      if (isIssuers(cause)) {
        const text = 'the keys of the token’s issuer cannot be fetched'
        throw new AppError('UNAVAILABLE', text, { retryAfterMs: 2000 }, { cause })
      }
      const text = `the bearer token is refused: ${(cause as Error).message}`
      throw new AppError('UNAUTHENTICATED', text, {}, { cause })
    }
    throw new AppError('UNAUTHENTICATED', 'sub must have 1 to 255 printable ASCII characters')
  }
}
