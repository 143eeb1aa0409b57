// What tests of the waiting room begin with: an event that has one, its room, and servers as processes would be, several
// in one process: their loops run by themselves, and they end with the file.

import { once } from 'node:events'
import { createServer } from 'node:net'
import { after } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { pino } from 'pino'
import { Registry } from 'prom-client'
import { createEvent } from '../db/events.ts'
import type { Db } from '../db/schema.ts'
import { transaction } from '../db/transaction.ts'
import { changeRoom, ensureRoom } from '../db/waitingRooms.ts'
import type { QueueStore } from '../domain/waitingroom.ts'
import { readWaitingroomConfig } from '../workers/waitingroom/config.ts'
import { newSeed } from '../workers/waitingroom/lot.ts'
import { openWaitingroom, type Waitingroom } from '../workers/waitingroom/waitingroom.ts'
import { until } from './worker.ts'

export const internalSecret = 'a secret for internal programs'
export const tokenSecret = 'a secret for queue tokens'

export async function makeMatch(db: Db, { room = true, capacity = 1000, rate = 600 } = {}) {
  const matchId = await transaction(db, (tx) =>
    createEvent(tx, {
      name: 'Final',
      starts_at: '2030-07-01T18:00:00Z',
      waiting_room: true,
      sections: [{ name: 'A', rows: 10, seats_per_row: 10, price_minor: 5000, currency: 'EUR' }],
    }),
  )
  if (room) await ensureRoom(db, matchId, { ratePerMinute: rate, capacity, seed: newSeed() })
  return matchId
}

/** First come, first served from the start: a lobby that nobody stood in. */
export async function openAtOnce(db: Db, store: QueueStore, matchId: string): Promise<void> {
  const { drawnBaseUs } = await store.seal(matchId)
  await changeRoom(db, matchId, { phase: 'open', status: 'active', drawnBaseUs })
  await store.control(matchId, { phase: 'open', status: 'active' })
}

export type TestWaitingroom = Waitingroom & {
  base: string
  call(method: string, path: string, given?: Call): Promise<Answer>
  /** At once, as if its process had been killed: it says nothing to anybody. */
  kill(): Promise<void>
  /** The value of a counter with one label. */
  metricOf(name: string, label: string): Promise<number>
}
export type Call = {
  user?: string
  internal?: boolean
  body?: unknown
  headers?: Record<string, string>
}
/** Whatever the text holds. */
type Json = ReturnType<typeof JSON.parse>
export type Answer = { status: number; headers: Headers; json: Json }

const running = new Set<TestWaitingroom>()
after(async () => {
  for (const one of running) await one.kill()
})

export async function startWaitingroom(
  db: Db,
  env: Record<string, string> = {},
  given: { turnMs?: number; leadMs?: number } = {},
): Promise<TestWaitingroom> {
  const log = pino({ level: process.env.TEST_LOG ?? 'silent' })
  const config = readWaitingroomConfig({
    DATABASE_URL: 'postgres://unused',
    INTERNAL_AUTH_SECRET: internalSecret,
    QUEUE_TOKEN_SECRET: tokenSecret,
    WAITINGROOM_PORT: '0',
    QUEUE_JOINS_PER_USER: '0',
    QUEUE_JOINS_PER_ADDRESS: '0',
    ...env,
  })
  const registry = new Registry()
  const room = await openWaitingroom({ db, config, log, registry, ...given })
  const base = `http://127.0.0.1:${await room.listen()}`
  const ending = new AbortController()
  const loops = room.loops.map(async ({ pass, idleMs }) => {
    while (!ending.signal.aborted) {
      await pass(ending.signal, Number.POSITIVE_INFINITY).catch((error) => {
        log.warn({ err: error }, 'a pass failed')
      })
      await sleep(idleMs, undefined, { signal: ending.signal }).catch(() => {})
    }
  })
  const self: TestWaitingroom = {
    ...room,
    base,
    call: (method, path, given) => call(`${base}/api/v1/queue/${path}`, method, given),
    async metricOf(name, label) {
      const metric = await registry.getSingleMetric(name)?.get()
      const found = metric?.values.find(({ labels }) => Object.values(labels).includes(label))
      return found?.value ?? 0
    },
    async kill() {
      if (!running.delete(self)) return
      ending.abort()
      room.crowd.close()
      room.app.server.closeAllConnections()
      await Promise.all([...loops, room.app.close()])
      await room.close()
    },
  }
  running.add(self)
  return self
}

async function call(url: string, method: string, given: Call = {}): Promise<Answer> {
  const { user, internal, body, headers = {} } = given
  const answer = await fetch(url, {
    method,
    headers: {
      ...(user !== undefined && { 'x-mock-user-id': user }),
      ...(internal && { 'x-internal-auth': internalSecret }),
      ...(body !== undefined && { 'content-type': 'application/json' }),
      ...headers,
    },
    ...(body !== undefined && { body: typeof body === 'string' ? body : JSON.stringify(body) }),
  })
  const text = await answer.text()
  return { status: answer.status, headers: answer.headers, json: text && JSON.parse(text) }
}

export type Message = { type: string; [name: string]: Json }

/** Somebody's connection, and all it was told. */
export type Listener = {
  messages: Message[]
  /** The first message that fits, past or to come. */
  heard(isIt: (message: Message) => boolean): Promise<Message>
  closed: Promise<number>
  socket: WebSocket
}

export function listenAt(url: string): Listener {
  const socket = new WebSocket(url)
  const messages: Message[] = []
  socket.addEventListener('message', (event) => messages.push(JSON.parse(event.data)))
  const closed = new Promise<number>((resolve) => {
    socket.addEventListener('close', (event) => resolve(event.code))
  })
  socket.addEventListener('error', () => {})
  return {
    messages,
    closed,
    socket,
    async heard(isIt) {
      await until(() => messages.some(isIt))
      return messages.find(isIt)!
    },
  }
}

export async function freePort(): Promise<number> {
  const server = createServer().listen(0, '127.0.0.1')
  await once(server, 'listening')
  const { port } = server.address() as { port: number }
  server.close()
  await once(server, 'close')
  return port
}
