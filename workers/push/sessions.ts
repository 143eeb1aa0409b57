// Requests over a few HTTP/2 sessions that stay open: a session of one server takes about a hundred streams at once, so
// more are opened as more is in flight, and each is replaced when it is old, when the server says it goes away, or when it
// does not answer a ping. Of a request that failed it is known whether the server may have seen it.

import { type ClientHttp2Session, type ClientHttp2Stream, connect, constants } from 'node:http2'

export type Answer = {
  status: number
  headers: Readonly<Record<string, string | string[] | undefined>>
  body: string
}

export type Sessions = {
  /** @throws RequestFailed when there is no whole answer; the signal's reason when it aborts */
  post(
    path: string,
    headers: Record<string, string>,
    body: string,
    signal: AbortSignal,
  ): Promise<Answer>
  readonly open: number
  close(): Promise<void>
}

export class RequestFailed extends Error {
  /** The server may have done what was asked. */
  readonly isUnknown: boolean
  readonly code: 'TIMEOUT' | 'CONNECTION'
  constructor(code: RequestFailed['code'], isUnknown: boolean, why: string) {
    super(why)
    this.code = code
    this.isUnknown = isUnknown
  }
}

export type SessionsOptions = {
  url: string
  /** All streams at once are at most this times `streamsMax`. */
  sessionsMax: number
  streamsMax?: number
  /** For a whole answer. */
  answerMs?: number
  connectMs?: number
  /** A session is replaced when it is so old, give or take a quarter, so that not all are at once. */
  ageMaxMs?: number
  pingEveryMs?: number
}

const { NGHTTP2_CANCEL, NGHTTP2_REFUSED_STREAM } = constants
const pongMs = 5000
const idleMs = 300_000
/** What an answer of a few hundred bytes never has. */
const bodyMax = 64 * 1024

type Own = {
  session: ClientHttp2Session
  streams: number
  /** What the server bears at once. */
  max: number
  isUp: boolean
  endsAt: number
  usedAt: number
  /** Takes no new requests. */
  isLeaving: boolean
  /** The last stream that the server has seen to, once it went away. */
  lastSeen: number
  why: string
}

