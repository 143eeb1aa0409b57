// Checks a value against a JSON Schema, of the few words that the catalogue of events is written in, and says what does
// not fit. Small, as every idle inbox carries it: a validator for all of JSON Schema costs it 10 MB. Its verdicts are
// those of a full one (test/catalogue.test.ts).

export type Schema = {
  readonly type?: 'object' | 'array' | 'string' | 'integer'
  readonly const?: string
  readonly enum?: readonly string[]
  readonly required?: readonly string[]
  readonly properties?: Readonly<Record<string, Schema>>
  readonly items?: Schema
  readonly pattern?: string
  readonly minLength?: number
  readonly maxLength?: number
  readonly minimum?: number
  /** For people. */
  readonly $schema?: string
  readonly title?: string
  readonly description?: string
}

const patterns = new Map<string, RegExp>()

/** The first thing that does not fit, with its place (`data/total/currency …`); values are not in it. */
export function faultOf(schema: Schema, value: unknown, place = ''): string | undefined {
  const { type } = schema
  const wrong = (right: string) => `${place || 'the value'} must be ${right}`
  if (schema.const !== undefined && value !== schema.const) return wrong(`"${schema.const}"`)
  if (schema.enum !== undefined && !schema.enum.includes(value as string)) {
    return wrong(`one of ${schema.enum.join(', ')}`)
  }
  if (type === 'object')
    return isObject(value) ? inObject(schema, value, place) : wrong('an object')
  if (type === 'array') return Array.isArray(value) ? inList(schema, value, place) : wrong('a list')
  if (type === 'integer') {
    if (!Number.isInteger(value)) return wrong('a whole number')
    const { minimum = Number.NEGATIVE_INFINITY } = schema
    return (value as number) < minimum ? wrong(`at least ${minimum}`) : undefined
  }
  if (type === 'string') {
    if (typeof value !== 'string') return wrong('a text')
    // In characters, not in units of UTF-16.
    const { minLength = 0, maxLength = Number.POSITIVE_INFINITY, pattern } = schema
    const length = maxLength === Number.POSITIVE_INFINITY ? value.length : [...value].length
    if (length < minLength || length > maxLength) {
      return wrong(`a text of ${minLength} to ${maxLength} characters`)
    }
    if (pattern !== undefined && !compiled(pattern).test(value)) return wrong(`like ${pattern}`)
  }
  return undefined
}

const isObject = (value: unknown): value is Record<string, unknown> =>
  typeof value === 'object' && value !== null && !Array.isArray(value)

function inObject(schema: Schema, value: Record<string, unknown>, place: string) {
  const at = (name: string) => (place ? `${place}/${name}` : name)
  for (const name of schema.required ?? []) {
    if (!Object.hasOwn(value, name)) return `${at(name)} is missing`
  }
  for (const [name, inner] of Object.entries(schema.properties ?? {})) {
    if (!Object.hasOwn(value, name)) continue
    const fault = faultOf(inner, value[name], at(name))
    if (fault !== undefined) return fault
  }
  return undefined
}

function inList({ items }: Schema, list: readonly unknown[], place: string): string | undefined {
  if (items === undefined) return undefined
  for (const [i, value] of list.entries()) {
    const fault = faultOf(items, value, `${place}/${i}`)
    if (fault !== undefined) return fault
  }
  return undefined
}

function compiled(pattern: string): RegExp {
  const known = patterns.get(pattern) ?? new RegExp(pattern, 'u')
  patterns.set(pattern, known)
  return known
}
