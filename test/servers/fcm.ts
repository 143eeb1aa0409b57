// A stand-in of Firebase Cloud Messaging, HTTP v1, and of Google's token endpoint, as a process of its own: HTTP/2 without
// TLS, or with it where a key and a certificate are given. It checks what the real one checks, answers as it is told to,
// token by token, and counts who was sent to how often and how many requests came in any second.
// As a script: node test/servers/fcm.ts [--key file --cert file] [--latency ms] [--streams n]; it prints a line of JSON.

import { type ChildProcess, spawn } from 'node:child_process'
import { generateKeyPairSync, verify } from 'node:crypto'
import { once } from 'node:events'
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { createServer, type IncomingMessage } from 'node:http'
import {
  createSecureServer,
  createServer as createServer2,
  type Http2Server,
  type ServerHttp2Session,
  type ServerHttp2Stream,
} from 'node:http2'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { parseArgs } from 'node:util'

/** How a push is answered. */
export type Reply = {
  is:
    | 'ok'
    | 'unregistered'
    | 'invalid'
    | 'mismatch'
    | 'thirdParty'
    | 'quota'
    | 'unavailable'
    | 'internal'
    | 'bare404'
    | 'denied'
    | 'unauthenticated'
    | 'html502'
    | 'hang'
    | 'reset'
    | 'refuse'
    | 'drop'
  /** In the header Retry-After, as it stands. */
  retryAfter?: string
  /** The details in the other order. */
  reversed?: boolean
}

/** For tokens that begin with `prefix`; the replies one after the other, the last one for good. */
export type Rule = { prefix: string; replies: Reply[] }

export type Settings = {
  rules?: Rule[]
  latencyMs?: number
  /** The life of an access token, seconds. */
  tokenSeconds?: number
  /** What the token endpoint answers instead of a token. */
  tokenError?: { status: number; error: string; description: string } | null
}

export type Stats = {
  requests: number
  ok: number
  validated: number
  /** Access tokens given out. */
  tokens: number
  sessions: number
  /** Sessions opened in all, streams open at once on one of them. */
  opened: number
  streamsMax: number
  /** Requests in the fullest second. */
  secondMax: number
  /** From the first to the last request, s. */
  spanSeconds: number
  /** How often each device was sent to; only those asked for, or all that were more than once. */
  counts: Record<string, number>
  /** How often the answer 200 was given to a device that had one. */
  repeatedOk: number
  /** Epoch ms of each request to the devices asked for. */
  arrivals: Record<string, number[]>
  /** The last message of each device asked for. */
  messages: Record<string, unknown>
}

export type Fcm = {
  url: string
  control: string
  /** The service account's key, for FCM_CREDENTIALS. */
  credentials: string
  process: ChildProcess
  set(settings: Settings): Promise<void>
  stats(...devices: string[]): Promise<Stats>
  /** The sessions that are open are told to go away. */
  goaway(code?: number, lastStreamId?: number): Promise<void>
  /** Nobody listens any more, and what is open is cut; or again. */
  listen(isUp: boolean): Promise<void>
  forget(): Promise<void>
  stop(): Promise<void>
}

/** The caller stops it. */
export async function launchFcm(args: string[] = []): Promise<Fcm> {
  const child = spawn(process.execPath, [import.meta.filename, ...args], {
    stdio: ['ignore', 'pipe', 'inherit'],
  })
  const kill = () => child.kill('SIGKILL')
  process.once('exit', kill)
  const [line] = (await once(createInterface({ input: child.stdout }), 'line')) as [string]
  const found = JSON.parse(line) as Pick<Fcm, 'url' | 'control' | 'credentials'>
  async function ask<T>(path: string, body: object = {}): Promise<T> {
    const answer = await fetch(`${found.control}${path}`, {
      method: 'POST',
      body: JSON.stringify(body),
    })
    if (answer.status !== 200) throw new Error(`${path}: ${await answer.text()}`)
    return (await answer.json()) as T
  }
  return {
    ...found,
    process: child,
    set: (settings) => ask('/set', settings),
    stats: (...devices) => ask('/stats', { devices }),
    goaway: (code = 0, lastStreamId = 0) => ask('/goaway', { code, lastStreamId }),
    listen: (isUp) => ask('/listen', { isUp }),
    forget: () => ask('/forget'),
    async stop() {
      process.off('exit', kill)
      if (child.exitCode !== null || child.signalCode !== null) return
      const gone = once(child, 'exit')
      kill()
      await gone
    },
  }
}

