// The API on a real database, without a process: requests go in through Fastify's inject, the parts are the real ones.

import { randomUUID } from 'node:crypto'
import { pino } from 'pino'
import { openIdempotency } from '../db/idempotency.ts'
import { openJobs } from '../db/jobs.ts'
import { openLimits } from '../db/limits.ts'
import { type Database, openDatabase } from '../db/open.ts'
import { openAuth } from '../workers/auth.ts'
import { createCommands } from '../workers/http/commands.ts'
import { findInPostgres } from '../workers/http/found.ts'
import { createServer, type ServerParts } from '../workers/http/server.ts'

export const internalSecret = 'a secret for internal programs'
export const consolePassword = 'a password for the console'

export const newKey = (): string => randomUUID().replaceAll('-', '')

export type Call = {
  user?: string
  internal?: boolean
  key?: string | false
  body?: unknown
  headers?: Record<string, string>
}

const unlimited = {
  RATE_LIMIT_USER_PER_MINUTE: 0,
  RATE_LIMIT_GLOBAL_PER_MINUTE: 0,
  HTTP_REQUEST_TIMEOUT: 30,
  TRUSTED_PROXIES: undefined,
  MAILGUN_SIGNING_KEY: undefined,
  CONSOLE_PASSWORD: consolePassword,
  REDIS_URL: undefined,
  WAITINGROOM_URL: undefined,
  WAITINGROOM_PORT: 8090,
  STRIPE_WEBHOOK_SECRET: undefined,
}

/** No limits unless given; `over` replaces parts. */
export async function openApi(
  database: Database,
  over: Partial<Omit<ServerParts, 'config'>> = {},
  limits: Partial<ServerParts['config']> = {},
) {
  const { db } = database
  const jobs = openJobs(database)
  const commands = createCommands({ db, ttlSeconds: 900 })
  const app = await createServer({
    db,
    jobs,
    log: pino({ level: 'silent' }),
    auth: await openAuth({
      AUTH_MODE: 'mock',
      INTERNAL_AUTH_SECRET: internalSecret,
      JWT_AUDIENCE: undefined,
      JWT_ISSUER: undefined,
      JWT_JWKS_URL: undefined,
      JWT_PUBLIC_KEY: undefined,
    }),
    idempotency: openIdempotency(db),
    limits: openLimits(db),
    config: { ...unlimited, ...limits },
    run: commands.run,
    found: findInPostgres(db),
    ...over,
  })
  await app.ready()

  /** A write gets a new key unless one is given; `key: false` leaves it out. A text is sent as it is. */
  async function call(
    method: 'GET' | 'HEAD' | 'POST' | 'PUT' | 'PATCH' | 'DELETE' | 'OPTIONS',
    path: string,
    { user, internal, key, body, headers = {} }: Call = {},
  ) {
    const isWrite = method === 'POST' || method === 'PUT' || method === 'PATCH'
    const answer = await app.inject({
      method,
      url: path.startsWith('/') ? path : `/api/v1/${path}`,
      headers: {
        ...(user !== undefined && { 'x-mock-user-id': user }),
        ...(internal && { 'x-internal-auth': internalSecret }),
        ...(isWrite && key !== false && { 'idempotency-key': key ?? newKey() }),
        ...(body !== undefined && { 'content-type': 'application/json' }),
        ...headers,
      },
      ...(body !== undefined && {
        payload: typeof body === 'string' ? body : JSON.stringify(body),
      }),
    })
    const isJson = /json/.test(String(answer.headers['content-type']))
    return {
      status: answer.statusCode,
      headers: answer.headers,
      text: answer.body,
      json: isJson && answer.body ? JSON.parse(answer.body) : undefined,
    }
  }

  /** An event of one seated section A; gives its id. */
  async function makeEvent(event: object = {}): Promise<string> {
    const section = { name: 'A', rows: 2, seats_per_row: 5, price_minor: 2500, currency: 'EUR' }
    const body = {
      name: 'A concert',
      starts_at: '2030-07-01T19:30:00Z',
      sections: [section],
      ...event,
    }
    const answer = await call('POST', 'events', { internal: true, body })
    if (answer.status !== 201) throw new Error(answer.text)
    return answer.json.event_id
  }

  return {
    app,
    db,
    jobs,
    commands,
    call,
    makeEvent,
    async close() {
      await app.close()
      await jobs.close()
    },
  }
}

export type Api = Awaited<ReturnType<typeof openApi>>

/** A pool on a port where nobody answers. */
export const unreachableDatabase = (): Database =>
  openDatabase({ url: 'postgres://nobody@127.0.0.1:1/none', name: 'test' })
