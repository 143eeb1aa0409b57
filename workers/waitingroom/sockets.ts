// Connections that stay: `/ws/<token>` as a WebSocket, `/sse/<token>` as an event stream. A good token, a room that is
// known and a place in it are all a connection needs: a herd that comes back after a restart asks no store. What is
// refused is answered and closed; what sends too much, or a message of more than a kilobyte, is cut off.

import type { IncomingMessage, ServerResponse } from 'node:http'
import type { Socket } from 'node:net'
import { WebSocket, WebSocketServer } from 'ws'
import { AppError } from '../../domain/errors.ts'
import type { QueueStore } from '../../domain/waitingroom.ts'
import type { Log } from '../log.ts'
import { problem, toAppError } from '../problem.ts'
import { Client } from './client.ts'
import type { Crowd } from './crowd.ts'
import type { WaitingroomMetrics } from './metrics.ts'
import type { Restorer } from './restore.ts'
import type { Room } from './room.ts'
import type { Rooms } from './rooms.ts'
import type { QueueTicket, Tokens } from './tokens.ts'

export type SocketParts = {
  log: Log
  crowd: Crowd
  rooms: Rooms
  tokens: Tokens
  store: QueueStore
  restorer: Restorer
  metrics: WaitingroomMetrics
  socketsMax: number
}

export type Sockets = {
  upgrade(request: IncomingMessage, socket: Socket, head: Buffer): void
  /** @returns false: the request is not for an event stream */
  stream(request: IncomingMessage, response: ServerResponse): boolean
  /** Takes no more. */
  refuseMore(): void
}

/** A heartbeat is some 20 bytes. */
const messageMaxBytes = 1024

/** ws makes these: what hangs on a connection is one field more. */
class Connection extends WebSocket {
  client: Client | undefined = undefined
}

