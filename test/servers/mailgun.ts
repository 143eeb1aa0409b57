// A stand-in for Mailgun as a process of its own: takes messages, tells of them by its events API as late as it is told to,
// refuses, stays silent or hangs up, before or after it has accepted, and sends signed webhooks. What it saw, and when, is
// read over its control port, so that figures are those seen at the server. After Mailgun's documentation and the mock
// server in mailgun/mailgun-go. Ends with whoever started it.
//
//   node test/servers/mailgun.ts [--domain mg.shop.example] [--key key-test]
//   GET  /control/messages                 what arrived, accepted or not
//   POST /control/mood  {answer, …}        how it answers from now on; `next`: the next messages only
//   POST /control/reset                    forgets

import { createHmac, randomBytes } from 'node:crypto'
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import { setTimeout as sleep } from 'node:timers/promises'
import { parseArgs } from 'node:util'
import { listenAsStandIn, startStandIn } from './standIn.ts'

export type Answer =
  | { is: 'well' }
  | { is: 'refuse'; status: number; body: string | object; headers?: Record<string, string> }
  /** 500, and yet it may have been accepted. */
  | { is: 'fault'; accepts: boolean; status?: number }
  /** No answer at all. */
  | { is: 'silence'; accepts: boolean }
  /** The connection is closed instead of an answer. */
  | { is: 'hang-up'; accepts: boolean }

export type Mood = {
  answer?: Answer
  /** For the next messages, one each, before `answer` holds. */
  next?: Answer[]
  latencyMs?: number
  /** Events of what is accepted are told so much later. */
  visibleAfterMs?: number
  /** More in a second, and it refuses. */
  perSecondMax?: number
  /** What its events API answers with instead. */
  eventsStatus?: number
  /** The event of what is accepted. */
  event?: 'accepted' | 'rejected'
}

export type Message = {
  /** When its head arrived, ms of the epoch with fractions. */
  at: number
  accepted: boolean
  status: number
  fields: Record<string, string>
}

export const domain = 'mg.shop.example'
export const apiKey = 'key-0123456789abcdef0123456789abcdef'
const bodyMaxBytes = 52.4 * 1024 * 1024

function serve(named: { domain: string; key: string }) {
  const messages: Message[] = []
  const asked: string[] = []
  const initial: Required<Mood> = {
    answer: { is: 'well' },
    next: [],
    latencyMs: 20,
    visibleAfterMs: 0,
    perSecondMax: 0,
    eventsStatus: 200,
    event: 'accepted',
  }
  let mood = initial
  const now = () => performance.timeOrigin + performance.now()
  const authorization = `Basic ${Buffer.from(`api:${named.key}`).toString('base64')}`

  async function takeMessage(request: IncomingMessage, response: ServerResponse) {
    const at = now()
    const body = await bodyOf(request)
    if (body.length > bodyMaxBytes) return json(response, 413, 'request size exceeds 52.4MiB limit')
    const type = String(request.headers['content-type'])
    const form = await new Response(new Uint8Array(body), {
      headers: { 'content-type': type },
    }).formData()
    const fields = Object.fromEntries([...form].map(([name, value]) => [name, String(value)]))
    const message: Message = { at, accepted: false, status: 0, fields }
    messages.push(message)
    const fault = faultIn(fields)
    const answer: Answer = fault
      ? { is: 'refuse', status: 400, body: { message: fault } }
      : isTooMuch(at)
        ? tooMuch
        : (mood.next.shift() ?? mood.answer)
    message.accepted = answer.is === 'well' || ('accepts' in answer && answer.accepts)
    await sleep(mood.latencyMs)
    if (answer.is === 'silence') return
    if (answer.is === 'hang-up') return void request.socket.destroy()
    if (answer.is === 'fault') {
      message.status = answer.status ?? 500
      return json(response, message.status, 'Internal Server Error')
    }
    message.status = answer.is === 'refuse' ? answer.status : 200
    if (answer.is === 'refuse') {
      for (const [name, value] of Object.entries(answer.headers ?? {})) {
        response.setHeader(name, value)
      }
      return json(response, answer.status, answer.body)
    }
    json(response, 200, { id: fields['h:Message-Id'], message: 'Queued. Thank you.' })
  }

  function isTooMuch(at: number): boolean {
    if (mood.perSecondMax === 0) return false
    return messages.filter((one) => one.at > at - 1000 && one.at <= at).length > mood.perSecondMax
  }

  function tellEvents(url: URL, response: ServerResponse) {
    const id = url.searchParams.get('message-id')
    asked.push(String(id))
    if (mood.eventsStatus !== 200) return json(response, mood.eventsStatus, 'Internal Server Error')
    const begin = Number(url.searchParams.get('begin')) * 1000
    const items = messages
      .filter(({ accepted, at }) => accepted && at + mood.visibleAfterMs <= now() && at >= begin)
      .filter(({ fields }) => id === null || fields['h:Message-Id'] === `<${id}>`)
      .map(({ at, fields }) => ({
        event: mood.event,
        id: randomBytes(11).toString('base64url'),
        timestamp: at / 1000,
        'log-level': 'info',
        ...(mood.event === 'rejected' && { reason: 'Invalid recipient' }),
        recipient: fields.to,
        'user-variables': { 'flotilla-job': fields['v:flotilla-job'] },
        message: { headers: { to: fields.to, 'message-id': fields['h:Message-Id']?.slice(1, -1) } },
      }))
    json(response, 200, { items, paging: {} })
  }

  async function control(path: string, request: IncomingMessage, response: ServerResponse) {
    if (path === '/control/messages') return json(response, 200, { messages, asked })
    const body = await bodyOf(request)
    if (path === '/control/mood') mood = { ...mood, ...JSON.parse(body.toString()) }
    else {
      messages.length = asked.length = 0
      mood = { ...initial, next: [] }
    }
    json(response, 200, {})
  }

  return createServer(async (request, response) => {
    const url = new URL(request.url ?? '/', 'http://localhost')
    if (url.pathname.startsWith('/control/')) return control(url.pathname, request, response)
    if (request.headers.authorization !== authorization) {
      return response.writeHead(401, { 'content-type': 'text/plain' }).end('Forbidden')
    }
    const [, version, which, call] = url.pathname.split('/')
    if (version !== 'v3') return json(response, 404, 'page not found')
    if (which !== named.domain) return json(response, 404, `Domain not found: ${which}`)
    if (call === 'messages' && request.method === 'POST') return takeMessage(request, response)
    if (call === 'events' && request.method === 'GET') return tellEvents(url, response)
    json(response, 404, 'page not found')
  })
}

