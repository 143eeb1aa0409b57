// Asks a source over HTTP: JSON or one event a line, gzip, headers with secrets of the environment. One request is one
// request: redirects are not followed, nothing is tried again. It ends within the source's time, takes no more bytes than
// it may, also unpacked, and says of every failure what was wrong.

import { Agent as HttpAgent, type IncomingMessage, request as requestHttp } from 'node:http'
import { Agent as HttpsAgent, request as requestHttps } from 'node:https'
import type { Readable } from 'node:stream'
import { createGunzip, createInflate } from 'node:zlib'
import {
  askedRestMaxMs,
  countOf,
  type EventFetcher,
  type FetchOptions,
  firstOf,
  type Page,
  type Source,
  SourceFault,
} from '../../domain/loader.ts'
import { redact } from '../../domain/redact.ts'
import { fillIn } from '../../domain/sources.ts'
import { explainTls } from '../kept.ts'
import type { Budget } from './budget.ts'
import { type Buffers, createBuffers } from './buffers.ts'
import { readLines, readReply } from './page.ts'

export type HttpFetcherOptions = {
  bytesMax: number
  budget: Budget
  /** Of the environment. */
  secretOf(name: string): string | undefined
}

const idleSocketMs = 15_000
/** A reply that says it has so many bytes has room for them from the first on. */
const trustedMax = 512 * 1024

export function openHttpFetcher({ bytesMax, budget, secretOf }: HttpFetcherOptions): EventFetcher {
  const agentOptions = { keepAlive: true, maxFreeSockets: 4, timeout: idleSocketMs }
  const buffers = createBuffers()
  const agents = { 'http:': new HttpAgent(agentOptions), 'https:': new HttpsAgent(agentOptions) }

  async function fetch(
    source: Source,
    afterId: bigint,
    limit: number,
    options: FetchOptions,
  ): Promise<Page> {
    // Not AbortSignal.timeout and any: thousands of them would outlive their requests.
    const ending = new AbortController()
    const { signal } = ending
    const late = new SourceFault(`no whole reply within ${source.timeoutMs} ms`)
    const timer = setTimeout(() => ending.abort(late), source.timeoutMs)
    const stop = () => ending.abort(options.signal.reason)
    if (options.signal.aborted) stop()
    options.signal.addEventListener('abort', stop, { once: true })
    const share = budget.share()
    const reply = new Reply(buffers)
    const free = () => {
      share.free()
      reply.free()
    }
    try {
      const response = await ask(source, afterId, limit, signal, options.sending)
      refuseUnlessGood(response)
      const lines = source.type === 'ndjson' ? limit : undefined
      const { body, isCut } = await readBody(response, { bytesMax, lines, signal, share, reply })
      share.whole()
      const { events, newestId } = lines
        ? { events: readLines(body), newestId: undefined }
        : readReply(body)
      const told = newestId ?? newestOf(response)
      const more = isCut || countOf(events) >= limit
      return { events: firstOf(events, limit), more, newestId: told, free }
    } catch (error) {
      free()
      if (signal.aborted) throw signal.reason
      throw explained(error)
    } finally {
      clearTimeout(timer)
      options.signal.removeEventListener('abort', stop)
    }
  }

  function ask(
    source: Source,
    afterId: bigint,
    limit: number,
    signal: AbortSignal,
    sending: () => void,
  ): Promise<IncomingMessage> {
    const url = new URL(source.url)
    url.searchParams.set(source.afterParam, String(afterId))
    url.searchParams.set(source.limitParam, String(limit))
    const protocol = url.protocol as keyof typeof agents
    const send = protocol === 'https:' ? requestHttps : requestHttp
    const headers = { ...defaultHeaders(source), ...secretsOf(source, secretOf) }
    const { promise, resolve, reject } = Promise.withResolvers<IncomingMessage>()
    const request = send(url, { agent: agents[protocol], headers, signal })
    request.once('response', resolve).on('error', reject)
    // Not before there is a connection: to make one may have taken as long as the lock lasts.
    request.once('socket', (socket) => {
      const leave = () => {
        try {
          sending()
          request.end()
        } catch (error) {
          reject(error)
          request.destroy()
        }
      }
      if (socket.connecting || isShakingHands(socket)) {
        socket.once(protocol === 'https:' ? 'secureConnect' : 'connect', leave)
      } else leave()
    })
    return promise
  }

  return {
    fetch,
    async close() {
      for (const agent of Object.values(agents)) agent.destroy()
    },
  }
}

/** Not in the types of Node. */
const isShakingHands = (socket: object): boolean =>
  (socket as { secureConnecting?: boolean }).secureConnecting === true

const defaultHeaders = ({ type }: Source) => ({
  accept: type === 'ndjson' ? 'application/x-ndjson' : 'application/json',
  'accept-encoding': 'gzip, deflate',
  'user-agent': 'flotilla-loader',
})

function secretsOf({ headers }: Source, secretOf: HttpFetcherOptions['secretOf']) {
  return Object.fromEntries(
    Object.entries(headers).map(([name, value]) => {
      try {
        return [name.toLowerCase(), fillIn(value, secretOf)]
      } catch (error) {
        throw new SourceFault(`the header ${name}: ${(error as Error).message}`)
      }
    }),
  )
}

/** @throws SourceFault */
function refuseUnlessGood(response: IncomingMessage): void {
  const { statusCode = 0, headers } = response
  if (statusCode === 200) return
  response.destroy()
  const rest = restOf(headers['retry-after'])
  if (statusCode >= 300 && statusCode < 400) {
    const to = headers.location && URL.canParse(headers.location) && new URL(headers.location)
    const where = to ? ` to ${to.origin}${to.pathname}` : ''
    throw new SourceFault(
      `it redirects (${statusCode})${where}, which is not followed: mend its url`,
    )
  }
  const hint = { 401: ': are its headers right?', 403: ': are its headers right?' }[statusCode]
  throw new SourceFault(`it answers ${statusCode}, and 200 is expected${hint ?? ''}`, rest)
}

