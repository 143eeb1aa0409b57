// A Slack incoming webhook: one message, and what its answer means. The URL is a secret, and in no error. Slack takes one
// message a second, with a little patience, and may switch off whoever goes on after a 429.
// https://docs.slack.dev/messaging/sending-messages-using-incoming-webhooks, https://docs.slack.dev/apis/web-api/rate-limits

import type { AlertText } from '../../domain/alerts.ts'
import { redact } from '../../domain/redact.ts'

export type SlackOutcome =
  | { is: 'sent' }
  /** Nobody is to send anything for so long. */
  | { is: 'limited'; afterMs: number }
  /** It does not have it, and is not to be had: not now. */
  | { is: 'away'; why: string }
  /** It was silent: it may have it all the same. */
  | { is: 'retry'; why: string }
  /** The message or the webhook is refused for good. */
  | { is: 'rejected'; why: string }

export type Slack = {
  /** The signal aborts when the caller cannot wait longer. */
  post(text: AlertText, signal: AbortSignal): Promise<SlackOutcome>
}

/** When a 429 does not say how long. */
const restDefaultMs = 30_000
const restMaxMs = 86_400_000
const answerMax = 200

export function createSlack({ url, timeoutMs }: { url: string; timeoutMs: number }): Slack {
  return {
    async post(text, signal) {
      try {
        const response = await fetch(url, {
          method: 'POST',
          headers: { 'content-type': 'application/json', 'user-agent': 'flotilla' },
          body: JSON.stringify({ text: toMessage(text) }),
          // The address is the secret: it goes to nobody else.
          redirect: 'manual',
          signal: AbortSignal.any([signal, AbortSignal.timeout(timeoutMs)]),
        })
        const { status, headers } = response
        return answerOf(status, headers.get('retry-after'), await response.text())
      } catch (error) {
        return faultOf(error)
      }
    },
  }
}

function answerOf(status: number, retryAfter: string | null, body: string): SlackOutcome {
  if (status >= 200 && status < 300) return { is: 'sent' }
  if (status === 429) return { is: 'limited', afterMs: readRetryAfter(retryAfter) }
  // A word such as invalid_payload or channel_is_archived; of a proxy it may be a page.
  const word = redact(body.slice(0, answerMax)).replace(/\s+/g, ' ').trim()
  const why = `Slack answered ${status}${word ? ` ${word}` : ''}`
  const mayPass = status >= 500 || status === 408
  return mayPass ? { is: 'away', why } : { is: 'rejected', why }
}

/** Seconds or a date (RFC 9110 10.2.3). */
function readRetryAfter(value: string | null): number {
  const text = value?.trim() ?? ''
  const ms = /^\d+$/.test(text) ? Number(text) * 1000 : Date.parse(text) - Date.now()
  if (Number.isNaN(ms)) return restDefaultMs
  return Math.min(restMaxMs, Math.max(1000, ms))
}

/** By its name: its own words may quote the URL. Whoever stops waiting does not know either. */
function faultOf(error: unknown): SlackOutcome {
  const { name, cause } = error as Error
  if (name === 'TimeoutError') return { is: 'retry', why: 'Slack did not answer in time' }
  const code = (cause as { code?: unknown } | undefined)?.code
  const why = `Slack cannot be reached (${typeof code === 'string' ? code : name})`
  return { is: notConnected.has(String(code)) ? 'away' : 'retry', why }
}

/** Nothing was sent. */
const notConnected: ReadonlySet<string> = new Set([
  'ECONNREFUSED',
  'ENOTFOUND',
  'EAI_AGAIN',
  'EHOSTUNREACH',
  'ENETUNREACH',
  'UND_ERR_CONNECT_TIMEOUT',
])

/** https://docs.slack.dev/messaging/formatting-message-text: & < > are escaped, so nothing is a link or calls anybody. */
const escaped = (text: string): string =>
  text.replaceAll('&', '&amp;').replaceAll('<', '&lt;').replaceAll('>', '&gt;')

const valueMax = 1000

/** What a stranger said is one line. */
const oneLine = (text: string): string =>
  [...text.replace(/[\p{Cc}\p{Zl}\p{Zp}]+/gu, ' ')].slice(0, valueMax).join('').toWellFormed()

export function toMessage({ title, facts, isUrgent }: AlertText): string {
  const head = `${isUrgent ? ':rotating_light:' : ':white_check_mark:'} *${escaped(oneLine(title))}*`
  const lines = facts.map(({ label, value }) => `${label}: ${escaped(oneLine(value))}`)
  return [head, ...lines].join('\n')
}
