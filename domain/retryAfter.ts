// The header Retry-After: seconds or a date (RFC 9110 10.2.3).

const mostMs = 3_600_000

/** In ms from now, an hour at most; undefined: it says nothing. */
export function readRetryAfter(
  value: string | null | undefined,
  now = Date.now(),
): number | undefined {
  if (value === null || value === undefined) return undefined
  const text = value.trim()
  if (/^\d{1,9}(\.\d{1,3})?$/.test(text)) return Math.min(mostMs, Number(text) * 1000)
  // Date.parse finds a year in nearly anything.
  const at = /^[A-Za-z]/.test(text) ? Date.parse(text) : Number.NaN
  return Number.isNaN(at) ? undefined : Math.min(mostMs, Math.max(0, at - now))
}
