// A stand-in for OpenSearch as a process of its own, of as much of it as items need: indexes with mappings (strict ones too)
// and settings, _bulk with external versions, faults of single items and require_alias, _search (bool, match, exact knn),
// near-real-time visibility (a write is found after a refresh, each second by default), _aliases done all at once or not
// at all, _count, 429 and 503, a password. A write to an index that is not there makes one, as the real one does. What is
// written is gone when it ends. Ends with whoever started it.
//
//   node test/servers/opensearch.ts [--port 0]
//   POST /control/mood {…}    how it answers from now on
//   GET  /control/seen        indexes with their aliases, and how many requests there were

import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import { setTimeout as sleep } from 'node:timers/promises'
import { parseArgs } from 'node:util'
import { listenAsStandIn, startStandIn } from './standIn.ts'

export type Mood = {
  /** Every request is answered so; 0: well. */
  status?: 0 | 429 | 503
  retryAfter?: string
  /** So many of the next documents are refused with 429, one by one. */
  busyItems?: number
  latencyMs?: number
  /** user:password; empty: nobody is asked. */
  credentials?: string
}

type Field = {
  type: string
  dimension?: number
  copy_to?: string
  fields?: Record<string, Field>
  analyzer?: string
}
type Doc = { version: number; source: Record<string, unknown> }
type Index = {
  properties: Record<string, Field>
  isStrict: boolean
  isKnn: boolean
  aliases: Set<string>
  refreshMs: number
  refreshedAt: number
  written: Map<string, Doc>
  /** What searches see. */
  visible: Map<string, Doc>
  fresh: Set<string>
}

class Refusal extends Error {
  readonly status: number
  readonly type: string
  constructor(status: number, type: string, reason: string) {
    super(reason)
    this.status = status
    this.type = type
  }
}

const noIndex = (name: string, more = '') =>
  new Refusal(404, 'index_not_found_exception', `no such index [${name}]${more}`)

