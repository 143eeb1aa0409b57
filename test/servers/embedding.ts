// A stand-in for an embedding vendor with an OpenAI-compatible API, as a process of its own: limits on requests and tokens,
// as windows that begin anew or as buckets that fill, told in true x-ratelimit-* headers; 429 with Retry-After beyond them;
// slow, failing, silent, talking nonsense. Texts with words in common have vectors that are alike. What it saw, and
// when, is read over its control port. Ends with whoever started it.
//
//   node test/servers/embedding.ts [--port 0] [--key sk-test]
//   GET  /control/calls                all calls
//   POST /control/mood  {answer, …}    how it answers from now on
//   POST /control/reset                forgets

import { createHash } from 'node:crypto'
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import { setTimeout as sleep } from 'node:timers/promises'
import { parseArgs } from 'node:util'
import { listenAsStandIn, startStandIn } from './standIn.ts'

export type Mood = {
  answer?:
    | 'well'
    | 'fault'
    | 'html'
    | 'silence'
    | 'hang-up'
    | 'nonsense'
    | 'zeros'
    | 'huge'
    | 'quota'
    | 'redirect'
  latencyMs?: number
  dimensions?: number
  /** Null: none, and no headers that tell of them. */
  limits?: { requests: number; tokens: number; windowMs: number; kind: 'window' | 'bucket' } | null
  /** Texts with this word in them are refused as such (400), or make it fail (500). */
  rejects?: string
  failsAt?: string
  /** The next calls are refused with 429 and this Retry-After, one each, s. */
  limitNext?: number[]
}

export type Call = {
  /** When it came, ms of the epoch. */
  at: number
  status: number
  text: string
  image: string | undefined
  tokens: number
}

export const apiKey = 'sk-test-0123456789abcdef0123456789'
export const model = 'stand-in-embed'

type Meter = { left: number; at: number }

function serve(key: string) {
  const initial: Required<Mood> = {
    answer: 'well',
    latencyMs: 5,
    dimensions: 64,
    limits: null,
    rejects: '',
    failsAt: '',
    limitNext: [],
  }
  const calls: Call[] = []
  let mood = initial
  let meters: Record<'requests' | 'tokens', Meter> | undefined
  const now = () => performance.timeOrigin + performance.now()

  function refill(): void {
    const { limits } = mood
    if (limits === null) return
    const at = now()
    meters ??= { requests: { left: limits.requests, at }, tokens: { left: limits.tokens, at } }
    for (const kind of ['requests', 'tokens'] as const) {
      const meter = meters[kind]
      const passed = at - meter.at
      if (limits.kind === 'bucket') {
        meter.left = Math.min(limits[kind], meter.left + (passed / limits.windowMs) * limits[kind])
        meter.at = at
      } else if (passed >= limits.windowMs) {
        meter.left = limits[kind]
        meter.at = at - (passed % limits.windowMs)
      }
    }
  }

  /** Takes from both, or says how long to wait, ms. */
  function take(tokens: number): number {
    const { limits } = mood
    if (limits === null || meters === undefined) return 0
    const wants = { requests: 1, tokens }
    const waits = (['requests', 'tokens'] as const).map((kind) => {
      const meter = (meters as NonNullable<typeof meters>)[kind]
      if (meter.left >= wants[kind]) return 0
      return limits.kind === 'bucket'
        ? ((wants[kind] - meter.left) / limits[kind]) * limits.windowMs
        : meter.at + limits.windowMs - now()
    })
    const wait = Math.max(...waits)
    if (wait > 0) return wait
    meters.requests.left -= 1
    meters.tokens.left -= tokens
    return 0
  }

  function tellLimits(response: ServerResponse): void {
    const { limits } = mood
    if (limits === null || meters === undefined) return
    for (const kind of ['requests', 'tokens'] as const) {
      const { left, at } = meters[kind]
      const resetMs =
        limits.kind === 'bucket'
          ? ((limits[kind] - left) / limits[kind]) * limits.windowMs
          : at + limits.windowMs - now()
      response.setHeader(`x-ratelimit-limit-${kind}`, limits[kind])
      response.setHeader(`x-ratelimit-remaining-${kind}`, Math.floor(left))
      response.setHeader(`x-ratelimit-reset-${kind}`, durationOf(resetMs))
    }
  }

  async function embed(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const at = now()
    const body = (await bodyOf(request)).toString()
    const refuse = (status: number, code: string, message: string) => {
      json(response, status, { error: { message, type: 'invalid_request_error', code } })
      return status
    }
    if (request.headers.authorization !== `Bearer ${key}`) {
      const given = String(request.headers.authorization).replace(/^Bearer /, '')
      refuse(401, 'invalid_api_key', `Incorrect API key provided: ${given}.`)
      return
    }
    const asked = JSON.parse(body) as Asked
    const { text, image } = inputOf(asked)
    const tokens = Math.ceil(text.length / 3) + (image === undefined ? 0 : 765)
    const call: Call = { at, status: 0, text, image, tokens }
    calls.push(call)
    refill()
    const wait =
      mood.limitNext.length > 0 ? (mood.limitNext.shift() as number) * 1000 : take(tokens)
    tellLimits(response)
    if (wait > 0) {
      response.setHeader('retry-after', String(Math.ceil(wait) / 1000))
      call.status = refuse(429, 'rate_limit_exceeded', 'Rate limit reached')
      return
    }
    await sleep(mood.latencyMs)
    if (asked.model !== model) {
      call.status = refuse(404, 'model_not_found', `The model ${asked.model} does not exist`)
    } else if (mood.answer === 'quota') {
      call.status = refuse(429, 'insufficient_quota', 'You exceeded your current quota')
    } else if (mood.rejects !== '' && text.includes(mood.rejects)) {
      call.status = refuse(400, 'invalid_image_url', 'Invalid content')
    } else if (mood.answer === 'fault' || (mood.failsAt !== '' && text.includes(mood.failsAt))) {
      call.status = refuse(500, 'server_error', 'The server had an error')
    } else call.status = answer(request, response, text, tokens)
  }

  /** @returns its status; 0: none was given */
  function answer(
    request: IncomingMessage,
    response: ServerResponse,
    text: string,
    tokens: number,
  ) {
    switch (mood.answer) {
      case 'silence':
        return 0
      case 'hang-up':
        request.socket.destroy()
        return 0
      case 'html':
        response.writeHead(503, { 'content-type': 'text/html' }).end('<h1>503</h1>')
        return 503
      case 'redirect':
        response.writeHead(302, { location: 'http://127.0.0.1:1/steal' }).end()
        return 302
      case 'nonsense':
        response.writeHead(200, { 'content-type': 'application/json' }).end('{"data":[{"emb')
        return 200
      case 'huge':
        response.writeHead(200, { 'content-type': 'application/json' }).end('9'.repeat(3_000_000))
        return 200
    }
    const embedding =
      mood.answer === 'zeros' ? Array(mood.dimensions).fill(0) : vectorOf(text, mood.dimensions)
    json(response, 200, {
      object: 'list',
      data: [{ object: 'embedding', index: 0, embedding }],
      model,
      usage: { prompt_tokens: tokens, total_tokens: tokens },
    })
    return 200
  }

  async function control(path: string, request: IncomingMessage, response: ServerResponse) {
    if (path === '/control/calls') return json(response, 200, { calls })
    const body = await bodyOf(request)
    if (path === '/control/mood') mood = { ...mood, ...JSON.parse(body.toString()) }
    else {
      calls.length = 0
      mood = { ...initial, limitNext: [] }
    }
    meters = undefined
    json(response, 200, {})
  }

  return createServer(async (request, response) => {
    const { pathname } = new URL(request.url ?? '/', 'http://localhost')
    if (pathname.startsWith('/control/')) return await control(pathname, request, response)
    if (pathname === '/v1/embeddings' && request.method === 'POST') {
      return await embed(request, response).catch(() => json(response, 400, { error: {} }))
    }
    json(response, 404, { error: { message: 'Unknown request URL' } })
  })
}