export function createSockets(parts: SocketParts): Sockets {
  const { crowd, rooms, tokens, store, restorer, metrics, log, socketsMax } = parts
  const server = new WebSocketServer({
    noServer: true,
    clientTracking: false,
    perMessageDeflate: false,
    maxPayload: messageMaxBytes,
    // ASCII is all we read.
    skipUTF8Validation: true,
    WebSocket: Connection,
  })
  let closing = false
  let connections = 0

  // One function for all, by `this`: a closure a connection would cost as much as the client.
  function onMessage(this: WebSocket): void {
    const { client } = this as Connection
    if (client !== undefined) crowd.hear(client)
  }
  function onClose(this: WebSocket): void {
    const { client } = this as Connection
    if (client !== undefined) crowd.detach(client)
  }
  /** A frame that is too large, or none: ws closes the connection with the right code. */
  function onError(): void {}

  /** Who may come in. A promise only where the place has to be given back first. */
  function admit(token: string): { room: Room; ticket: QueueTicket } | Promise<Admitted> {
    if (closing) throw refuse('closing', 'this instance is going down')
    if (crowd.size >= socketsMax)
      throw refuse('full', 'this instance has all the connections it takes')
    const ticket = verified(token)
    const room = rooms.peek(ticket.matchId)
    if (room === undefined || ticket.epoch < room.state.epoch) return admitSlowly(ticket)
    return { room, ticket }
  }

  async function admitSlowly(ticket: QueueTicket): Promise<Admitted> {
    const room = await rooms.get(ticket.matchId)
    const known = room.line.has(room.placeOf(ticket.seat)) || room.windows.has(ticket.seat)
    if (ticket.epoch < room.state.epoch && !known) {
      await restorer.restore(room, ticket)
      await room.sync()
      if (!room.line.has(room.placeOf(ticket.seat))) {
        // It comes with the leader's next step.
        room.restoring.add(ticket.seat)
        setTimeout(() => room.restoring.delete(ticket.seat), restoredMs).unref()
      }
    }
    return { room, ticket }
  }

  function verified(token: string): QueueTicket {
    try {
      return tokens.verify(token)
    } catch (error) {
      metrics.refused('token')
      throw error
    }
  }

  function refuse(why: 'closing' | 'full', text: string): AppError {
    metrics.refused(why)
    return new AppError('UNAVAILABLE', text, { retryAfterMs: 1000 + Math.random() * 4000 })
  }

  function takeWebSocket(
    { room, ticket }: Admitted,
    request: IncomingMessage,
    socket: Socket,
    head: Buffer,
    token: string,
  ): void {
    server.handleUpgrade(request, socket, head, (ws) => {
      const connection = ws as Connection
      const client = new Client(socket, 'ws', room, ticket)
      client.ws = connection
      connection.client = client
      connection.on('message', onMessage).on('close', onClose).on('error', onError)
      crowd.attach(client)
      note(client, token)
    })
  }

  /** For whoever looks a session up; nobody waits for it. */
  function note(client: Client, token: string): void {
    const { room, seat, userId } = client
    const position = room.position(seat)
    if (position === 0) return
    const websocket_id = client.ws === undefined ? null : `${process.pid}-${++connections}`
    store
      .noteSession(room.matchId, userId, { position, queue_token: token, websocket_id })
      .catch(() => {})
  }

  function takeStream({ room, ticket }: Admitted, request: IncomingMessage, token: string): void {
    const { socket } = request
    if (socket.destroyed) return
    // Of no length, and the last of its connection: what follows is written to the socket as it is.
    socket.write(streamHead)
    socket.setTimeout(0)
    socket.setNoDelay(true)
    const client = new Client(socket, 'sse', room, ticket)
    socket.once('close', () => crowd.detach(client))
    const lastId = request.headers['last-event-id']
    crowd.attach(client, typeof lastId === 'string' ? lastId : undefined)
    note(client, token)
  }

  function fail(socket: Socket, thrown: unknown): void {
    const error = toAppError(thrown)
    const { status, headers, body } = problem(error)
    if (status === 500) log.error({ err: error.cause ?? error }, error.message)
    const lines = Object.entries({
      ...headers,
      ...shared,
      'content-length': Buffer.byteLength(body),
      connection: 'close',
    }).map(([name, value]) => `${name}: ${value}\r\n`)
    if (socket.writable) socket.end(`HTTP/1.1 ${status} Refused\r\n${lines.join('')}\r\n${body}`)
  }

  const arrivals: (() => void)[] = []
  let working = false

  /** A herd that comes back must not keep those waiting who are here: it has a share of each slice of time. */
  function inTurn(work: () => void): void {
    arrivals.push(work)
    if (working) return
    working = true
    setImmediate(takeSome)
  }

  function takeSome(): void {
    const until = performance.now() + sliceShareMs
    let done = 0
    while (done < arrivals.length && performance.now() < until) arrivals[done++]!()
    arrivals.splice(0, done)
    working = arrivals.length > 0
    if (working) setTimeout(takeSome, sliceMs - sliceShareMs)
  }

  function whenAdmitted(token: string, socket: Socket, take: (admitted: Admitted) => void): void {
    try {
      const admitted = admit(token)
      if (admitted instanceof Promise) admitted.then(take).catch((error) => fail(socket, error))
      else take(admitted)
    } catch (error) {
      fail(socket, error)
    }
  }

  return {
    upgrade(request, socket, head) {
      // Nobody listens yet: a reset would end the process.
      socket.on('error', onError)
      const token = tokenOf(request, '/ws/')
      if (token === undefined) {
        return fail(socket, new AppError('NOT_FOUND', 'WebSockets are at /ws/<queue token>'))
      }
      inTurn(() => {
        if (socket.destroyed) return
        whenAdmitted(token, socket, (admitted) => {
          takeWebSocket(admitted, request, socket, head, token)
        })
      })
    },

    stream(request) {
      const token = tokenOf(request, '/sse/')
      if (token === undefined || request.method !== 'GET') return false
      const { socket } = request
      socket.on('error', onError)
      inTurn(() => {
        if (socket.destroyed) return
        whenAdmitted(token, socket, (admitted) => takeStream(admitted, request, token))
      })
      return true
    },

    refuseMore() {
      closing = true
    },
  }
}

type Admitted = { room: Room; ticket: QueueTicket }

const restoredMs = 5000
/** By the clock: on a machine that is busy with the others, fewer come in. */
const sliceMs = 20
const sliceShareMs = 5

/** The token stands in the URL, so no page of another origin can use what it does not know. */
const shared = { 'access-control-allow-origin': '*', 'cache-control': 'no-store' }

const streamHead = `HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n${Object.entries(shared)
  .map(([name, value]) => `${name}: ${value}\r\n`)
  .join('')}x-accel-buffering: no\r\nconnection: close\r\n\r\nretry: 3000\n\n`

function tokenOf({ url = '' }: IncomingMessage, prefix: string): string | undefined {
  if (!url.startsWith(prefix)) return undefined
  const end = url.indexOf('?')
  return url.slice(prefix.length, end < 0 ? undefined : end)
}