function serve() {
  const indexes = new Map<string, Index>()
  const initial: Required<Mood> = {
    status: 0,
    retryAfter: '',
    busyItems: 0,
    latencyMs: 0,
    credentials: '',
  }
  let mood = initial
  let requests = 0

  function named(name: string): Index {
    const direct = indexes.get(name)
    if (direct) return direct
    const behind = [...indexes.values()].filter(({ aliases }) => aliases.has(name))
    if (behind.length > 1) {
      throw new Refusal(
        400,
        'illegal_argument_exception',
        `alias [${name}] has more than one index`,
      )
    }
    if (behind[0] === undefined) throw noIndex(name)
    return behind[0]
  }

  function create(name: string, body: Created): object {
    const exists = indexes.has(name) || [...indexes.values()].some((one) => one.aliases.has(name))
    if (exists) {
      throw new Refusal(400, 'resource_already_exists_exception', `index [${name}] already exists`)
    }
    const settings = body.settings?.index ?? {}
    indexes.set(name, {
      properties: body.mappings?.properties ?? {},
      isStrict: body.mappings?.dynamic === 'strict',
      isKnn: settings.knn === true,
      aliases: new Set(Object.keys(body.aliases ?? {})),
      refreshMs: intervalOf(settings.refresh_interval),
      refreshedAt: Date.now(),
      written: new Map(),
      visible: new Map(),
      fresh: new Set(),
    })
    return { acknowledged: true, shards_acknowledged: true, index: name }
  }

  /** Each once, as if its own clock had done it in time. */
  function refreshDue(index: Index): void {
    if (index.refreshMs < 0 || Date.now() - index.refreshedAt < index.refreshMs) return
    refresh(index)
  }

  function changeAliases({ actions }: { actions: Record<string, Action>[] }): object {
    const after = new Map([...indexes].map(([name, { aliases }]) => [name, new Set(aliases)]))
    const gone: string[] = []
    for (const action of actions) {
      const [[verb, { index, alias = '' }]] = Object.entries(action) as [[string, Action]]
      const aliases = after.get(index)
      if (aliases === undefined) throw noIndex(index)
      if (verb === 'add') aliases.add(alias)
      else if (verb === 'remove') {
        if (!aliases.delete(alias)) {
          throw new Refusal(404, 'aliases_not_found_exception', `aliases [${alias}] missing`)
        }
      } else if (verb === 'remove_index') gone.push(index)
      else throw new Refusal(400, 'illegal_argument_exception', `unknown action [${verb}]`)
    }
    for (const [name, aliases] of after) (indexes.get(name) as Index).aliases = aliases
    for (const name of gone) indexes.delete(name)
    return { acknowledged: true }
  }

  function bulk(target: string, requireAlias: boolean, text: string): object {
    if (!text.endsWith('\n')) {
      throw new Refusal(
        400,
        'illegal_argument_exception',
        'The bulk request must be terminated by a newline [\\n]',
      )
    }
    const lines = text.slice(0, -1).split('\n')
    const items: object[] = []
    for (let i = 0; i < lines.length; i += 2) {
      const [[verb, meta]] = Object.entries(JSON.parse(lines[i] as string)) as [[string, Meta]]
      if (verb !== 'index') throw new Refusal(400, 'illegal_argument_exception', `no ${verb} here`)
      const source = JSON.parse(lines[i + 1] as string)
      items.push({ index: { _id: meta._id, ...indexOne(target, requireAlias, meta, source) } })
    }
    const errors = items.some((one) => 'error' in (one as { index: object }).index)
    return { took: 1, errors, items }
  }

  function indexOne(target: string, requireAlias: boolean, meta: Meta, source: Doc['source']) {
    try {
      if (mood.busyItems > 0) {
        mood.busyItems--
        throw new Refusal(
          429,
          'rejected_execution_exception',
          'rejected execution of primary operation',
        )
      }
      const isAlias = [...indexes.values()].some(({ aliases }) => aliases.has(target))
      if (requireAlias && !isAlias) {
        const why = ` and [require_alias] request flag is [true] and [${target}] is not an alias`
        throw noIndex(target, why)
      }
      // The real one makes it, with fields guessed from what comes.
      if (!isAlias && !indexes.has(target)) create(target, {})
      const index = named(target)
      const before = index.written.get(meta._id)
      if (meta.version_type !== 'external_gte') {
        throw new Refusal(400, 'illegal_argument_exception', 'only external_gte here')
      }
      if (before && meta.version < before.version) {
        const why = `current version [${before.version}] is higher than the one provided [${meta.version}]`
        throw new Refusal(409, 'version_conflict_engine_exception', why)
      }
      checkFields(index, source)
      index.written.set(meta._id, { version: meta.version, source })
      index.fresh.add(meta._id)
      return {
        _version: meta.version,
        result: before ? 'updated' : 'created',
        status: before ? 200 : 201,
      }
    } catch (error) {
      if (!(error instanceof Refusal)) throw error
      return { status: error.status, error: { type: error.type, reason: error.message } }
    }
  }

  function search(target: string, body: SearchBody): object {
    const index = named(target)
    refreshDue(index)
    const { query, from = 0, size = 10 } = body
    const hits = [...index.visible]
      .map(([id, { source }]) => ({
        _index: target,
        _id: id,
        _score: scoreOf(index, source, query),
      }))
      .filter((hit): hit is typeof hit & { _score: number } => hit._score !== undefined)
      .sort((a, b) => b._score - a._score || (a._id < b._id ? -1 : 1))
    const k = query.knn ? Object.values(query.knn)[0]?.k : undefined
    const found = k === undefined ? hits : hits.slice(0, k)
    return { took: 1, timed_out: false, hits: { hits: found.slice(from, from + size) } }
  }

  function route(method: string, path: string[], query: URLSearchParams, body: string): object {
    const [first = '', second] = path.map(decodeURIComponent)
    const data = () => (body === '' ? {} : JSON.parse(body))
    if (first === '') return { version: { distribution: 'opensearch', number: '2.19.0' } }
    if (first === '_aliases') return changeAliases(data())
    if (first === '_alias') return aliasesLike(String(second))
    if (second === undefined && method === 'PUT') return create(first, data())
    if (second === undefined && method === 'DELETE') {
      if (!indexes.delete(first)) throw noIndex(first)
      return { acknowledged: true }
    }
    switch (second) {
      case '_bulk':
        return bulk(first, query.get('require_alias') === 'true', body)
      case '_search':
        return search(first, data())
      case '_count': {
        const index = named(first)
        refreshDue(index)
        return { count: index.visible.size }
      }
      case '_refresh':
        refresh(named(first))
        return { _shards: { failed: 0 } }
      case '_mapping':
        return addFields(named(first), data().properties)
      case '_settings':
        named(first).refreshMs = intervalOf(data().index?.refresh_interval)
        return { acknowledged: true }
    }
    throw new Refusal(
      400,
      'illegal_argument_exception',
      `no handler for ${method} /${path.join('/')}`,
    )
  }

  function aliasesLike(pattern: string): object {
    const like = new RegExp(`^${pattern.replaceAll('*', '.*')}$`)
    return Object.fromEntries(
      [...indexes].flatMap(([name, { aliases }]) => {
        const found = [...aliases].filter((alias) => like.test(alias))
        return found.length === 0
          ? []
          : [[name, { aliases: Object.fromEntries(found.map((alias) => [alias, {}])) }]]
      }),
    )
  }

  const seen = () => ({
    requests,
    indexes: Object.fromEntries(
      [...indexes].map(([name, index]) => [
        name,
        { aliases: [...index.aliases], count: index.written.size, refreshMs: index.refreshMs },
      ]),
    ),
  })

  return createServer(async (request, response) => {
    const url = new URL(request.url ?? '/', 'http://localhost')
    const body = (await bodyOf(request)).toString()
    if (url.pathname === '/control/seen') return json(response, 200, seen())
    if (url.pathname === '/control/mood') {
      mood = { ...mood, ...JSON.parse(body) }
      return json(response, 200, {})
    }
    requests++
    await sleep(mood.latencyMs)
    const given = /^Basic (.+)$/.exec(request.headers.authorization ?? '')?.[1] ?? ''
    if (mood.credentials !== '' && Buffer.from(given, 'base64').toString() !== mood.credentials) {
      return response.writeHead(401, { 'content-type': 'text/plain' }).end('Unauthorized')
    }
    if (mood.status !== 0) {
      if (mood.retryAfter !== '') response.setHeader('retry-after', mood.retryAfter)
      return json(response, mood.status, { error: { type: 'told_to', reason: 'told to' } })
    }
    try {
      const path = url.pathname.slice(1).split('/')
      json(response, 200, route(request.method ?? 'GET', path, url.searchParams, body))
    } catch (error) {
      const { status = 500, type = 'fault', message } = error as Refusal
      json(response, status, { error: { type, reason: message }, status })
    }
  })
}

