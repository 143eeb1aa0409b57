// How a source is described, in a file or in the table, and what is wrong with a description, all faults at once. Secrets
// are in the environment: a description names variables, and one that holds a secret itself is refused.

import { type Source, type SourceType, sourceTypes } from './loader.ts'

export const sourceDefaults = {
  after_param: 'after_id',
  limit_param: 'limit',
  timeout_ms: 10_000,
  overlap: 0,
} as const

/** A request that takes longer would keep its source locked for as long after a crash. */
const timeoutMaxMs = 120_000
const hourMs = 3_600_000
const overlapMax = 1_000_000
const headersMax = 32

type Given = Record<string, unknown>

const fields = new Set([
  'name',
  'type',
  'url',
  'headers',
  'after_param',
  'limit_param',
  'timeout_ms',
  'gap_ms',
  'idle_max_ms',
  'overlap',
])

const isObject = (value: unknown): value is Given =>
  typeof value === 'object' && value !== null && !Array.isArray(value)

export class SourcesFault extends Error {
  constructor(faults: readonly string[]) {
    super(faults.join('; '))
    this.name = 'SourcesFault'
  }
}

/** A list of descriptions, or an object with the list as `sources`. @throws SourcesFault with all that is wrong */
export function parseSources(text: string): Source[] {
  let given: unknown
  try {
    given = JSON.parse(text)
  } catch (error) {
    // Not V8's words: they quote the text, which may hold what should not be there.
    const at = /at position \d+( \(line \d+ column \d+\))?/.exec((error as Error).message)?.[0]
    throw new SourcesFault([`is not JSON${at ? ` ${at}` : ''}`])
  }
  const list = isObject(given) ? given.sources : given
  if (!Array.isArray(list)) {
    throw new SourcesFault(['must be a list of sources, or {"sources": […]}'])
  }
  const faults: string[] = []
  const byName = new Map<string, Source>()
  for (const [i, one] of list.entries()) {
    const read = readSource(one)
    const named = isObject(one) && typeof one.name === 'string' ? one.name.slice(0, 100) : i + 1
    if (read.source === undefined) {
      for (const fault of read.faults) faults.push(`source ${named}: ${fault}`)
    } else if (byName.has(read.source.name)) faults.push(`source ${named} is there twice`)
    else byName.set(read.source.name, read.source)
  }
  if (faults.length > 0) throw new SourcesFault(faults)
  return [...byName.values()]
}

/** One description, and what is wrong with it. */
export function readSource(given: unknown): { source: Source | undefined; faults: string[] } {
  if (!isObject(given)) return { source: undefined, faults: ['must be an object'] }
  const faults: string[] = []
  for (const field of Object.keys(given)) {
    if (!fields.has(field)) {
      faults.push(
        `${JSON.stringify(field.slice(0, 40))} is unknown; there are ${[...fields].join(', ')}`,
      )
    }
  }
  const whole = (field: string, least: number, most: number, fallback: number): number => {
    const value = given[field] ?? fallback
    if (Number.isInteger(value) && Number(value) >= least && Number(value) <= most) {
      return Number(value)
    }
    faults.push(`${field} must be a whole number from ${least} to ${most}`)
    return fallback
  }
  const word = (field: 'after_param' | 'limit_param'): string => {
    const value = given[field] ?? sourceDefaults[field]
    if (typeof value === 'string' && /^[\w.[\]-]{1,100}$/.test(value)) return value
    faults.push(`${field} must be the name of a parameter`)
    return sourceDefaults[field]
  }
  const { name } = given
  if (typeof name !== 'string' || !/^[A-Za-z0-9][\w.:-]{0,99}$/.test(name)) {
    faults.push('name must be 1 to 100 letters, digits and . _ : -, a letter or digit first')
  }
  const type = given.type ?? 'http'
  if (!sourceTypes.some((known) => known === type)) {
    faults.push(`type must be one of ${sourceTypes.join(', ')}`)
  }
  const source: Source = {
    name: String(name),
    type: type as SourceType,
    url: readUrl(given.url, type as SourceType, faults),
    headers: readHeaders(given.headers ?? {}, type as SourceType, faults),
    afterParam: word('after_param'),
    limitParam: word('limit_param'),
    timeoutMs: whole('timeout_ms', 100, timeoutMaxMs, sourceDefaults.timeout_ms),
    gapMs: whole('gap_ms', 0, hourMs, 0),
    idleMaxMs: given.idle_max_ms === undefined ? undefined : whole('idle_max_ms', 0, hourMs, 0),
    overlap: whole('overlap', 0, overlapMax, sourceDefaults.overlap),
  }
  if (type === 'file' && source.overlap > 0) faults.push('a file has no overlap: it is in order')
  return { source: faults.length === 0 ? source : undefined, faults }
}