/** Seconds, or a date (RFC 9110, 10.2.3). */
function restOf(given: string | undefined): number {
  if (given === undefined) return 0
  const ms = /^\d+$/.test(given) ? Number(given) * 1000 : Date.parse(given) - Date.now()
  return Number.isFinite(ms) ? Math.min(askedRestMaxMs, Math.max(0, ms)) : 0
}

function newestOf({ headers }: IncomingMessage): bigint | undefined {
  const given = headers['x-last-id']
  return typeof given === 'string' && /^\d{1,18}$/.test(given) ? BigInt(given) : undefined
}

type Reading = {
  bytesMax: number
  /** So many lines are enough: what follows is not waited for. */
  lines: number | undefined
  signal: AbortSignal
  share: ReturnType<Budget['share']>
  reply: Reply
}

/** As long as the reply says, or grown as it comes. */
class Reply {
  #buffers: Buffers
  #buffer: Buffer | undefined
  bytes = 0
  constructor(buffers: Buffers) {
    this.#buffers = buffers
  }

  /** @param length what the whole will be, where that is known */
  add(chunk: Buffer, length: number): void {
    const bytes = this.bytes + chunk.length
    const before = this.#buffer
    if (before === undefined || before.length < bytes) {
      this.#buffer = this.#buffers.take(Math.max(bytes, length))
      before?.copy(this.#buffer, 0, 0, this.bytes)
      if (before !== undefined) this.#buffers.give(before)
    }
    if (this.#buffer !== undefined) chunk.copy(this.#buffer, this.bytes)
    this.bytes = bytes
  }

  get body(): Buffer {
    return this.#buffer?.subarray(0, this.bytes) ?? Buffer.alloc(0)
  }

  free(): void {
    if (this.#buffer !== undefined) this.#buffers.give(this.#buffer)
    this.#buffer = undefined
  }
}

async function readBody(
  response: IncomingMessage,
  { bytesMax, lines, signal, share, reply }: Reading,
): Promise<{ body: Buffer; isCut: boolean }> {
  let found = 0
  const stream = unpacked(response)
  const told = stream === response ? Number(response.headers['content-length'] ?? 0) : 0
  const length = Math.min(told || 0, bytesMax, trustedMax)
  const stop = () => stream.destroy(signal.reason)
  signal.addEventListener('abort', stop, { once: true })
  try {
    for await (const chunk of stream as AsyncIterable<Buffer>) {
      if (reply.bytes + chunk.length > bytesMax) {
        throw new SourceFault(`the reply is larger than ${bytesMax} bytes (LOADER_BODY_MAX)`)
      }
      reply.add(chunk, length)
      const room = share.take(chunk.length)
      if (room) await Promise.race([room, aborted(signal)])
      if (lines === undefined) continue
      const before = found
      found += countLines(chunk)
      if (found < lines) continue
      if (found > before) return { body: wholeLines(reply.body), isCut: true }
    }
  } finally {
    signal.removeEventListener('abort', stop)
    if (!response.complete) response.destroy()
  }
  return { body: reply.body, isCut: false }
}

const aborted = (signal: AbortSignal) =>
  new Promise<never>((_, reject) => {
    if (signal.aborted) reject(signal.reason)
    signal.addEventListener('abort', () => reject(signal.reason), { once: true })
  })

function unpacked(response: IncomingMessage): Readable {
  const encoding = response.headers['content-encoding']?.trim().toLowerCase() ?? 'identity'
  if (encoding === 'identity' || encoding === '') return response
  const unpack = { gzip: createGunzip, 'x-gzip': createGunzip, deflate: createInflate }[encoding]
  if (unpack === undefined) {
    response.destroy()
    throw new SourceFault(`its content-encoding is ${encoding.slice(0, 40)}: gzip or none is right`)
  }
  const stream = unpack()
  // pipe passes no error on.
  response.on('error', (error) => stream.destroy(error)).pipe(stream)
  return stream
}

function countLines(chunk: Buffer): number {
  let count = 0
  for (let at = chunk.indexOf(0x0a); at !== -1; at = chunk.indexOf(0x0a, at + 1)) count++
  return count
}

const wholeLines = (body: Buffer): Buffer => body.subarray(0, body.lastIndexOf(0x0a) + 1)

/** What kept us from the reply, as the source's fault and in words. */
function explained(error: unknown): unknown {
  if (error instanceof SourceFault) return error
  const { code, message } = error as NodeJS.ErrnoException
  const says = (text: string) => new SourceFault(text, 0, { cause: error })
  const tls = explainTls(error as Error)
  if (tls) return says(redact(tls))
  if (code === 'ECONNREFUSED') return says('nobody listens at its url (ECONNREFUSED)')
  if (code === 'ENOTFOUND' || code === 'EAI_AGAIN') return says(`its host has no address (${code})`)
  if (code === 'ECONNRESET' || code === 'EPIPE' || code === 'ERR_STREAM_PREMATURE_CLOSE') {
    return says('the connection broke before the whole reply had come')
  }
  if (code === 'Z_BUF_ERROR') return says('the packed reply ends too early')
  if (code?.startsWith('Z_')) return says('the reply cannot be unpacked: it is not what it says')
  if (code?.startsWith('HPE_')) return says(`it does not speak HTTP (${code})`)
  if (code === undefined) return error
  return says(redact(`${message} (${code})`))
}
