// The rules of idempotent writes (SPEC 5): what a key looks like, what makes two requests the same, which answers
// are kept; and the port that the Postgres and the Redis adapter both serve. No I/O.

/** A finished answer, kept and replayed byte for byte. Header names are lower case. */
export type StoredResponse = {
  status: number
  headers: Record<string, string>
  body: string
}

/** An answer with the fingerprint of the request it answered. */
export type StoredRecord = { fingerprint: string; response: StoredResponse }
/** The same with what is left of its 48 h, in seconds. */
export type FoundRecord = StoredRecord & { leftSeconds: number }

/** How long a record answers replays (fixed). */
export const recordSeconds = 48 * 3600
/** How long a lock outlives a holder that died (fixed). */
export const lockSeconds = 30
/** When to ask again while the holder is at work: it is nearly always done long before its lock runs out. */
export const runningRetryMs = 1000

const uuidV4Hex = /^[0-9a-f]{12}4[0-9a-f]{3}[89ab][0-9a-f]{15}$/

/**
 * Reads the Idempotency-Key header: a UUID v4 in lower case without hyphens, bare or quoted as an RFC 8941 string
 * (draft-ietf-httpapi-idempotency-key-header). Gives the bare key, or undefined when it is malformed.
 */
export function parseKey(header: string): string | undefined {
  const text = header.trim()
  const bare =
    text.length >= 2 && text.startsWith('"') && text.endsWith('"') ? text.slice(1, -1) : text
  return uuidV4Hex.test(bare) ? bare : undefined
}

const storedStatuses: ReadonlySet<number> = new Set([404, 409, 410])

/** Whether the outcome of a command that ran is a decision to keep: 2xx, 404, 409, 410. */
export const isStored = (status: number): boolean =>
  (status >= 200 && status < 300) || storedStatuses.has(status)

/** What `begin` found under a key. */
export type Begun =
  /** The caller holds the lock until `release` or 30 s, whichever is first, and must run the command. */
  | { is: 'mine'; token: string }
  /** Somebody is at work on it now. */
  | { is: 'running'; retryAfterMs: number }
  /** It was answered before. */
  | { is: 'done'; response: StoredResponse }
  /** The key belongs to a request with another method, path, user or body. */
  | { is: 'reused' }

/**
 * Guards one key. The truth of a finished command is the record that commits with its effect (db/idempotency.ts); a
 * store only finds it fast and keeps two holders of one key from working at once. Losing a lock is therefore harmless:
 * the record's primary key lets exactly one of two holders commit.
 */
export type IdempotencyStore = {
  begin(key: string, fingerprint: string): Promise<Begun>
  /** After commit: makes the answer quick to find and frees the lock. */
  finish(key: string, fingerprint: string, token: string, response: StoredResponse): Promise<void>
  /** Nothing was decided: frees the lock if `token` still holds it. */
  release(key: string, token: string): Promise<void>
}
