// What FCM's answers mean, by Google's rules (https://firebase.google.com/docs/cloud-messaging/error-codes and
// /scale-fcm): 400, 401, 403 and 404 are for good, 429 waits as long as it says or a minute, 5xx ten seconds at least. A
// device is gone only by the error code UNREGISTERED: a 404 without it is what a wrong project answers as well.

import type { PushOutcome } from './provider.ts'
import type { Answer } from './sessions.ts'

const quotaMs = 60_000
/** Google: never sooner. */
export const retryMs = 10_000
const whyMax = 300

/** Codes of FCM and of gRPC: what else an answer says is told as its status, so that a metric has few labels. */
const known = new Set([
  ...[
    'UNSPECIFIED_ERROR',
    'INVALID_ARGUMENT',
    'UNREGISTERED',
    'SENDER_ID_MISMATCH',
    'QUOTA_EXCEEDED',
  ],
  ...['UNAVAILABLE', 'INTERNAL', 'THIRD_PARTY_AUTH_ERROR', 'UNAUTHENTICATED', 'PERMISSION_DENIED'],
  ...['NOT_FOUND', 'RESOURCE_EXHAUSTED', 'FAILED_PRECONDITION'],
])

type Said = { code: string; fcmCode: string | undefined; message: string }

/** @param secret what the message must not be told with: the device's token */
export function readAnswer({ status, headers, body }: Answer, secret: string): PushOutcome {
  if (status === 200) return { is: 'sent' }
  const { code, fcmCode, message } = readError(status, body)
  if (fcmCode === 'UNREGISTERED') return { is: 'gone' }
  const why = `FCM: ${status} ${code}${message && `: ${message.replaceAll(secret, '***')}`}`.slice(
    0,
    whyMax,
  )
  const asked = readRetryAfter(headers['retry-after'])
  if (status === 429 || fcmCode === 'QUOTA_EXCEEDED') {
    return { is: 'retry', code, afterMs: asked ?? quotaMs, why }
  }
  if (status >= 500 || status === 408) {
    return { is: 'retry', code, afterMs: Math.max(retryMs, asked ?? 0), why }
  }
  const isOfDevice =
    status === 400 || fcmCode === 'SENDER_ID_MISMATCH' || fcmCode === 'THIRD_PARTY_AUTH_ERROR'
  return { is: 'rejected', code, why, ours: !isOfDevice }
}

/** The access token is not taken, as opposed to Apple's certificate. */
export const isUnauthenticated = ({ status, body }: Answer): boolean =>
  status === 401 && readError(status, body).fcmCode !== 'THIRD_PARTY_AUTH_ERROR'

/** The details may come in any order, or not at all; a 502 is a page of HTML. */
function readError(status: number, body: string): Said {
  const error = objectOf(objectOf(parse(body)).error)
  const details = Array.isArray(error.details) ? error.details.map(objectOf) : []
  const isFcmError = ({ '@type': type }: Record<string, unknown>) =>
    String(type).endsWith('/google.firebase.fcm.v1.FcmError')
  const fcmCode = textOf(details.find(isFcmError)?.errorCode)
  const code = [fcmCode, textOf(error.status)].find((one) => one !== undefined && known.has(one))
  return { code: code ?? `HTTP_${status}`, fcmCode, message: textOf(error.message) ?? '' }
}

/** Seconds or a date (RFC 9110 10.2.3), in ms from now. */
export function readRetryAfter(value: unknown, now = Date.now()): number | undefined {
  if (typeof value !== 'string') return undefined
  if (/^\d{1,9}$/.test(value)) return Number(value) * 1000
  // Date.parse finds a year in nearly anything.
  const at = /^[A-Za-z]/.test(value) ? Date.parse(value) : Number.NaN
  return Number.isNaN(at) ? undefined : Math.max(0, at - now)
}

const textOf = (value: unknown) => (typeof value === 'string' ? value : undefined)

const objectOf = (value: unknown): Record<string, unknown> =>
  typeof value === 'object' && value !== null ? (value as Record<string, unknown>) : {}

function parse(text: string): unknown {
  try {
    return JSON.parse(text)
  } catch {
    return undefined
  }
}
