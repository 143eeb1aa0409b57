// What Mailgun's answers mean, by status and by body: the same refusal comes as 429 in its documents, as 420 from its
// servers, and as 400, 402 or 403 with the same words (mailgun/mailgun-java#50 and others). After a 5xx the mail may be
// there, and after a 200 that names no mail.

import type { SendOutcome } from './provider.ts'

/** A refusal that time mends, whatever its status. */
const limitWords =
  /limit exceeded|try again after|sending too fast|too many requests|rate.?limit|on probation|temporarily disabled/i
/** The account or the domain may not send. A sandbox refuses addresses, not senders. */
const accountWords = /not allowed to send|unverified|activate your|disabled|suspended/i
const sandboxWords = /sandbox|authorized recipient/i
/** "…, try again after Mon, 20 Dec 2021 20:33:21 UTC" */
const until =
  /try again after\s+([A-Z][a-z]{2}, \d{1,2} [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d)\s*(?:UTC|GMT|\+0000)?/
const whyMax = 300
/** Whoever is asked to wait longer asks again after it. */
const afterMaxMs = 24 * 3_600_000

export function answerOf(status: number, headers: Headers, body: string): SendOutcome {
  const said = messageOf(body)
  const why = `Mailgun answered ${status}: ${said || 'nothing'}`.slice(0, whyMax)
  if (status >= 200 && status < 300) return hasId(body) ? { is: 'sent' } : { is: 'unknown', why }
  if (status >= 500) return { is: 'unknown', why }
  const isLimit = status === 429 || status === 420 || limitWords.test(said)
  if (isLimit) return { is: 'retry', limits: true, afterMs: waitOf(headers, body), why }
  // It gave up reading what we sent.
  if (status === 408 || status === 425) return { is: 'retry', afterMs: 0, why }
  if (status < 400) return { is: 'down', why: `${why} (is MAILGUN_URL right?)` }
  if (status === 401) return { is: 'down', why: `${why} (is MAILGUN_API_KEY right?)` }
  if (status === 404) return { is: 'down', why: `${why} (is MAILGUN_DOMAIN in this region?)` }
  if (sandboxWords.test(said)) return { is: 'rejected', why }
  if (status === 402 || status === 403 || accountWords.test(said)) return { is: 'down', why }
  return { is: 'rejected', why }
}

/** What took the mail says as what. A proxy or a page of a wrong host says 200 as well, and took nothing. */
function hasId(body: string): boolean {
  try {
    return typeof (JSON.parse(body) as { id?: unknown } | null)?.id === 'string'
  } catch {
    return false
  }
}

/** JSON with a message, or plain text. */
function messageOf(body: string): string {
  try {
    const { message } = JSON.parse(body) as { message?: unknown }
    if (typeof message === 'string') return message
  } catch {}
  return body.slice(0, whyMax)
}

/** What it asks for, ms: the date in the words, X-RateLimit-Reset in s of the epoch, Retry-After, retry-seconds. 0: nothing. */
function waitOf(headers: Headers, body: string): number {
  const now = Date.now()
  const date = until.exec(messageOf(body))?.[1]
  const after = headers.get('retry-after')
  const seconds = /"retry-seconds"\s*:\s*(\d+)/.exec(body)?.[1] ?? after
  const asked = [
    date === undefined ? Number.NaN : Date.parse(`${date} UTC`) - now,
    Number(headers.get('x-ratelimit-reset') ?? Number.NaN) * 1000 - now,
    Number(seconds ?? Number.NaN) * 1000,
    after === null ? Number.NaN : Date.parse(after) - now,
  ]
  return Math.min(afterMaxMs, Math.max(0, ...asked.filter((ms) => !Number.isNaN(ms))))
}

/** Before a byte of the request had left. */
const unsentCodes =
  /^(ECONNREFUSED|ENOTFOUND|EAI_\w+|EHOSTUNREACH|ENETUNREACH|EADDRNOTAVAIL|UND_ERR_CONNECT_TIMEOUT|CERT_\w+|ERR_TLS_\w+|ERR_SSL_\w+|SELF_SIGNED\w+|DEPTH_ZERO\w+|UNABLE_TO_\w+|HOSTNAME_MISMATCH)$/

/** What a failed fetch means. */
export function faultOf(error: unknown): { is: 'down' | 'unknown'; why: string } {
  const { name, message, cause } = error as Error & { cause?: NodeJS.ErrnoException }
  if (name === 'TimeoutError') return { is: 'unknown', why: 'Mailgun did not answer in time' }
  if (name === 'AbortError') return { is: 'unknown', why: 'the worker could not wait for Mailgun' }
  // A host with several addresses fails with an error for each.
  const parts = (cause as AggregateError | undefined)?.errors ?? [cause]
  const codes = parts.map((one) => String((one as NodeJS.ErrnoException | undefined)?.code))
  const why = `Mailgun cannot be reached: ${codes.join(', ')} ${cause?.message || message}`.trim()
  return { is: codes.every((code) => unsentCodes.test(code)) ? 'down' : 'unknown', why }
}
