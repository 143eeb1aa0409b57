// Remote systems that have events, as a process of their own: so many HTTP servers, each a source with a port, that serve
// `?after_id=&limit=` and write down when each request came and was over. A control port sets how a source behaves and
// gives its record. `startSources` starts such a process and ends it with the test file.

import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http'
import type { AddressInfo, createServer as createTcpServer } from 'node:net'
import { createInterface } from 'node:readline'
import { setTimeout as sleep } from 'node:timers/promises'
import { gzipSync } from 'node:zlib'

export const moods = [
  'well',
  'bare',
  'gzip',
  'lines',
  'error',
  'busy',
  'hang',
  'drip',
  'huge',
  'bomb',
  'garbage',
  'html',
  'unsorted',
  'repeated',
  'behind',
  'text',
  'fraction',
  'negative',
  'overflow',
  'noPayload',
  'redirect',
  'half',
  'halfChunked',
  'unheard',
] as const
export type Mood = (typeof moods)[number]

export type Behaviour = {
  mood: Mood
  /** Before the answer. */
  latencyMs: number
  /** Ids are firstId, firstId + step, …; text, as some are above 2^53. */
  firstId: string
  step: number
  /** Events there are now, and how many more come a second. */
  count: number
  perSecond: number
  /** At most in a page, whatever is asked for; 0: what is asked for. */
  pageMax: number
  /** Answers a page that was answered before from memory: a fast source. */
  cache: boolean
  /** Bytes of filling in a payload. */
  payloadBytes: number
  /** Tells the newest id. */
  tells: boolean
  /** Indexes of events that are not visible yet. */
  hidden: number[]
  /** The header it wants; others get 401. */
  authorization: string
}

const usual: Behaviour = {
  mood: 'well',
  latencyMs: 0,
  firstId: '1',
  step: 1,
  count: 0,
  perSecond: 0,
  pageMax: 0,
  cache: false,
  payloadBytes: 40,
  tells: false,
  hidden: [],
  authorization: '',
}

/** Of one request, ms by the source's own clock. `over`: null while it is under way. */
export type Asked = { at: number; over: number | null; after: string; events: number }
export type SourceRecord = { requests: Asked[]; count: number; lastId: string }

class EventSource {
  behaviour: Behaviour = { ...usual }
  requests: Asked[] = []
  #grownAt = performance.now()
  readonly #pages = new Map<string, Buffer>()

  set(given: Partial<Behaviour>): void {
    this.grow()
    this.behaviour = { ...this.behaviour, ...given }
    this.#pages.clear()
  }

