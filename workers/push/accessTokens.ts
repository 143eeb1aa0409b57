// Access tokens for FCM (RFC 7523 with Google's scope): a JWT signed with the service account's key is exchanged at its
// token_uri. A token is kept until shortly before its end, asked for once however many wait, and renewed while the old
// one still serves. What Google says against the account is told; the token and the key are not.

import { sign } from 'node:crypto'
import { request as requestHttp } from 'node:http'
import { request as requestHttps } from 'node:https'
import type { Credentials } from './credentials.ts'

export type AccessTokens = {
  /** @throws TokenRefused when there is none to be had */
  get(): Promise<string>
  /** The other side does not take it. */
  drop(token: string): void
}

/** No token: why, in words for people. */
export class TokenRefused extends Error {}

const scope = 'https://www.googleapis.com/auth/firebase.messaging'
const grantType = 'urn:ietf:params:oauth:grant-type:jwt-bearer'
const lifeSeconds = 3600
/** Renewed so long before its end; and not used for so long before it. */
const renewMs = 300_000
const lastMs = 10_000
const answerMs = 10_000
/** After a failure nobody asks for so long: a thousand pushes that wait are one question. */
const restMs = 2000

type Token = { value: string; endsAt: number; renewAt: number }

export function createAccessTokens(
  credentials: Credentials,
  now: () => number = Date.now,
): AccessTokens {
  let token: Token | undefined
  let asking: Promise<Token> | undefined
  let refused: { error: TokenRefused; until: number } | undefined

  function ask(): Promise<Token> {
    asking ??= exchange(credentials, now)
      .then((made) => {
        token = made
        refused = undefined
        return made
      })
      .catch((error: Error) => {
        const told = new TokenRefused(
          `no access token from ${credentials.tokenUri}: ${error.message}`,
        )
        refused = { error: told, until: now() + restMs }
        throw told
      })
      .finally(() => {
        asking = undefined
      })
    return asking
  }

  return {
    async get() {
      const rests = refused !== undefined && now() < refused.until
      if (token !== undefined && now() < token.endsAt) {
        if (now() > token.renewAt && !rests) ask().catch(() => {})
        return token.value
      }
      if (rests) throw refused?.error
      return (await ask()).value
    },
    drop(value) {
      if (token?.value === value) token = undefined
    },
  }
}

async function exchange(credentials: Credentials, now: () => number): Promise<Token> {
  const assertion = signJwt(credentials, Math.floor(now() / 1000))
  const body = new URLSearchParams({ grant_type: grantType, assertion }).toString()
  const { status, text } = await post(credentials.tokenUri, body)
  const answer = parse(text)
  if (status !== 200) {
    const said = [answer.error, answer.error_description].filter((one) => typeof one === 'string')
    throw new Error(`${status} ${said.join(': ') || 'without a reason'}`.slice(0, 500))
  }
  const { access_token: value, expires_in: seconds } = answer
  if (typeof value !== 'string' || !/^[\x21-\x7e]+$/.test(value)) {
    throw new Error('the answer has no access_token')
  }
  const lifeMs = Math.max(1, Number(seconds) || lifeSeconds) * 1000
  const endsAt = now() + Math.max(lifeMs - lastMs, lifeMs / 2)
  return { value, endsAt, renewAt: now() + Math.max(lifeMs - renewMs, lifeMs / 2) }
}

/** RS256, RFC 7515 and 7519. */
export function signJwt(credentials: Credentials, issuedAt: number): string {
  const { clientEmail: iss, privateKey, privateKeyId: kid, tokenUri: aud } = credentials
  const part = (value: object) => Buffer.from(JSON.stringify(value)).toString('base64url')
  const head = part({ alg: 'RS256', typ: 'JWT', ...(kid && { kid }) })
  const claims = part({ iss, scope, aud, iat: issuedAt, exp: issuedAt + lifeSeconds })
  const signature = sign('sha256', Buffer.from(`${head}.${claims}`), privateKey)
  return `${head}.${claims}.${signature.toString('base64url')}`
}

/** Not fetch: it brings 8 MB for a request an hour. */
function post(url: string, body: string): Promise<{ status: number; text: string }> {
  const request = url.startsWith('https:') ? requestHttps : requestHttp
  return new Promise((resolve, reject) => {
    const headers = {
      'content-type': 'application/x-www-form-urlencoded',
      'content-length': Buffer.byteLength(body),
    }
    const asked = request(url, { method: 'POST', headers, agent: false }, (answer) => {
      const parts: Buffer[] = []
      answer.on('data', (part: Buffer) => parts.push(part))
      answer.on('error', reject)
      answer.on('end', () => {
        clearTimeout(late)
        resolve({ status: answer.statusCode ?? 0, text: Buffer.concat(parts).toString('utf8') })
      })
    })
    const late = setTimeout(
      () => asked.destroy(new Error(`no answer within ${answerMs / 1000} s`)),
      answerMs,
    )
    asked.on('error', (error: NodeJS.ErrnoException) => {
      clearTimeout(late)
      // Several addresses of one name: the message is in the parts.
      reject(error.message ? error : new Error(error.code ?? 'it cannot be reached'))
    })
    asked.end(body)
  })
}

function parse(text: string): Record<string, unknown> {
  try {
    const value: unknown = JSON.parse(text)
    if (typeof value === 'object' && value !== null) return value as Record<string, unknown>
  } catch {}
  return {}
}
