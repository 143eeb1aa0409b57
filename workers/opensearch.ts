// OpenSearch over its HTTP API, as far as items need it. Searches and writes go through aliases: `items` is what is
// searched, `items-next` the index that is being built to replace it (fleet items:reindex). Every document has the
// version of its item (external_gte), so that what comes late changes nothing, also after a deletion: a deleted item is an
// empty document, which no search finds, until the next rebuild leaves it out.
//
// Whoever writes an item writes `items-next` first and `items` second: if the two change places in between, the first write
// has reached what is searched now. And it looks whether `items-next` is there after it knows of the change: what it
// misses is read from Postgres by the rebuild, which begins its reading after that.

import type { IndexedItem } from '../db/items.ts'
import { readRetryAfter } from '../domain/retryAfter.ts'
import { fromBytes } from '../domain/vectors.ts'

/** What kept a request from being done: nobody answers or it is broken, too much was asked of it, it refuses this. */
export class SearchFault extends Error {
  readonly is: 'away' | 'busy' | 'refused'
  readonly status: number
  readonly afterMs: number
  constructor(
    is: SearchFault['is'],
    message: string,
    more: { status?: number; afterMs?: number; cause?: unknown } = {},
  ) {
    super(message, { cause: more.cause })
    this.name = 'SearchFault'
    this.is = is
    this.status = more.status ?? 0
    this.afterMs = more.afterMs ?? 0
  }
}

export type Write = { id: string; version: string; item: IndexedItem | undefined }

/** What became of one: it is there, or something newer is; not now; never. */
export type Written = { is: 'there' } | { is: 'busy' } | { is: 'refused' | 'failed'; why: string }

export type Aliases = {
  /** The index that is searched, and the one being built. */
  live: string | undefined
  next: string | undefined
}

export type OpenSearch = ReturnType<typeof openSearch>

export type OpenSearchOptions = {
  /** May hold user and password. */
  url: string
  /** The alias that is searched. */
  alias: string
  timeoutMs: number
}

const whyMax = 300

export function openSearch({ url, alias, timeoutMs }: OpenSearchOptions) {
  const { origin, pathname, username, password } = new URL(url)
  const base = origin + pathname.replace(/\/+$/, '')
  const credentials = `${decodeURIComponent(username)}:${decodeURIComponent(password)}`
  const authorization =
    username === '' ? undefined : `Basic ${Buffer.from(credentials).toString('base64')}`
  const next = `${alias}-next`
  /** Fields of spaces that an index is known to have. */
  const mapped = new Set<string>()

  async function call(method: string, path: string, body?: object | string): Promise<Answer> {
    const response = await fetch(`${base}/${path}`, {
      method,
      headers: {
        ...(authorization && { authorization }),
        ...(body !== undefined && {
          'content-type': typeof body === 'string' ? 'application/x-ndjson' : 'application/json',
        }),
      },
      ...(body !== undefined && { body: typeof body === 'string' ? body : JSON.stringify(body) }),
      redirect: 'error',
      signal: AbortSignal.timeout(timeoutMs),
    }).catch((error) => {
      throw faultOf(error, timeoutMs)
    })
    const text = await response.text().catch((error) => {
      throw faultOf(error, timeoutMs)
    })
    return answerOf(response, text)
  }

  /** An index or a field that is not there yet is no fault. */
  async function find(body: object): Promise<Hit[] | undefined> {
    try {
      const { hits } = (await call('POST', `${alias}/_search`, body)) as { hits: { hits: Hit[] } }
      return hits.hits
    } catch (error) {
      if (error instanceof SearchFault && error.is === 'refused') return undefined
      throw error
    }
  }

  async function aliases(): Promise<Aliases> {
    const found = (await call('GET', `_alias/${alias}*`).catch((error) => {
      if (error instanceof SearchFault && error.status === 404) return {}
      throw error
    })) as Record<string, { aliases: object }>
    const indexOf = (name: string) =>
      Object.entries(found).find(([, { aliases: known }]) => Object.hasOwn(known, name))?.[0]
    return { live: indexOf(alias), next: indexOf(next) }
  }

  /** Vectors of each model have a field of their own: an index is made before it is known which there will be. */
  async function mapSpaces(index: string, writes: readonly Write[]): Promise<void> {
    for (const { item } of writes) {
      if (!item?.space || !item.dimensions) continue
      const key = `${index} ${item.space}`
      if (mapped.has(key)) continue
      const properties = { [fieldOf(item.space)]: vectorField(item.dimensions) }
      await call('PUT', `${index}/_mapping`, { properties })
      mapped.add(key)
    }
  }

  /** @returns what became of each, or that there is no such alias any more */
  async function bulk(to: string, writes: readonly Write[]): Promise<Written[] | 'gone'> {
    const lines = writes.flatMap(({ id, version, item }) => [
      `{"index":{"_id":"${id}","version":${version},"version_type":"external_gte"}}`,
      item === undefined ? '{}' : documentOf(item),
    ])
    const path = `${to}/_bulk?require_alias=true&filter_path=errors,items.*.status,items.*.error`
    const answer = (await call('POST', path, `${lines.join('\n')}\n`)) as Bulk
    if (!answer.errors) return writes.map(() => ({ is: 'there' }))
    const states = answer.items.map(({ index }) => index)
    if (states.some(({ error }) => error?.type === 'index_not_found_exception')) return 'gone'
    // A field that another process has not made known to this one.
    if (states.some(({ error }) => error?.type === 'strict_dynamic_mapping_exception')) {
      mapped.clear()
    }
    return states.map(writtenOf)
  }

  return {
    alias,
    next,
    call,
    aliases,
    /** The next index only: for what reads all items. @throws SearchFault */
    async fill(index: string, writes: readonly Write[]): Promise<Written[] | 'gone'> {
      await mapSpaces(index, writes)
      return await bulk(next, writes)
    },
    /** To all there is. @returns what became of each, the worse of the two; @throws SearchFault */
    async write(writes: readonly Write[], to: Aliases): Promise<Written[]> {
      const results: Written[][] = []
      for (const [name, index] of [
        [next, to.next],
        [alias, to.live],
      ] as const) {
        if (index === undefined) continue
        try {
          await mapSpaces(index, writes)
        } catch (error) {
          // It went while we looked, and the other alias is what it became.
          if (!(error instanceof SearchFault && error.status === 404)) throw error
        }
        const written = await bulk(name, writes)
        if (written !== 'gone') results.push(written)
      }
      return writes.map((_, i) => {
        const all = results.map((result) => result[i] as Written)
        return all.find(({ is }) => is !== 'there') ?? { is: 'there' }
      })
    },
    /** Ids, the best first. Undefined: there is no index yet. @throws SearchFault */
    async byWords(asked: { q: string; limit: number; offset: number }) {
      const { q: query, limit: size, offset: from } = asked
      const all = (field: string) => ({ match: { [field]: { query, operator: 'and' } } })
      const words = { should: [all('words'), all('words.english')], minimum_should_match: 1 }
      const hits = await find({
        query: {
          bool: { must: [{ bool: words }], should: [{ match: { title: { query, boost: 2 } } }] },
        },
        from,
        size,
        _source: false,
        track_total_hits: false,
      })
      return hits?.map(({ _id }) => _id)
    },
    /** The likest first; score is the cosine. Undefined: there is no index, or no such vector in it. */
    async byLikeness(space: number, vector: Float32Array, k: number) {
      const knn = { [fieldOf(space)]: { vector: numbersOf(vector), k } }
      const hits = await find({ query: { knn }, size: k, _source: false })
      // As cosinesimil tells it: (1 + cosine) / 2.
      return hits?.map(({ _id, _score }) => ({ id: _id, score: 2 * _score - 1 }))
    },
  }
}

