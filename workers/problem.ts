// The one map from the house's error codes to HTTP: status, title, Retry-After; and from anything thrown to a code.
// A problem (RFC 9457) is the same text for the same error, so that it can be stored and replayed: nothing of the
// request is in it. What an unknown error says stays in the log.

import { CommitUnknown, isConnectionLost } from '../db/transaction.ts'
import { AppError, type ErrorCode } from '../domain/errors.ts'
import type { StoredResponse } from '../domain/idempotency.ts'

export const problems: Record<ErrorCode, { status: number; title: string }> = {
  BAD_REQUEST: { status: 400, title: 'Bad request' },
  VALIDATION_FAILED: { status: 400, title: 'The request is not valid' },
  INVALID_JSON: { status: 400, title: 'The body is not JSON' },
  BODY_TOO_LARGE: { status: 413, title: 'The body is too large' },
  UNSUPPORTED_MEDIA_TYPE: { status: 415, title: 'The media type is not supported' },
  IDEMPOTENCY_KEY_MISSING: { status: 400, title: 'Idempotency-Key is missing' },
  IDEMPOTENCY_KEY_INVALID: { status: 400, title: 'Idempotency-Key is malformed' },
  IDEMPOTENCY_KEY_IN_USE: { status: 409, title: 'The request is being processed' },
  IDEMPOTENCY_KEY_REUSED: { status: 422, title: 'Idempotency-Key belongs to another request' },
  UNAUTHENTICATED: { status: 401, title: 'Authentication is needed' },
  FORBIDDEN: { status: 403, title: 'Not allowed' },
  QUEUE_TOKEN_REQUIRED: { status: 403, title: 'It is not your turn yet' },
  QUEUE_TOKEN_INVALID: { status: 401, title: 'The queue token is not valid' },
  QUEUE_CLOSED: { status: 409, title: 'The queue is closed' },
  NOT_IN_QUEUE: { status: 404, title: 'Not in the queue' },
  NOT_FOUND: { status: 404, title: 'Not found' },
  METHOD_NOT_ALLOWED: { status: 405, title: 'The method is not allowed here' },
  EVENT_NOT_FOUND: { status: 404, title: 'Event not found' },
  SECTION_NOT_FOUND: { status: 404, title: 'Section not found' },
  RESERVATION_NOT_FOUND: { status: 404, title: 'Reservation not found' },
  COMMAND_NOT_FOUND: { status: 404, title: 'Command not found' },
  ITEM_NOT_FOUND: { status: 404, title: 'Item not found' },
  QUEUE_NOT_FOUND: { status: 404, title: 'Queue not found' },
  JOB_NOT_FOUND: { status: 404, title: 'Job not found' },
  COMMAND_CANCELLED: { status: 409, title: 'The command was cancelled' },
  SOLD_OUT: { status: 409, title: 'Sold out' },
  SEATS_UNAVAILABLE: { status: 409, title: 'Seats are not available' },
  NOT_HELD: { status: 409, title: 'The reservation is not held' },
  RESERVATION_EXPIRED: { status: 410, title: 'The reservation has expired' },
  WEBHOOK_REFUSED: { status: 406, title: 'The webhook is not believed' },
  RATE_LIMITED: { status: 429, title: 'Too many requests' },
  LOCK_TIMEOUT: { status: 503, title: 'Busy, try again' },
  OVERLOADED: { status: 503, title: 'Busy, try again' },
  OUTCOME_UNKNOWN: { status: 503, title: 'The outcome is not known yet, try again' },
  UNAVAILABLE: { status: 503, title: 'Unavailable, try again' },
  INTERNAL: { status: 500, title: 'Internal error' },
}

/** The answer an error stands for. */
export function problem(error: AppError): StoredResponse {
  const { status, title } = problems[error.code]
  const { retryAfterMs, ...extra } = error.extra
  const headers: Record<string, string> = {
    'content-type': 'application/problem+json; charset=utf-8',
  }
  const waitMs = retryAfterMs ?? (status === 503 ? 1000 : undefined)
  if (waitMs !== undefined) headers['retry-after'] = String(Math.max(1, Math.ceil(waitMs / 1000)))
  const body = { type: 'about:blank', title, status, code: error.code, detail: error.message }
  return { status, headers, body: JSON.stringify({ ...body, ...extra }) }
}

/** What Fastify refuses before a handler runs. */
const frameworkCodes: Record<string, ErrorCode> = {
  FST_ERR_CTP_BODY_TOO_LARGE: 'BODY_TOO_LARGE',
  FST_ERR_CTP_INVALID_MEDIA_TYPE: 'UNSUPPORTED_MEDIA_TYPE',
  FST_ERR_MAX_PARAM_LENGTH: 'NOT_FOUND',
}

const frameworkTexts: Partial<Record<ErrorCode, string>> = {
  BODY_TOO_LARGE: 'a body may have 64 kB at most',
  UNSUPPORTED_MEDIA_TYPE: 'send the body as application/json',
  NOT_FOUND: 'there is nothing at this path',
}

/** Any error as one of ours, with what was thrown as its cause. */
export function toAppError(error: unknown): AppError {
  if (error instanceof AppError) return error
  const options = { cause: error }
  if (error instanceof CommitUnknown) {
    return new AppError(
      'OUTCOME_UNKNOWN',
      'the connection to the database broke: repeat the request with the same Idempotency-Key',
      { retryAfterMs: 1000 },
      options,
    )
  }
  const { code = '', statusCode = 500, message = '' } = error as Partial<Fault>
  const known = frameworkCodes[code]
  if (known) return new AppError(known, frameworkTexts[known] ?? known, {}, options)
  // Before the database: a client that hangs up is an ECONNRESET as well, marked 400 by Fastify.
  if (statusCode < 500) return new AppError('BAD_REQUEST', message, {}, options)
  if (isConnectionLost(error)) {
    const text = 'the database cannot be reached, or has run out of room'
    return new AppError('UNAVAILABLE', text, { retryAfterMs: 2000 }, options)
  }
  return new AppError('INTERNAL', 'something went wrong here; it has been logged', {}, options)
}

/** What a command ends with whose job an operator cancelled. */
export const cancelledCommand: StoredResponse = problem(
  new AppError(
    'COMMAND_CANCELLED',
    'the command was cancelled before it was carried out: nothing of it was done',
  ),
)

/** What a command ends with whose attempts are used up, each by the death of its worker. */
export const givenUpCommand: StoredResponse = problem(
  new AppError('INTERNAL', 'the command could not be carried out, and nothing of it was done'),
)

export function notFound(url: string): AppError {
  const path = url.split('?', 1)[0]!.slice(0, 200)
  return new AppError('NOT_FOUND', `there is nothing at ${path}`)
}

type Fault = { code: string; statusCode: number; message: string }

/** A good answer. */
export const json = (status: number, body: object): StoredResponse => ({
  status,
  headers: { 'content-type': 'application/json; charset=utf-8' },
  body: JSON.stringify(body),
})
