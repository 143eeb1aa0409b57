// What is kept of a message that nobody could read, as the payload of a dead job: the message itself where it is an
// object of JSON, so that `jobs failed:retry` means it, or what it was as text or base64, cut.

import { unstorable } from '../domain/storable.ts'

/** Larger ones are kept as their beginning: a dead letter queue is no place for a gigabyte. */
const keptMax = 256 * 1024

export function keptOf(body: Buffer): object {
  const bytes = body.length
  const text = bytes <= keptMax ? body.toString('utf8') : undefined
  if (text === undefined || text.includes('\0') || !Buffer.from(text).equals(body)) {
    return bytesOf(body)
  }
  const value = parsed(text)
  if (unstorable(value) !== undefined) return bytesOf(body)
  const isObject = typeof value === 'object' && value !== null && !Array.isArray(value)
  return isObject ? value : { bytes, text }
}

/** The message as Postgres takes it, whatever it is. */
export const bytesOf = (body: Buffer): object => ({
  bytes: body.length,
  base64: body.subarray(0, keptMax).toString('base64'),
})

function parsed(text: string): unknown {
  try {
    return JSON.parse(text)
  } catch {
    return undefined
  }
}