type Created = {
  settings?: { index?: { knn?: boolean; refresh_interval?: string | number } }
  mappings?: { dynamic?: string; properties?: Record<string, Field> }
  aliases?: object
}
type Action = { index: string; alias?: string }
type Meta = { _id: string; version: number; version_type: string }
type Match = Record<string, { query: string; operator?: string; boost?: number }>
type Query = {
  match?: Match
  knn?: Record<string, { vector: number[]; k: number }>
  bool?: { must?: Query[]; should?: Query[]; minimum_should_match?: number }
}
type SearchBody = { query: Query; from?: number; size?: number }

function refresh(index: Index): void {
  index.refreshedAt = Date.now()
  for (const id of index.fresh) index.visible.set(id, index.written.get(id) as Doc)
  index.fresh.clear()
}

/** 1s, -1, null: the default of a second. */
function intervalOf(value: string | number | null | undefined): number {
  if (value === undefined || value === null) return 1000
  if (String(value) === '-1') return -1
  return Number.parseFloat(String(value)) * (String(value).endsWith('ms') ? 1 : 1000)
}

function addFields(index: Index, properties: Record<string, Field>): object {
  for (const [name, field] of Object.entries(properties)) {
    const known = index.properties[name]
    if (known && JSON.stringify(known) !== JSON.stringify(field)) {
      throw new Refusal(400, 'illegal_argument_exception', `mapper [${name}] cannot be changed`)
    }
    index.properties[name] = field
  }
  return { acknowledged: true }
}

function checkFields(index: Index, source: Record<string, unknown>): void {
  for (const [name, value] of Object.entries(source)) {
    const field = index.properties[name]
    if (field === undefined) {
      if (!index.isStrict) continue
      const why = `mapping set to strict, dynamic introduction of [${name}] within [_doc] is not allowed`
      throw new Refusal(400, 'strict_dynamic_mapping_exception', why)
    }
    if (field.type !== 'knn_vector') continue
    const length = Array.isArray(value) ? value.length : 0
    if (length !== field.dimension) {
      const why = `Vector dimension mismatch. Expected: ${field.dimension}, Given: ${length}`
      throw new Refusal(400, 'mapper_parsing_exception', why)
    }
  }
}