const project = 'flotilla-test'
const fcmError = (errorCode: string) => ({
  '@type': 'type.googleapis.com/google.firebase.fcm.v1.FcmError',
  errorCode,
})
const badRequest = (field: string, description: string) => ({
  '@type': 'type.googleapis.com/google.rpc.BadRequest',
  fieldViolations: [{ field, description }],
})

type Refusal = { code: number; status: string; message: string; details: object[] }

const refusals: Partial<Record<Reply['is'], Refusal>> = {
  unregistered: {
    code: 404,
    status: 'NOT_FOUND',
    message: 'Requested entity was not found.',
    details: [fcmError('UNREGISTERED')],
  },
  invalid: {
    code: 400,
    status: 'INVALID_ARGUMENT',
    message: 'The registration token is not a valid FCM registration token',
    details: [
      fcmError('INVALID_ARGUMENT'),
      badRequest('message.token', 'Invalid registration token'),
    ],
  },
  mismatch: {
    code: 403,
    status: 'PERMISSION_DENIED',
    message: 'SenderId mismatch',
    details: [fcmError('SENDER_ID_MISMATCH')],
  },
  thirdParty: {
    code: 401,
    status: 'UNAUTHENTICATED',
    message: 'Auth error from APNS or Web Push Service',
    details: [
      fcmError('THIRD_PARTY_AUTH_ERROR'),
      { '@type': 'type.googleapis.com/google.firebase.fcm.v1.ApnsError', statusCode: 403 },
    ],
  },
  quota: {
    code: 429,
    status: 'RESOURCE_EXHAUSTED',
    message: 'Quota exceeded for quota metric',
    details: [
      fcmError('QUOTA_EXCEEDED'),
      { '@type': 'type.googleapis.com/google.rpc.QuotaFailure', violations: [] },
    ],
  },
  unavailable: {
    code: 503,
    status: 'UNAVAILABLE',
    message: 'The service is currently unavailable.',
    details: [fcmError('UNAVAILABLE')],
  },
  internal: {
    code: 500,
    status: 'INTERNAL',
    message: 'Internal error encountered.',
    details: [fcmError('INTERNAL')],
  },
  bare404: {
    code: 404,
    status: 'NOT_FOUND',
    message: 'Requested entity was not found.',
    details: [],
  },
  denied: {
    code: 403,
    status: 'PERMISSION_DENIED',
    message: 'Permission denied on resource project',
    details: [],
  },
  unauthenticated: {
    code: 401,
    status: 'UNAUTHENTICATED',
    message: 'Request had invalid authentication credentials.',
    details: [],
  },
}