function readUrl(given: unknown, type: SourceType, faults: string[]): string {
  if (typeof given !== 'string' || given === '') {
    faults.push(type === 'file' ? 'url must be the path of a file' : 'url is missing')
    return ''
  }
  if (type === 'file') {
    if (!/^(\/|[A-Za-z]:[\\/]|file:\/\/\/)/.test(given)) faults.push('url must be an absolute path')
    return given
  }
  const url = URL.canParse(given) ? new URL(given) : undefined
  if (url === undefined || !/^https?:$/.test(url.protocol)) {
    faults.push('url must begin with http:// or https://')
  } else if (url.username !== '' || url.password !== '') {
    faults.push(`url must not carry a name or password: put "Basic ${variable}" into headers`)
  } else if (url.hash !== '') faults.push('url must have no #fragment')
  return given
}

// biome-ignore lint/suspicious/noTemplateCurlyInString: it is what people write
const variable = '${env:NAME}'
const variables = /\$\{env:([A-Za-z_]\w{0,99})\}/g
const secretHeader = /auth|cookie|token|secret|key|password|signature|credential/i

function readHeaders(given: unknown, type: SourceType, faults: string[]): Record<string, string> {
  if (!isObject(given) || Object.keys(given).length > headersMax) {
    faults.push(`headers must be an object of ${headersMax} texts at most`)
    return {}
  }
  if (type === 'file' && Object.keys(given).length > 0) faults.push('a file has no headers')
  for (const [name, value] of Object.entries(given)) {
    const called = `headers.${name.slice(0, 60)}`
    if (!/^[!#$%&'*+.^`|~\w-]{1,100}$/.test(name)) faults.push(`${called} is no name of a header`)
    if (typeof value !== 'string' || /[^\t\x20-\x7e\x80-\xff]/.test(value)) {
      faults.push(`${called} must be a text of one line`)
      continue
    }
    const rest = value.replace(variables, '')
    if (rest.includes('${')) faults.push(`${called} must name a variable as ${variable}`)
    if (secretHeader.test(name) && variablesOf(value).length === 0) {
      faults.push(`${called} must take its secret from the environment, as ${variable}`)
    }
  }
  return given as Record<string, string>
}

/** The variables that a header's value names. */
export const variablesOf = (value: string): string[] =>
  [...value.matchAll(variables)].map(([, name]) => name as string)

/** With the variables' values put in. @throws Error that names the one that is not set */
export function fillIn(value: string, secretOf: (name: string) => string | undefined): string {
  return value.replace(variables, (_, name: string) => {
    const found = secretOf(name)
    if (found === undefined) throw new Error(`the environment variable ${name} is not set`)
    return found
  })
}

/** What is written into the table: the fields as people wrote them. */
export const describeSource = (source: Source): Given => ({
  name: source.name,
  type: source.type,
  url: source.url,
  headers: source.headers,
  after_param: source.afterParam,
  limit_param: source.limitParam,
  timeout_ms: source.timeoutMs,
  gap_ms: source.gapMs,
  ...(source.idleMaxMs === undefined ? {} : { idle_max_ms: source.idleMaxMs }),
  overlap: source.overlap,
})
