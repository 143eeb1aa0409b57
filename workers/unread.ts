// What is kept of a message that nobody could read, as the payload of a dead job: the message itself where it is an
// object of JSON, so that `jobs failed:retry` means it, or what it was as text or base64, cut.

/** Larger ones are kept as their beginning: a dead letter queue is no place for a gigabyte. */
const keptMax = 256 * 1024

export function keptOf(body: Buffer): object {
  const bytes = body.length
  if (bytes <= keptMax) {
    const text = body.toString('utf8')
    // NUL is what Postgres does not take, however it is written.
    if (!text.includes('\0') && !text.includes('\\u0000') && Buffer.from(text).equals(body)) {
      return objectOf(text) ?? { bytes, text }
    }
  }
  return { bytes, base64: body.subarray(0, keptMax).toString('base64') }
}

function objectOf(text: string): object | undefined {
  try {
    const value: unknown = JSON.parse(text)
    const isObject = typeof value === 'object' && value !== null && !Array.isArray(value)
    // Half a character is what Postgres takes as text, but not within JSON.
    if (isObject && !/\\ud[89a-f]/i.test(JSON.stringify(value))) return value
  } catch {}
  return undefined
}