  grow(): number {
    const { behaviour } = this
    const now = performance.now()
    const more = Math.floor(((now - this.#grownAt) / 1000) * behaviour.perSecond)
    if (behaviour.perSecond === 0) this.#grownAt = now
    else if (more > 0) {
      behaviour.count += more
      this.#grownAt += (more * 1000) / behaviour.perSecond
    }
    return behaviour.count
  }

  idOf(index: number): bigint {
    return BigInt(this.behaviour.firstId) + BigInt(index) * BigInt(this.behaviour.step)
  }

  record(): SourceRecord {
    const count = this.grow()
    return {
      requests: this.requests,
      count,
      lastId: count > 0 ? String(this.idOf(count - 1)) : '0',
    }
  }

  /** JSON texts of the events after an id. */
  events(after: bigint, limit: number): string[] {
    const { firstId, step, pageMax, payloadBytes, hidden } = this.behaviour
    const count = this.grow()
    const before = after - BigInt(firstId)
    let index = before < 0n ? 0 : Number(before / BigInt(step)) + 1
    const most = pageMax > 0 ? Math.min(limit, pageMax) : limit
    const found: string[] = []
    for (; index < count && found.length < most; index++) {
      if (!hidden.includes(index)) found.push(eventText(this.idOf(index), index, payloadBytes))
    }
    return found
  }

  page(query: string, after: bigint, limit: number): Buffer {
    const kept = this.#pages.get(query)
    if (kept) return kept
    const events = this.events(after, limit)
    const newest = this.behaviour.tells ? `,"last_id":${this.record().lastId}` : ''
    const text = { bare: `[${events}]`, lines: events.map((one) => `${one}\n`).join('') }
    const body = Buffer.from(
      text[this.behaviour.mood as 'bare'] ?? `{"events":[${events.join(',')}]${newest}}`,
    )
    if (this.behaviour.cache && events.length === limit) this.#pages.set(query, body)
    return body
  }
}

const eventText = (id: bigint, index: number, bytes: number): string =>
  `{"id":${id},"payload":{"n":${index},"text":"a \\"quoted\\" tab\\t, ünï","fill":"${'x'.repeat(bytes)}"}}`

type Answering = { source: EventSource; after: bigint; limit: number; query: string }

const json = { 'content-type': 'application/json' }
const wrong = (text: string) => (_: Answering, response: ServerResponse) => {
  response.writeHead(200, json).end(text)
}

const answers: Record<Mood, (asked: Answering, response: ServerResponse) => unknown> = {
  well: whole,
  bare: whole,
  lines: whole,
  gzip(asked, response) {
    const body = gzipSync(asked.source.page(asked.query, asked.after, asked.limit))
    response.writeHead(200, { ...json, 'content-encoding': 'gzip' }).end(body)
  },
  error: (_, response) => response.writeHead(500).end('{"error":"password=hunter2"}'),
  busy: (_, response) => response.writeHead(429, { 'retry-after': '7' }).end(),
  hang() {},
  async drip(asked, response) {
    response.writeHead(200, json)
    for (const byte of asked.source.page(asked.query, asked.after, asked.limit)) {
      if (response.destroyed) return
      response.write(Buffer.of(byte))
      await sleep(50)
    }
  },
  huge: (_, response) => flood(response, Buffer.alloc(1_000_000, ' '), 1000),
  async bomb(_, response) {
    const packed = gzipSync(Buffer.alloc(40_000_000, ' '))
    response.writeHead(200, { ...json, 'content-encoding': 'gzip' }).end(packed)
  },
  garbage: wrong('{"events":[{"id":1,"payload":{broken}}]}'),
  html: wrong('<html>login</html>'),
  unsorted: wrong('[{"id":8,"payload":1},{"id":7,"payload":1}]'),
  repeated: wrong('[{"id":8,"payload":1},{"id":8,"payload":1}]'),
  behind({ after }, response) {
    const id = after > 0n ? after : 1n
    response.writeHead(200, json).end(`[{"id":${id},"payload":1}]`)
  },
  text: wrong('[{"id":"1","payload":1}]'),
  fraction: wrong('[{"id":1.5,"payload":1}]'),
  negative: wrong('[{"id":-1,"payload":1}]'),
  overflow: wrong('[{"id":9223372036854775808,"payload":1}]'),
  noPayload: wrong('[{"id":1}]'),
  redirect: (_, response) =>
    response.writeHead(302, { location: 'http://127.0.0.1:1/x?k=secret' }).end(),
  half(asked, response) {
    const body = asked.source.page(asked.query, asked.after, asked.limit)
    response.writeHead(200, { ...json, 'content-length': body.length })
    response.write(body.subarray(0, body.length / 2), () => response.destroy())
  },
  halfChunked(asked, response) {
    const body = asked.source.page(asked.query, asked.after, asked.limit)
    response.writeHead(200, json)
    response.write(body.subarray(0, body.length / 2), () => response.destroy())
  },
  unheard: (_, response) => response.destroy(),
}

function whole({ source, query, after, limit }: Answering, response: ServerResponse): void {
  const body = source.page(query, after, limit)
  response.writeHead(200, { ...json, 'content-length': body.length }).end(body)
}

async function flood(response: ServerResponse, chunk: Buffer, times: number): Promise<void> {
  response.writeHead(200, json)
  for (let i = 0; i < times && !response.destroyed; i++) {
    if (!response.write(chunk))
      await Promise.race([once(response, 'drain'), once(response, 'close')])
  }
  response.end()
}

async function serve(source: EventSource, request: IncomingMessage, response: ServerResponse) {
  const url = new URL(request.url ?? '/', 'http://source')
  const after = url.searchParams.get('after_id') ?? '0'
  const limit = Number(url.searchParams.get('limit') ?? 100)
  const asked: Asked = { at: performance.now(), over: null, after, events: 0 }
  source.requests.push(asked)
  // Over is when the source has said all it has to say, or the other side hung up. Not when Node tells that all was
  // sent: in a busy process that is told late, and the gap after it looks too short.
  const over = () => {
    asked.over ??= performance.now()
  }
  response.once('close', over)
  const { end } = response
  response.end = ((...given: unknown[]) => {
    over()
    return (end as (...given: unknown[]) => unknown).apply(response, given)
  }) as typeof response.end
  response.on('error', () => {})
  const { latencyMs, mood, authorization } = source.behaviour
  if (latencyMs > 0) await sleep(latencyMs)
  if (authorization !== '' && request.headers.authorization !== authorization) {
    return response.writeHead(401).end()
  }
  await answers[mood]({ source, after: BigInt(after), limit, query: url.search }, response)
}

async function listen(server: Server | ReturnType<typeof createTcpServer>): Promise<number> {
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  return (server.address() as AddressInfo).port
}

async function run(count: number): Promise<void> {
  const sources = Array.from({ length: count }, () => new EventSource())
  const ports = await Promise.all(
    sources.map((source) =>
      listen(createServer((request, response) => void serve(source, request, response))),
    ),
  )
  const control = createServer(async (request, response) => {
    let body = ''
    for await (const chunk of request) body += chunk
    const { pathname } = new URL(request.url ?? '/', 'http://control')
    if (pathname === '/set') {
      const { which, to } = JSON.parse(body) as { which: number[]; to: Partial<Behaviour> }
      for (const i of which) sources[i]?.set(to)
    }
    const answer = pathname === '/record' ? sources.map((source) => source.record()) : {}
    response.writeHead(200, json).end(JSON.stringify(answer))
  })
  const controlPort = await listen(control)
  process.stdout.write(`${JSON.stringify({ ports, controlPort })}\n`)
  // Whoever started us is gone.
  process.stdin.on('end', () => process.exit(0)).resume()
}

export type Sources = {
  ports: number[]
  process: ChildProcess
  /** For sources by their place; all when left out. */
  set(to: Partial<Behaviour>, which?: number[]): Promise<void>
  record(): Promise<SourceRecord[]>
  close(): Promise<void>
}

const open = new Set<Sources>()

/** To be called at the end of a test file. */
export async function closeSources(): Promise<void> {
  for (const sources of open) await sources.close()
}

export async function startSources(count: number): Promise<Sources> {
  const child = spawn(process.execPath, [import.meta.filename, String(count)], {
    stdio: ['pipe', 'pipe', 'inherit'],
  })
  const [line] = (await once(createInterface({ input: child.stdout }), 'line')) as [string]
  const { ports, controlPort } = JSON.parse(line) as { ports: number[]; controlPort: number }
  const ask = async (path: string, body: unknown): Promise<unknown> => {
    const url = `http://127.0.0.1:${controlPort}${path}`
    return await (await fetch(url, { method: 'POST', body: JSON.stringify(body) })).json()
  }
  const sources: Sources = {
    ports,
    process: child,
    async set(to, which = ports.map((_, i) => i)) {
      await ask('/set', { which, to })
    },
    record: async () => (await ask('/record', {})) as SourceRecord[],
    async close() {
      if (!open.delete(sources) || child.exitCode !== null) return
      const gone = once(child, 'exit')
      child.kill('SIGKILL')
      await gone
    },
  }
  open.add(sources)
  return sources
}

/** The shortest times between two requests, ms: from begin to begin, and from the end of one to the begin of the next. */
export function leastGaps(requests: readonly Asked[]): { begins: number; between: number } {
  const inTurn = requests.toSorted((a, b) => a.at - b.at)
  let [begins, between] = [Number.POSITIVE_INFINITY, Number.POSITIVE_INFINITY]
  for (const [i, request] of inTurn.entries()) {
    const before = inTurn[i - 1]
    if (before === undefined) continue
    begins = Math.min(begins, request.at - before.at)
    between = Math.min(between, request.at - (before.over ?? Number.POSITIVE_INFINITY))
  }
  return { begins, between }
}

if (import.meta.main) await run(Number(process.argv[2] ?? 1))
