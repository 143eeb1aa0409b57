// A stand-in for Slack's incoming webhooks as a process of its own: takes one message a second with a little patience, as
// Slack does, and answers 429 with Retry-After beyond; refuses in Slack's plain words, fails, is silent or hangs up when it
// is told to. What arrived, and when, is read over its control port. Ends with whoever started it.
//
//   node test/servers/slack.ts
//   POST /services/T0/B0/secret-of-the-webhook
//   GET  /control/messages                 what arrived, taken or not
//   POST /control/mood  {answer, next, …}  how it answers from now on; `next`: the next messages only
//   POST /control/reset                    forgets

import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { parseArgs } from 'node:util'

export type Answer =
  | { is: 'well' }
  /** A plain word, such as 410 channel_is_archived. */
  | { is: 'refuse'; status: number; body: string }
  | { is: 'limit'; retryAfter?: number }
  /** Taken, and no answer, or the connection closed. */
  | { is: 'silence' }
  | { is: 'hang-up' }

export type Mood = {
  answer?: Answer
  next?: Answer[]
  /** Messages that may come faster than one a second (a bucket that starts full). */
  burst?: number
}

export type Message = {
  /** ms of the epoch with fractions. */
  at: number
  status: number
  text: string
}

export const secretPath = '/services/T00000000/B00000000/abcdefghijklmnopqrstuvwx'

function serve() {
  const initial: Required<Mood> = { answer: { is: 'well' }, next: [], burst: 2 }
  const messages: Message[] = []
  let mood = initial
  let tokens = mood.burst
  let filledAt = performance.now()
  let restUntil = 0

  /** One a second; whoever comes during the rest it asked for is refused again. */
  function isTooMuch(): boolean {
    const now = performance.now()
    tokens = Math.min(mood.burst, tokens + (now - filledAt) / 1000)
    filledAt = now
    if (now < restUntil || tokens < 1) return true
    tokens--
    return false
  }

  function limit(response: ServerResponse, seconds: number | undefined): number {
    if (seconds !== undefined) {
      restUntil = performance.now() + seconds * 1000
      response.setHeader('retry-after', String(seconds))
    }
    const body = { retry_after: seconds, ok: false, error: 'rate_limited' }
    response.writeHead(429, { 'content-type': 'application/json' }).end(JSON.stringify(body))
    return 429
  }

  async function take(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const at = performance.timeOrigin + performance.now()
    const body = (await bodyOf(request)).toString()
    const plain = (status: number, word: string) => {
      response.writeHead(status, { 'content-type': 'text/plain' }).end(word)
      return status
    }
    const message: Message = { at, status: 0, text: textOf(body) ?? '' }
    messages.push(message)
    if (textOf(body) === undefined) message.status = plain(400, 'invalid_payload')
    else if (message.text === '') message.status = plain(400, 'no_text')
    else if (isTooMuch()) message.status = limit(response, 1)
    else {
      const answer = mood.next.shift() ?? mood.answer
      if (answer.is === 'well') message.status = plain(200, 'ok')
      if (answer.is === 'refuse') message.status = plain(answer.status, answer.body)
      if (answer.is === 'limit') message.status = limit(response, answer.retryAfter)
      if (answer.is === 'hang-up') request.socket.destroy()
    }
  }

  return createServer(async (request, response) => {
    const path = new URL(request.url ?? '/', 'http://localhost').pathname
    if (path === secretPath && request.method === 'POST') return await take(request, response)
    if (!path.startsWith('/control/')) {
      return void response.writeHead(404, { 'content-type': 'text/plain' }).end('no_service')
    }
    if (path === '/control/mood') {
      mood = { ...mood, ...JSON.parse((await bodyOf(request)).toString()) }
      tokens = mood.burst
    } else if (path === '/control/reset') {
      messages.length = 0
      mood = { ...initial, next: [] }
      tokens = mood.burst
      restUntil = 0
    }
    response.writeHead(200, { 'content-type': 'application/json' }).end(JSON.stringify(messages))
  })
}

function textOf(body: string): string | undefined {
  try {
    const { text } = JSON.parse(body)
    return typeof text === 'string' ? text : ''
  } catch {
    return undefined
  }
}

async function bodyOf(request: IncomingMessage): Promise<Buffer> {
  const chunks: Buffer[] = []
  for await (const chunk of request) chunks.push(chunk as Buffer)
  return Buffer.concat(chunks)
}

export type SlackServer = {
  /** Of the webhook. */
  url: string
  mood(mood: Mood): Promise<void>
  reset(): Promise<void>
  messages(): Promise<Message[]>
  stop(): Promise<void>
}

/** As a process. Who starts it stops it. */
export async function startSlack(): Promise<SlackServer> {
  const child: ChildProcess = spawn(process.execPath, [import.meta.filename], {
    stdio: ['pipe', 'pipe', 'inherit'],
  })
  const [line] = (await once(child.stdout as NodeJS.ReadableStream, 'data')) as [Buffer]
  const base = `http://127.0.0.1:${JSON.parse(line.toString()).port}`
  const post = async (path: string, body: object) => {
    await (await fetch(`${base}${path}`, { method: 'POST', body: JSON.stringify(body) })).text()
  }
  return {
    url: `${base}${secretPath}`,
    mood: (mood) => post('/control/mood', mood),
    reset: () => post('/control/reset', {}),
    messages: async () => (await (await fetch(`${base}/control/messages`)).json()) as Message[],
    async stop() {
      if (child.exitCode !== null || child.signalCode !== null) return
      const gone = once(child, 'exit')
      child.kill('SIGKILL')
      await gone
    },
  }
}

if (import.meta.main) {
  const { values } = parseArgs({ options: { port: { type: 'string' } } })
  const server = serve()
  server.listen(Number(values.port ?? 0), '127.0.0.1')
  await once(server, 'listening')
  process.stdout.write(`${JSON.stringify({ port: (server.address() as AddressInfo).port })}\n`)
  // Whoever started it is gone.
  if (!process.stdin.isTTY) process.stdin.resume().once('end', () => process.exit(0))
}