const tooMuch: Answer = {
  is: 'refuse',
  status: 420,
  body: { message: `Domain ${domain} is not allowed to send: request limit exceeded` },
}

function faultIn(fields: Record<string, string>): string | undefined {
  if (!fields.from) return 'from parameter is missing'
  if (!fields.to) return 'to parameter is missing'
  if (!/^[^\s@]+@[^\s@]+$/.test(fields.to)) {
    return 'to parameter is not a valid address. please check documentation'
  }
  if (!fields.text && !fields.html) {
    return "Need at least one of 'text' or 'html' parameters specified"
  }
  const options = Object.entries(fields).filter(([name]) => /^[ohv]:/.test(name))
  if (JSON.stringify(options).length > 16_384) {
    return 'Send options (parameters starting with o:, h:, or v:) are limited to 16 kB total'
  }
  return undefined
}

async function bodyOf(request: IncomingMessage): Promise<Buffer> {
  const chunks: Buffer[] = []
  for await (const chunk of request) chunks.push(chunk as Buffer)
  return Buffer.concat(chunks)
}

function json(response: ServerResponse, status: number, body: string | object): void {
  const text = typeof body === 'string' ? JSON.stringify({ message: body }) : JSON.stringify(body)
  response.writeHead(status, { 'content-type': 'application/json' }).end(text)
}

export type Webhook = {
  event: string
  recipient: string
  severity?: 'permanent' | 'temporary'
  reason?: string
  jobId?: string
  /** Seconds of the epoch. */
  timestamp?: number
  token?: string
}

/** The body of a webhook as Mailgun posts it, signed. */
export function webhookBody(signingKey: string, webhook: Webhook): object {
  const { jobId, timestamp = Math.floor(Date.now() / 1000), ...data } = webhook
  const token = webhook.token ?? randomBytes(25).toString('hex')
  const signature = createHmac('sha256', signingKey).update(`${timestamp}${token}`).digest('hex')
  return {
    signature: { timestamp: String(timestamp), token, signature },
    'event-data': {
      ...data,
      id: randomBytes(11).toString('base64url'),
      timestamp: timestamp + 0.25,
      'log-level': 'error',
      'delivery-status': { code: 550, message: 'No such mailbox', 'attempt-no': 1 },
      message: { headers: { to: webhook.recipient, 'message-id': `${jobId}@shop.example` } },
      'user-variables': jobId === undefined ? {} : { 'flotilla-job': jobId },
    },
  }
}

export type Mailgun = {
  url: string
  mood(mood: Mood): Promise<void>
  reset(): Promise<void>
  /** All that arrived, and the Message-Ids it was asked for. */
  seen(): Promise<{ messages: Message[]; asked: string[] }>
  /** As a crash or an outage would: nobody listens. `start`: again on its port, having forgotten all. */
  stop(): Promise<void>
  start(): Promise<void>
}

/** As a process. Who starts it stops it. */
export async function startMailgun(): Promise<Mailgun> {
  const { url, post, start, stop } = await startStandIn(import.meta.filename)
  return {
    url,
    mood: (mood) => post('/control/mood', mood),
    reset: () => post('/control/reset', {}),
    seen: async () =>
      (await (await fetch(`${url}/control/messages`)).json()) as {
        messages: Message[]
        asked: string[]
      },
    start,
    stop,
  }
}

if (import.meta.main) {
  const text = { type: 'string' } as const
  const { values } = parseArgs({ options: { port: text, domain: text, key: text } })
  const server = serve({ domain: values.domain ?? domain, key: values.key ?? apiKey })
  server.keepAliveTimeout = 30_000
  await listenAsStandIn(server, values.port)
}