export function createSessions(options: SessionsOptions): Sessions {
  const { url, sessionsMax, streamsMax = 100, answerMs = 15_000, connectMs = 10_000 } = options
  const { ageMaxMs = 900_000, pingEveryMs = 15_000 } = options
  const all = new Set<Own>()
  const line: (() => void)[] = []
  let isClosing = false
  const upkeep = setInterval(look, Math.min(pingEveryMs, 5000)).unref()

  function open(): Own {
    const session = connect(url, {
      settings: { enablePush: false },
      peerMaxConcurrentStreams: streamsMax,
    })
    const now = performance.now()
    const own: Own = {
      session,
      streams: 0,
      max: streamsMax,
      isUp: false,
      endsAt: now + ageMaxMs * (0.75 + Math.random() / 2),
      usedAt: now,
      isLeaving: false,
      lastSeen: Number.POSITIVE_INFINITY,
      why: 'the connection was closed',
    }
    all.add(own)
    const late = setTimeout(() => {
      session.destroy(new Error(`no connection within ${connectMs / 1000} s`))
    }, connectMs)
    session.once('connect', () => {
      clearTimeout(late)
      own.isUp = true
    })
    session.on('remoteSettings', ({ maxConcurrentStreams = streamsMax }) => {
      own.max = Math.max(1, Math.min(streamsMax, maxConcurrentStreams))
      proceedAll()
    })
    session.on('goaway', (code: number, lastStreamId: number) => {
      own.isLeaving = true
      own.lastSeen = lastStreamId
      own.why = `the server went away (${code})`
      proceedAll()
    })
    // Also told to each of its streams, which is where it is dealt with.
    session.on('error', (error: NodeJS.ErrnoException) => {
      own.isLeaving = true
      own.why = error.message || String(error.code)
    })
    session.once('close', () => {
      clearTimeout(late)
      own.isLeaving = true
      all.delete(own)
      proceedAll()
    })
    return own
  }

  /** The one with the most room; another is opened before the last one is full. */
  function pick(): Own | undefined {
    const usable = [...all].filter((own) => !own.isLeaving && !own.session.closed)
    const free = usable.filter((own) => own.streams < own.max)
    const best = free.sort((a, b) => a.streams / a.max - b.streams / b.max)[0]
    if (best !== undefined && (best.streams < 0.8 * best.max || usable.length >= sessionsMax))
      return best
    return usable.length < sessionsMax ? open() : best
  }

  const proceed = (): void => line.shift()?.()

  const proceedAll = (): void => {
    for (const go of line.splice(0)) go()
  }

  async function enter(signal: AbortSignal): Promise<Own> {
    for (;;) {
      if (signal.aborted) throw signal.reason
      if (isClosing) throw new RequestFailed('CONNECTION', false, 'the sessions are closed')
      const own = pick()
      if (own !== undefined) {
        own.streams++
        own.usedAt = performance.now()
        return own
      }
      const { promise, resolve } = Promise.withResolvers<void>()
      line.push(resolve)
      signal.addEventListener('abort', proceedAll, { once: true })
      await promise
      signal.removeEventListener('abort', proceedAll)
    }
  }

  function look(): void {
    const now = performance.now()
    for (const own of all) {
      const { session, streams } = own
      if (own.isLeaving || !own.isUp || session.destroyed) continue
      if (now > own.endsAt || (streams === 0 && now - own.usedAt > idleMs)) {
        // Waits for what is in flight.
        own.isLeaving = true
        session.close()
      } else ping(own)
    }
  }

  function ping({ session }: Own): void {
    const late = setTimeout(() => session.destroy(new Error('no answer to a ping')), pongMs).unref()
    try {
      session.ping(() => clearTimeout(late))
    } catch {
      clearTimeout(late)
    }
  }

  async function post(
    path: string,
    headers: Record<string, string>,
    body: string,
    signal: AbortSignal,
  ): Promise<Answer> {
    const own = await enter(signal)
    try {
      return await ask(own, path, headers, body, signal)
    } finally {
      own.streams--
      proceed()
    }
  }

  function ask(
    own: Own,
    path: string,
    headers: Record<string, string>,
    body: string,
    signal: AbortSignal,
  ): Promise<Answer> {
    const { promise, resolve, reject } = Promise.withResolvers<Answer>()
    let stream: ClientHttp2Stream
    try {
      stream = own.session.request({ ':method': 'POST', ':path': path, ...headers })
    } catch (error) {
      own.isLeaving = true
      return Promise.reject(new RequestFailed('CONNECTION', false, (error as Error).message))
    }
    let answer: Pick<Answer, 'status' | 'headers'> | undefined
    let text = ''
    let isWhole = false
    const drop = (error: unknown) => {
      reject(error)
      stream.close(NGHTTP2_CANCEL)
    }
    const onAbort = () => drop(signal.reason)
    const late = setTimeout(() => {
      drop(new RequestFailed('TIMEOUT', own.isUp, `no answer within ${answerMs / 1000} s`))
    }, answerMs)
    signal.addEventListener('abort', onAbort, { once: true })
    stream.on('response', (received) => {
      answer = { status: Number(received[':status']), headers: received as Answer['headers'] }
    })
    stream.setEncoding('utf8')
    stream.on('data', (part: string) => {
      if (text.length < bodyMax) text += part
    })
    stream.on('end', () => {
      isWhole = true
    })
    let failure: Error | undefined
    stream.on('error', (error: Error) => {
      failure = error
    })
    // The last of its events, whatever became of it.
    stream.on('close', () => {
      clearTimeout(late)
      signal.removeEventListener('abort', onAbort)
      if (answer !== undefined && isWhole && failure === undefined) {
        return resolve({ ...answer, body: text })
      }
      const { id, rstCode } = stream
      const isUnseen = !own.isUp || id === undefined || id > own.lastSeen
      const isRefused = rstCode === NGHTTP2_REFUSED_STREAM
      const said = own.isLeaving
        ? own.why
        : (failure?.message ?? 'the stream ended without an answer')
      reject(new RequestFailed('CONNECTION', !(isUnseen || isRefused), said))
    })
    stream.end(body)
    return promise
  }

  return {
    post,
    get open() {
      return all.size
    },
    async close() {
      isClosing = true
      clearInterval(upkeep)
      proceedAll()
      for (const { session } of all) session.destroy()
    },
  }
}
