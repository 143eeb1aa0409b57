// Who is signed in: a session is a cookie signed with a key made from the console's password, so that any instance knows
// it and a new password ends them all. Nothing is kept of it but, when somebody signs out, that it is over. Each form
// carries a token made from its session.

import { createHmac, hash, randomBytes, scrypt, timingSafeEqual } from 'node:crypto'
import { promisify } from 'node:util'

export const cookieName = 'flotilla_console'
/** A working day; then one signs in again. */
export const sessionSeconds = 8 * 3600

export type Session = { id: string; expiresAtMs: number; csrf: string }

export type Sessions = {
  isPassword(given: string): boolean
  /** A new one, and what its cookie says. */
  begin(): { session: Session; token: string }
  /** From a Cookie header. Undefined: there is none, or it is forged or over. */
  find(cookies: string | undefined): Session | undefined
}

/** Equal lengths of hashes: the compare takes the same time whatever is given. */
const digest = (text: string) => hash('sha256', text, 'buffer')

export const isSame = (given: string, right: string): boolean =>
  timingSafeEqual(digest(given), digest(right))

/** Slow on purpose (about 50 ms, 16 MB), once a process: a stolen cookie is no quick way to try passwords. */
const slowHash = promisify<string, string, number, Buffer>(scrypt)

export async function openSessions(
  password: string,
  now: () => number = Date.now,
): Promise<Sessions> {
  const key = await slowHash(password, 'flotilla console', 32)
  const sign = (text: string) => createHmac('sha256', key).update(text).digest('base64url')
  const toSession = (id: string, expiresAtMs: number): Session => ({
    id,
    expiresAtMs,
    csrf: sign(`form ${id}`),
  })
  return {
    isPassword: (given) => isSame(given, password),
    begin() {
      const id = randomBytes(18).toString('base64url')
      const expiresAtMs = now() + sessionSeconds * 1000
      const text = `${id}.${expiresAtMs}`
      return { session: toSession(id, expiresAtMs), token: `${text}.${sign(`session ${text}`)}` }
    },
    find(cookies) {
      const token = cookieOf(cookies)
      const [id = '', expires = '', signature = '', ...more] = token?.split('.') ?? []
      if (more.length > 0 || !/^\d{1,16}$/.test(expires)) return undefined
      if (!isSame(signature, sign(`session ${id}.${expires}`))) return undefined
      return Number(expires) > now() ? toSession(id, Number(expires)) : undefined
    },
  }
}

function cookieOf(header: string | undefined): string | undefined {
  for (const part of header?.split(';') ?? []) {
    const [name, ...value] = part.trim().split('=')
    if (name === cookieName) return value.join('=')
  }
  return undefined
}

/** `token` undefined: the browser forgets it. */
export const setCookie = (token: string | undefined, secure: boolean): string =>
  [
    `${cookieName}=${token ?? ''}`,
    'Path=/console',
    'HttpOnly',
    'SameSite=Strict',
    `Max-Age=${token === undefined ? 0 : sessionSeconds}`,
    ...(secure ? ['Secure'] : []),
  ].join('; ')
