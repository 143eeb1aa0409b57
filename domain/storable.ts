// What JSON may hold and Postgres does not take: NUL, half a surrogate pair, nesting without end. Found before anything is
// written, as no retry would mend it.

/** Far more than any event has; Postgres and JSON.stringify recurse, and end at some thousands. */
const nestingMax = 100

/** Why `value`, as JSON.parse made it, cannot be stored as jsonb. Undefined: it can. */
export function unstorable(value: unknown, depth = 0): string | undefined {
  if (typeof value === 'string') return unstorableText(value)
  if (typeof value !== 'object' || value === null) return undefined
  if (depth === nestingMax) return `it is nested more than ${nestingMax} levels deep`
  for (const [key, inner] of Object.entries(value)) {
    const fault = unstorableText(key) ?? unstorable(inner, depth + 1)
    if (fault !== undefined) return fault
  }
  return undefined
}

function unstorableText(text: string): string | undefined {
  if (text.includes('\0')) return 'it has a NUL character in a string'
  if (!text.isWellFormed()) return 'it has half a surrogate pair in a string'
  return undefined
}