async function serve(): Promise<void> {
  const { values } = parseArgs({
    options: {
      key: { type: 'string' },
      cert: { type: 'string' },
      latency: { type: 'string', default: '5' },
      streams: { type: 'string', default: '100' },
    },
  })
  const { publicKey, privateKey } = generateKeyPairSync('rsa', { modulusLength: 2048 })
  const email = `sender@${project}.iam.gserviceaccount.com`
  let settings: Required<Settings> = {
    rules: [],
    latencyMs: Number(values.latency),
    tokenSeconds: 3600,
    tokenError: null,
  }
  /** The access tokens given out, and until when each is good. */
  const given = new Map<string, number>()
  const sessions = new Set<ServerHttp2Session>()
  const streams = new Map<ServerHttp2Session, number>()
  let tokenUri = ''
  let count = empty()

  function empty() {
    return {
      times: [] as number[],
      byDevice: new Map<string, { n: number; ok: number; at: number[]; message: unknown }>(),
      used: new Map<Rule, Map<string, number>>(),
      ok: 0,
      repeatedOk: 0,
      validated: 0,
      tokens: 0,
      opened: 0,
      streamsMax: 0,
      /** Of `times`, the first within a second of the last. */
      from: 0,
      secondMax: 0,
    }
  }

  function arrive(): void {
    const at = performance.now()
    count.times.push(at)
    while (at - (count.times[count.from] as number) >= 1000) count.from++
    count.secondMax = Math.max(count.secondMax, count.times.length - count.from)
  }

  function refuse(stream: ServerHttp2Stream, refusal: Refusal, reply?: Reply): void {
    const { details, ...error } = refusal
    const ordered = reply?.reversed ? details.toReversed() : details
    const body = { error: { ...error, ...(ordered.length > 0 && { details: ordered }) } }
    stream.respond({
      ':status': refusal.code,
      'content-type': 'application/json; charset=UTF-8',
      ...(reply?.retryAfter !== undefined && { 'retry-after': reply.retryAfter }),
    })
    stream.end(JSON.stringify(body))
  }

  const wrong = (message: string, details: object[] = []): Refusal => ({
    code: 400,
    status: 'INVALID_ARGUMENT',
    message,
    details,
  })

  /** What Google would find wrong with it. */
  function faultOf(path: string, authorization: unknown, message: Record<string, unknown>) {
    if (path !== `/v1/projects/${project}/messages:send`) return refusals.bare404
    const bearer = String(authorization).replace(/^Bearer /, '')
    if ((given.get(bearer) ?? 0) < Date.now()) return refusals.unauthenticated
    const targets = ['token', 'fid', 'topic', 'condition'].filter((name) => message[name])
    if (targets.length !== 1) {
      return wrong('Recipient of the message is not set.', [fcmError('INVALID_ARGUMENT')])
    }
    const { notification, data = {} } = message
    if (Object.values(data as object).some((value) => typeof value !== 'string')) {
      return wrong('Invalid value at message.data', [badRequest('message.data', 'not a string')])
    }
    const { ttl = '0s' } = (message.android ?? {}) as { ttl?: string }
    if (!/^\d+(\.\d{1,9})?s$/.test(ttl)) return wrong('Illegal duration format')
    const bytes = Buffer.byteLength(JSON.stringify({ notification, data }))
    return bytes > 4096 ? wrong('Android message is too big') : undefined
  }

  function replyFor(device: string): Reply {
    const rule = settings.rules.find(({ prefix }) => device.startsWith(prefix))
    if (rule === undefined) return { is: 'ok' }
    const used = count.used.get(rule) ?? new Map<string, number>()
    count.used.set(rule, used)
    const n = used.get(device) ?? 0
    used.set(device, n + 1)
    return rule.replies[Math.min(n, rule.replies.length - 1)] ?? { is: 'ok' }
  }

  function onPush(stream: ServerHttp2Stream, headers: Record<string, unknown>, text: string) {
    const { message = {}, validate_only: isDry = false } = JSON.parse(text) as {
      message?: Record<string, unknown>
      validate_only?: boolean
    }
    const device = String(message.token ?? message.fid ?? '')
    const own = count.byDevice.get(device) ?? { n: 0, ok: 0, at: [], message }
    count.byDevice.set(device, own)
    own.n++
    own.message = message
    own.at.push(Date.now())
    const fault = faultOf(String(headers[':path']), headers.authorization, message)
    const reply = fault === undefined ? replyFor(device) : undefined
    setTimeout(answer, settings.latencyMs)

    function answer() {
      if (stream.destroyed) return
      if (fault !== undefined) return refuse(stream, fault)
      const { is } = reply as Reply
      const refusal = refusals[is]
      if (refusal !== undefined) return refuse(stream, refusal, reply)
      if (is === 'hang') return
      if (is === 'reset') return stream.close(2)
      if (is === 'refuse') return stream.close(7)
      if (is === 'drop') return stream.session?.destroy()
      if (is === 'html502') {
        stream.respond({ ':status': 502, 'content-type': 'text/html; charset=UTF-8' })
        stream.end('<!DOCTYPE html><title>Error 502 (Server Error)!!1</title>')
        return
      }
      const id = isDry ? 'fake_message_id' : `0:${Date.now()}%${own.n}`
      count.ok++
      if (own.ok++ > 0) count.repeatedOk++
      if (isDry) count.validated++
      stream.respond({ ':status': 200, 'content-type': 'application/json; charset=UTF-8' })
      stream.end(JSON.stringify({ name: `projects/${project}/messages/${id}` }))
    }
  }

  const http2Settings = { settings: { maxConcurrentStreams: Number(values.streams) } }
  const { key, cert } = values
  const open = (): Http2Server =>
    key !== undefined && cert !== undefined
      ? createSecureServer({ key: readFileSync(key), cert: readFileSync(cert), ...http2Settings })
      : createServer2(http2Settings)

  function start(port: number): Http2Server {
    const server = open()
    server.on('session', (session) => {
      sessions.add(session)
      count.opened++
      session.on('error', () => {})
      session.on('close', () => sessions.delete(session))
    })
    server.on('stream', (stream, headers) => {
      const session = stream.session as ServerHttp2Session
      const now = 1 + (streams.get(session) ?? 0)
      streams.set(session, now)
      count.streamsMax = Math.max(count.streamsMax, now)
      arrive()
      let text = ''
      stream.setEncoding('utf8').on('data', (part: string) => {
        text += part
      })
      stream.on('error', () => {})
      stream.on('end', () => onPush(stream, headers, text))
      stream.on('close', () => streams.set(session, (streams.get(session) ?? 1) - 1))
    })
    server.on('sessionError', () => {})
    server.listen(port, '127.0.0.1')
    return server
  }

  /** RFC 7523, as Google checks it. */
  function exchange(body: string): { status: number; answer: object } {
    const bad = (error: string, error_description: string, status = 400) => ({
      status,
      answer: { error, error_description },
    })
    const { tokenError } = settings
    if (tokenError) return bad(tokenError.error, tokenError.description, tokenError.status)
    const form = new URLSearchParams(body)
    if (form.get('grant_type') !== 'urn:ietf:params:oauth:grant-type:jwt-bearer') {
      return bad('unsupported_grant_type', 'Invalid grant_type')
    }
    const [head = '', claims = '', signature = ''] = (form.get('assertion') ?? '').split('.')
    const isSigned = verify(
      'sha256',
      Buffer.from(`${head}.${claims}`),
      publicKey,
      Buffer.from(signature, 'base64url'),
    )
    if (!isSigned) return bad('invalid_grant', 'Invalid JWT Signature.')
    const read = (part: string) => JSON.parse(Buffer.from(part, 'base64url').toString())
    const { iss, scope, aud, iat, exp } = read(claims)
    if (read(head).alg !== 'RS256') return bad('invalid_grant', 'Invalid JWT algorithm.')
    if (iss !== email) return bad('invalid_grant', 'Invalid grant: account not found')
    if (aud !== tokenUri) return bad('invalid_grant', 'Invalid JWT: Failed audience check.')
    const seconds = Date.now() / 1000
    if (exp - iat > 3600 || exp < seconds || iat > seconds + 60) {
      return bad(
        'invalid_grant',
        'Invalid JWT: Token must be a short-lived token (60 minutes) and in a reasonable timeframe.',
      )
    }
    if (scope !== 'https://www.googleapis.com/auth/firebase.messaging') {
      return bad('invalid_scope', 'Invalid OAuth scope or ID token audience provided.')
    }
    count.tokens++
    const access_token = `ya29.test-${count.tokens}-${Math.random().toString(36).slice(2)}`
    given.set(access_token, Date.now() + settings.tokenSeconds * 1000)
    const answer = { access_token, expires_in: settings.tokenSeconds, token_type: 'Bearer' }
    return { status: 200, answer }
  }

  function tell(devices: string[]): Stats {
    const { times, byDevice, secondMax, ok, repeatedOk, validated, tokens, opened, streamsMax } =
      count
    const asked = devices.length > 0
    const chosen = asked
      ? devices.flatMap((device) => {
          const own = byDevice.get(device)
          return own ? [[device, own] as const] : []
        })
      : [...byDevice].filter(([, { n }]) => n > 1)
    const pick = <T>(of: (own: { n: number; at: number[]; message: unknown }) => T) =>
      Object.fromEntries(chosen.map(([device, own]) => [device, of(own)]))
    return {
      requests: times.length,
      ok,
      validated,
      tokens,
      sessions: sessions.size,
      opened,
      streamsMax,
      secondMax,
      spanSeconds: times.length < 2 ? 0 : ((times.at(-1) as number) - (times[0] as number)) / 1000,
      counts: pick(({ n }) => n),
      repeatedOk,
      arrivals: asked ? pick(({ at }) => at) : {},
      messages: asked ? pick(({ message }) => message) : {},
    }
  }

  let server = start(0)
  await once(server, 'listening')
  const { port } = server.address() as AddressInfo

  async function command(path: string, body: string): Promise<{ status: number; answer: object }> {
    const done = { status: 200, answer: {} }
    if (path === '/token') return exchange(body)
    const asked = JSON.parse(body)
    if (path === '/set') settings = { ...settings, ...asked }
    else if (path === '/forget') count = empty()
    else if (path === '/stats') return { status: 200, answer: tell(asked.devices) }
    else if (path === '/goaway') {
      for (const session of sessions) {
        session.goaway(asked.code, asked.lastStreamId)
        if (asked.code === 0) session.close()
      }
    } else if (path === '/listen') {
      if (asked.isUp === server.listening) return done
      if (asked.isUp) {
        server = start(port)
        await once(server, 'listening')
      } else {
        server.close()
        for (const session of sessions) session.destroy()
      }
    } else return { status: 404, answer: { error: path } }
    return done
  }

  const control = createServer(async (request: IncomingMessage, response) => {
    let body = ''
    for await (const part of request) body += part
    const { status, answer } = await command(request.url ?? '', body).catch((error: Error) => ({
      status: 500,
      answer: { error: error.message },
    }))
    response.writeHead(status, { 'content-type': 'application/json' })
    response.end(JSON.stringify(answer))
  })
  control.listen(0, '127.0.0.1')
  await once(control, 'listening')
  const origin = `http://127.0.0.1:${(control.address() as AddressInfo).port}`
  tokenUri = `${origin}/token`
  const folder = mkdtempSync(join(tmpdir(), 'flotilla-fcm-'))
  const credentials = join(folder, 'service-account.json')
  const account = {
    type: 'service_account',
    project_id: project,
    private_key_id: 'key-1',
    private_key: privateKey.export({ type: 'pkcs8', format: 'pem' }),
    client_email: email,
    token_uri: tokenUri,
  }
  writeFileSync(credentials, JSON.stringify(account), { mode: 0o600 })
  process.once('exit', () => rmSync(folder, { recursive: true, force: true }))
  const scheme = key === undefined ? 'http' : 'https'
  const url = `${scheme}://127.0.0.1:${port}`
  process.stdout.write(`${JSON.stringify({ url, control: origin, credentials })}\n`)
}

if (import.meta.main) await serve()