type Part = { type: string; text?: string; image_url?: { url: string } }
type Asked = { model: string; input?: string; messages?: { content: Part[] }[] }

function inputOf({ input, messages }: Asked): { text: string; image: string | undefined } {
  if (input !== undefined) return { text: input, image: undefined }
  const parts = messages?.[0]?.content ?? []
  return {
    text: parts.map(({ text = '' }) => text).join(''),
    image: parts.find(({ type }) => type === 'image_url')?.image_url?.url,
  }
}

/** The sum of a random direction for each word: what has words in common points the same way. */
export function vectorOf(text: string, dimensions: number): number[] {
  const sum = new Array<number>(dimensions).fill(0)
  for (const word of text.toLowerCase().match(/\p{L}+|\d+/gu) ?? ['']) {
    for (let i = 0; i < dimensions; i++) {
      if (i % 16 === 0) bytes = createHash('sha256').update(`${word} ${i}`).digest()
      sum[i] = (sum[i] as number) + bytes.readInt16LE((i % 16) * 2) / 32_768
    }
  }
  return sum
}
let bytes = Buffer.alloc(32)

/** As OpenAI writes it: 6m0s, 1.5s, 20ms. */
function durationOf(ms: number): string {
  const left = Math.max(0, ms)
  if (left < 1000) return `${Math.ceil(left)}ms`
  const seconds = left / 1000
  if (seconds < 60) return `${seconds.toFixed(3)}s`
  return `${Math.floor(seconds / 60)}m${(seconds % 60).toFixed(3)}s`
}

async function bodyOf(request: IncomingMessage): Promise<Buffer> {
  const chunks: Buffer[] = []
  for await (const chunk of request) chunks.push(chunk as Buffer)
  return Buffer.concat(chunks)
}

function json(response: ServerResponse, status: number, body: object): void {
  response.writeHead(status, { 'content-type': 'application/json' }).end(JSON.stringify(body))
}

export type EmbeddingVendor = {
  /** With /v1. */
  url: string
  mood(mood: Mood): Promise<void>
  reset(): Promise<void>
  calls(): Promise<Call[]>
  stop(): Promise<void>
  /** Again on its port. */
  start(): Promise<void>
}

/** As a process. Who starts it stops it. */
export async function startEmbedding(): Promise<EmbeddingVendor> {
  const { url: base, post, start, stop } = await startStandIn(import.meta.filename)
  return {
    url: `${base}/v1`,
    mood: (mood) => post('/control/mood', mood),
    reset: () => post('/control/reset', {}),
    calls: async () =>
      ((await (await fetch(`${base}/control/calls`)).json()) as { calls: Call[] }).calls,
    stop,
    start,
  }
}

if (import.meta.main) {
  const text = { type: 'string' } as const
  const { values } = parseArgs({ options: { port: text, key: text } })
  const server = serve(values.key ?? apiKey)
  await listenAsStandIn(server, values.port)
}
