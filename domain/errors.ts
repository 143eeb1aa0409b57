// The one error a command may answer with, and the closed list of its codes. Anything thrown that is not an
// AppError is a fault of ours (500). The HTTP status of a code is decided in workers/problem.ts alone.

export const errorCodes = [
  'BAD_REQUEST',
  'VALIDATION_FAILED',
  'INVALID_JSON',
  'BODY_TOO_LARGE',
  'UNSUPPORTED_MEDIA_TYPE',
  'IDEMPOTENCY_KEY_MISSING',
  'IDEMPOTENCY_KEY_INVALID',
  'IDEMPOTENCY_KEY_IN_USE',
  'IDEMPOTENCY_KEY_REUSED',
  'UNAUTHENTICATED',
  'FORBIDDEN',
  'QUEUE_TOKEN_REQUIRED',
  'QUEUE_TOKEN_INVALID',
  'QUEUE_CLOSED',
  'NOT_IN_QUEUE',
  'NOT_FOUND',
  'METHOD_NOT_ALLOWED',
  'EVENT_NOT_FOUND',
  'SECTION_NOT_FOUND',
  'RESERVATION_NOT_FOUND',
  'COMMAND_NOT_FOUND',
  'ITEM_NOT_FOUND',
  'QUEUE_NOT_FOUND',
  'JOB_NOT_FOUND',
  'COMMAND_CANCELLED',
  'SOLD_OUT',
  'SEATS_UNAVAILABLE',
  'NOT_HELD',
  'RESERVATION_EXPIRED',
  'WEBHOOK_REFUSED',
  'RATE_LIMITED',
  'LOCK_TIMEOUT',
  'OVERLOADED',
  'OUTCOME_UNKNOWN',
  'UNAVAILABLE',
  'INTERNAL',
] as const

export type ErrorCode = (typeof errorCodes)[number]

export class AppError extends Error {
  readonly code: ErrorCode
  /** What a caller may be told besides the sentence: `retryAfterMs`, `errors[]`, `seats[]`. */
  readonly extra: { retryAfterMs?: number; [name: string]: unknown }

  constructor(
    code: ErrorCode,
    message: string,
    extra: { retryAfterMs?: number; [name: string]: unknown } = {},
    options?: ErrorOptions,
  ) {
    super(message, options)
    this.name = 'AppError'
    this.code = code
    this.extra = extra
  }
}