/** Undefined: it does not match. */
function scoreOf(index: Index, source: Doc['source'], query: Query): number | undefined {
  if (query.knn) return knnScore(index, source, query.knn)
  if (query.match) return matchScore(index, source, query.match)
  const {
    must = [],
    should = [],
    minimum_should_match = must.length > 0 ? 0 : 1,
  } = query.bool ?? {}
  const musts = must.map((one) => scoreOf(index, source, one))
  const shoulds = should
    .map((one) => scoreOf(index, source, one))
    .filter((one) => one !== undefined)
  if (musts.includes(undefined) || shoulds.length < minimum_should_match) return undefined
  return [...(musts as number[]), ...shoulds].reduce((sum, one) => sum + one, 0)
}

function knnScore(index: Index, source: Doc['source'], knn: NonNullable<Query['knn']>) {
  const [[name, { vector }]] = Object.entries(knn) as [[string, { vector: number[]; k: number }]]
  const field = index.properties[name]
  if (!index.isKnn || field?.type !== 'knn_vector') {
    throw new Refusal(400, 'query_shard_exception', `Field '${name}' is not knn_vector type.`)
  }
  if (field.dimension !== vector.length) {
    throw new Refusal(400, 'query_shard_exception', 'Query vector has invalid dimension')
  }
  const own = source[name] as number[] | undefined
  if (own === undefined) return undefined
  const dot = (a: number[], b: number[]) =>
    a.reduce((sum, one, i) => sum + one * (b[i] as number), 0)
  return (1 + dot(own, vector) / Math.sqrt(dot(own, own) * dot(vector, vector))) / 2
}

function matchScore(index: Index, source: Doc['source'], match: Match): number | undefined {
  const [[path, { query, operator, boost = 1 }]] = Object.entries(match) as [
    [string, Match[string]],
  ]
  const [name = '', sub] = path.split('.')
  const field = sub ? index.properties[name]?.fields?.[sub] : index.properties[name]
  if (field === undefined) return undefined
  const copied = Object.entries(index.properties).filter(([, { copy_to }]) => copy_to === name)
  const texts = [name, ...copied.map(([one]) => one)].map((one) => String(source[one] ?? ''))
  const own = termsOf(texts.join(' '), field.analyzer)
  const asked = termsOf(query, field.analyzer)
  const found = asked.filter((term) => own.includes(term))
  const isMatch = operator === 'and' ? found.length === asked.length : found.length > 0
  if (!isMatch || asked.length === 0) return undefined
  return (boost * found.length) / Math.sqrt(own.length)
}

/** The stems of `english` are cut off more simply than the real ones. */
const termsOf = (text: string, analyzer = 'standard'): string[] =>
  (text.toLowerCase().match(/[\p{L}\p{N}]+/gu) ?? []).map((word) =>
    analyzer === 'english' ? word.replace(/(ing|es|s)$/, '') : word,
  )

async function bodyOf(request: IncomingMessage): Promise<Buffer> {
  const chunks: Buffer[] = []
  for await (const chunk of request) chunks.push(chunk as Buffer)
  return Buffer.concat(chunks)
}

function json(response: ServerResponse, status: number, body: object): void {
  response.writeHead(status, { 'content-type': 'application/json' }).end(JSON.stringify(body))
}

export type Seen = {
  requests: number
  indexes: Record<string, { aliases: string[]; count: number; refreshMs: number }>
}

export type SearchServer = {
  url: string
  mood(mood: Mood): Promise<void>
  seen(): Promise<Seen>
  stop(): Promise<void>
  /** Again on its port, empty. */
  start(): Promise<void>
}

/** As a process. Who starts it stops it. */
export async function startOpenSearch(): Promise<SearchServer> {
  const { url, post, start, stop } = await startStandIn(import.meta.filename)
  return {
    url,
    mood: (mood) => post('/control/mood', mood),
    seen: async () => (await (await fetch(`${url}/control/seen`)).json()) as Seen,
    start,
    stop,
  }
}

if (import.meta.main) {
  const { values } = parseArgs({ options: { port: { type: 'string' } } })
  const server = serve()
  server.keepAliveTimeout = 30_000
  await listenAsStandIn(server, values.port)
}