type Answer = unknown
type Hit = { _id: string; _score: number }
type Bulk = {
  errors: boolean
  items: { index: { status: number; error?: { type: string; reason?: string } } }[]
}

function writtenOf({ status, error }: Bulk['items'][number]['index']): Written {
  // 409: something newer is there.
  if (status < 300 || status === 409) return { is: 'there' }
  if (status === 429) return { is: 'busy' }
  const why = `OpenSearch: ${status} ${error?.type ?? ''} ${error?.reason ?? ''}`.slice(0, whyMax)
  const isOurs = status === 400 && error?.type !== 'strict_dynamic_mapping_exception'
  return { is: isOurs ? 'refused' : 'failed', why }
}

function answerOf({ status, headers }: Response, text: string): Answer {
  if (status < 300) return text === '' ? {} : parse(text, status)
  const said = (parseLoosely(text) as { error?: { type?: string; reason?: string } | string }).error
  const detail = typeof said === 'object' ? `${said.type}: ${said.reason}` : String(said ?? '')
  const message = `OpenSearch answered ${status} ${detail}`.trim().slice(0, whyMax)
  if (status === 429) {
    throw new SearchFault('busy', message, {
      status,
      afterMs: readRetryAfter(headers.get('retry-after')) ?? 0,
    })
  }
  // 401 and 403: our access is wrong, whatever is asked.
  const is = status >= 500 || status === 401 || status === 403 ? 'away' : 'refused'
  throw new SearchFault(is, message, { status })
}

function parse(text: string, status: number): unknown {
  try {
    return JSON.parse(text)
  } catch (cause) {
    throw new SearchFault('away', `OpenSearch answered ${status} without JSON`, { status, cause })
  }
}

function parseLoosely(text: string): object {
  try {
    return Object(JSON.parse(text))
  } catch {
    return {}
  }
}

function faultOf(error: unknown, timeoutMs: number): SearchFault {
  const { name, message, cause } = error as Error & { cause?: { code?: string; message?: string } }
  const why =
    name === 'TimeoutError'
      ? `OpenSearch did not answer within ${timeoutMs} ms`
      : `OpenSearch cannot be reached: ${cause?.code ?? ''} ${cause?.message || message}`
  return new SearchFault('away', why, { cause: error })
}

const fieldOf = (space: number): string => `embedding_${space}`

const vectorField = (dimension: number) => ({
  type: 'knn_vector',
  dimension,
  method: { name: 'hnsw', engine: 'lucene', space_type: 'cosinesimil' },
})

const text = { type: 'text', fields: { english: { type: 'text', analyzer: 'english' } } }

/** A new index. `strict`: a field that nobody made known would be kept and never found. */
export const newIndex = (aliases: object) => ({
  settings: { index: { knn: true } },
  mappings: {
    dynamic: 'strict',
    // All of it is made from Postgres: what was sent is not kept beside what it became.
    _source: { excludes: ['embedding_*'] },
    properties: {
      title: { type: 'text', copy_to: 'words' },
      description: { type: 'text', copy_to: 'words' },
      words: text,
    },
  },
  aliases,
})

function documentOf({ title, description, space, vector }: IndexedItem): string {
  return JSON.stringify({
    title,
    description,
    ...(space !== null && vector !== null && { [fieldOf(space)]: numbersOf(fromBytes(vector)) }),
  })
}

/** Seven places: a float4 has no more, and its double would have twenty. */
const numbersOf = (vector: Float32Array): number[] =>
  Array.from(vector, (value) => Math.round(value * 1e7) / 1e7)
