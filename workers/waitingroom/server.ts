// The REST side of the waiting room, and the HTTP server that the sockets come in by. Fastify serves joining, polling,
// leaving, what operators do, and the page a person can stand in; connections that stay never reach it.

import { randomUUID } from 'node:crypto'
import { createServer as createHttpServer, type IncomingMessage, type Server } from 'node:http'
import type { Socket } from 'node:net'
import Fastify, {
  type FastifyBaseLogger,
  type FastifyInstance,
  type FastifyReply,
  type FastifyRequest,
  LogController,
} from 'fastify'
import parseJson from 'secure-json-parse'
import { leaveTurn } from '../../db/queueTurns.ts'
import type { Db } from '../../db/schema.ts'
import { AppError } from '../../domain/errors.ts'
import { type Joined, QueueAway, type QueueStore } from '../../domain/waitingroom.ts'
import type { Authenticate } from '../auth.ts'
import type { Log } from '../log.ts'
import { notFound, problem, toAppError } from '../problem.ts'
import { fieldErrors, invalid } from '../validation.ts'
import { checkoutUrl, placeBody } from './answers.ts'
import type { WaitingroomConfig } from './config.ts'
import { change, closeQueue, openQueue } from './control.ts'
import { statusOf } from './crowd.ts'
import { createFlood } from './floods.ts'
import type { WaitingroomMetrics } from './metrics.ts'
import { addPage } from './page.ts'
import type { Restorer } from './restore.ts'
import type { Room } from './room.ts'
import type { Rooms } from './rooms.ts'
import type { Sockets } from './sockets.ts'
import type { QueueTicket, Tokens } from './tokens.ts'

export type ServerParts = {
  config: Pick<
    WaitingroomConfig,
    | 'AUTH_MODE'
    | 'CHECKOUT_URL'
    | 'WAITINGROOM_URL'
    | 'TRUSTED_PROXIES'
    | 'QUEUE_JOINS_PER_USER'
    | 'QUEUE_JOINS_PER_ADDRESS'
  >
  db: Db
  store: QueueStore
  rooms: Rooms
  tokens: Tokens
  auth: Authenticate
  restorer: Restorer
  sockets: Sockets
  metrics: WaitingroomMetrics
  log: FastifyBaseLogger
}

const bodyMaxBytes = 16 * 1024
/** A herd that comes back waits for its turn: who is slow then is this process. */
const headersTimeoutMs = 30_000
const requestTimeoutMs = 40_000
const keepAliveMs = 65_000

const matchParams = {
  type: 'object',
  properties: {
    match: {
      type: 'string',
      pattern: '^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$',
      description: 'a UUID',
    },
  },
} as const
const none = { type: 'object', additionalProperties: false, properties: {} } as const
const whole = (maximum: number) =>
  ({
    type: 'integer',
    minimum: 0,
    maximum,
    description: `a whole number from 0 to ${maximum}`,
  }) as const

export async function createServer(parts: ServerParts): Promise<FastifyInstance> {
  const app = Fastify({
    loggerInstance: parts.log,
    logController: new LogController({
      disableRequestLogging: true,
      requestIdLogLabel: 'request_id',
    }),
    genReqId: () => randomUUID(),
    bodyLimit: bodyMaxBytes,
    trustProxy: parts.config.TRUSTED_PROXIES ?? false,
    routerOptions: { maxParamLength: 1024 },
    forceCloseConnections: 'idle',
    ajv: {
      customOptions: {
        coerceTypes: false,
        removeAdditional: false,
        allErrors: false,
        verbose: true,
      },
    },
    frameworkErrors: (error, _request, reply) => answerError(error, reply, parts),
    serverFactory: (handle) => makeHttpServer(handle, parts.sockets),
  })
  readBodies(app)
  app.setErrorHandler((thrown, _request, reply) => answerError(thrown, reply, parts))
  app.setNotFoundHandler((request) => {
    throw notFound(request.url)
  })
  app.addHook('onRequest', (_request, reply, done) => {
    reply.header('x-content-type-options', 'nosniff').header('cache-control', 'no-store')
    done()
  })
  addPlaceRoutes(app, parts)
  addOperatorRoutes(app, parts)
  addPage(app, parts)
  return app
}

type Handle = Parameters<typeof createHttpServer>[1]

function makeHttpServer(handle: NonNullable<Handle>, sockets: Sockets): Server {
  const options = {
    keepAliveTimeout: keepAliveMs,
    headersTimeout: headersTimeoutMs,
    requestTimeout: requestTimeoutMs,
    connectionsCheckingInterval: 5000,
    noDelay: true,
  }
  const server = createHttpServer(options, (request, response) => {
    if (!sockets.stream(request, response)) handle(request, response)
  })
  server.on('upgrade', (request: IncomingMessage, socket, head) => {
    sockets.upgrade(request, socket as Socket, head)
  })
  return server
}

/** JSON, or nothing at all. */
function readBodies(app: FastifyInstance): void {
  app.removeAllContentTypeParsers()
  app.addContentTypeParser<string>(
    'application/json',
    { parseAs: 'string' },
    (_request, text, done) => {
      try {
        done(null, text === '' ? undefined : parseJson(text))
      } catch (cause) {
        done(new AppError('INVALID_JSON', 'the body is not JSON', {}, { cause }))
      }
    },
  )
  app.addHook('preValidation', (request, _reply, done) => {
    if (request.body === undefined && request.method === 'POST') request.body = {}
    done()
  })
}

function answerError(thrown: unknown, reply: FastifyReply, { log }: ServerParts): FastifyReply {
  const error = errorOf(thrown)
  const { status, headers, body } = problem(error)
  if (error.cause instanceof QueueAway) tellAway(log, error)
  else if (status >= 500) log.error({ err: error.cause ?? error, code: error.code }, error.message)
  return reply.code(status).headers(headers).send(body)
}

let awayToldAt = Number.NEGATIVE_INFINITY
let awaySince = 0

/** A crowd asks while the store is away: one line a second says so, and of how many. */
function tellAway(log: Pick<Log, 'warn'>, error: AppError): void {
  awaySince++
  const now = performance.now()
  if (now - awayToldAt < 1000) return
  log.warn({ err: error.cause, code: error.code, refused: awaySince }, error.message)
  awayToldAt = now
  awaySince = 0
}

function errorOf(thrown: unknown): AppError {
  if (thrown instanceof QueueAway) {
    const text = 'the waiting room cannot answer just now; your place is kept'
    return new AppError('UNAVAILABLE', text, { retryAfterMs: 2000 }, { cause: thrown })
  }
  const { validation, validationContext } = thrown as Partial<{
    validation: Parameters<typeof fieldErrors>[0]
    validationContext: string
  }>
  if (validation && validationContext === 'params') {
    return new AppError('EVENT_NOT_FOUND', 'the id of a match is a UUID, and this is none')
  }
  if (validation) return invalid(fieldErrors(validation))
  return toAppError(thrown)
}

const matchOf = (request: FastifyRequest) =>
  (request.params as { match: string }).match.toLowerCase()

function addPlaceRoutes(app: FastifyInstance, parts: ServerParts): void {
  const { config, db, store, rooms, tokens, auth, restorer, metrics } = parts
  const perUser = createFlood(config.QUEUE_JOINS_PER_USER)
  const perAddress = createFlood(config.QUEUE_JOINS_PER_ADDRESS)

  /** Before the address: who asks too often must not use up what a whole office shares. */
  function charge(request: FastifyRequest, userId: string): void {
    const waitMs = perUser.take(userId) || perAddress.take(request.ip)
    if (waitMs === 0) return
    metrics.refused('rate')
    throw new AppError('RATE_LIMITED', 'too many joins a minute from here', {
      retryAfterMs: waitMs,
    })
  }

  async function userOf(request: FastifyRequest): Promise<string> {
    const { userId } = await auth.caller(request.headers)
    if (userId === undefined) throw new AppError('UNAUTHENTICATED', 'this needs a user')
    return userId
  }

  function bodyOf(request: FastifyRequest, room: Room, userId: string, joined: Joined) {
    if (joined.is === 'closed') throw closed(joined.reason)
    const { matchId, state } = room
    const place =
      joined.is === 'waiting'
        ? joined.ticket
        : { seat: joined.window.seat, joinedUs: 0, epoch: state.epoch }
    const token = tokens.sign({ matchId, userId, ...place })
    const session = joined.is === 'admitted' ? joined.window.sessionToken : ''
    return placeBody(room, joined, {
      token,
      base: config.WAITINGROOM_URL ?? `${request.protocol}://${request.host}`,
      checkout: checkoutUrl(config.CHECKOUT_URL, matchId, session),
    })
  }

  /** A token of before the store lost everything gives the place back. */
  async function rejoin(room: Room, userId: string, token: string | undefined) {
    if (token === undefined) return undefined
    let ticket: QueueTicket
    try {
      ticket = tokens.verify(token)
    } catch {
      return undefined
    }
    if (ticket.userId !== userId || ticket.matchId !== room.matchId) return undefined
    return await restorer.restore(room, ticket)
  }

  app.post('/api/v1/queue/:match/join', {
    schema: {
      params: matchParams,
      body: {
        type: 'object',
        additionalProperties: false,
        properties: {
          queue_token: { type: 'string', maxLength: 1024, description: 'a queue token' },
        },
      },
    },
    handler: async (request) => {
      const userId = await userOf(request)
      charge(request, userId)
      const room = await rooms.get(matchOf(request))
      const { queue_token } = request.body as { queue_token?: string }
      const joined =
        (await rejoin(room, userId, queue_token)) ?? (await store.join(room.matchId, userId))
      const body = bodyOf(request, room, userId, joined)
      metrics.joined(joined.is === 'waiting' && joined.isNew)
      const session = {
        position: body.position,
        queue_token: body.queue_token!,
        websocket_id: null,
      }
      await store.noteSession(room.matchId, userId, session)
      return body
    },
  })

  app.get('/api/v1/queue/:match/position', {
    schema: { params: matchParams },
    handler: async (request) => {
      const room = await rooms.get(matchOf(request))
      const given = request.headers['x-queue-token']
      if (typeof given === 'string') return positionByToken(request, room, given)
      const userId = await userOf(request)
      const found = await store.find(room.matchId, userId)
      if (found === undefined) throw notIn(room)
      return bodyOf(request, room, userId, found)
    },
  })

  /** Answered by what this process knows, while it knows the place. */
  async function positionByToken(request: FastifyRequest, room: Room, token: string) {
    const ticket = tokens.verify(token)
    if (ticket.matchId !== room.matchId) {
      throw new AppError('QUEUE_TOKEN_INVALID', 'the queue token is of another match')
    }
    const { userId, seat, joinedUs } = ticket
    const position = room.position(seat)
    const isKnown = position > 0 && ticket.epoch === room.state.epoch
    if (isKnown && room.state.status !== 'closed') {
      await store.touch(room.matchId, [userId])
      const known = { seat, joinedUs, epoch: ticket.epoch }
      return bodyOf(request, room, userId, { is: 'waiting', ticket: known, position, isNew: false })
    }
    const found = (await restorer.restore(room, ticket)) ?? (await store.find(room.matchId, userId))
    if (found === undefined) throw notIn(room)
    return bodyOf(request, room, userId, found)
  }

  app.delete('/api/v1/queue/:match', {
    schema: { params: matchParams },
    handler: async (request, reply) => {
      const userId = await userOf(request)
      const room = await rooms.get(matchOf(request))
      const gone =
        (await store.leave(room.matchId, userId)) || (await leaveTurn(db, room.matchId, userId))
      if (!gone) throw notIn(room)
      return reply.code(204).send()
    },
  })

  app.get('/api/v1/queue/:match', {
    schema: { params: matchParams },
    handler: async (request) => {
      const { internal } = await auth.caller(request.headers)
      const room = await rooms.get(matchOf(request))
      return { ...publicBody(room), ...(internal && operatorBody(room)) }
    },
  })
}

const closed = (reason: string) =>
  new AppError('QUEUE_CLOSED', `the queue is closed: ${reason}`, { reason })

const notIn = (room: Room) =>
  room.state.status === 'closed'
    ? closed(room.state.reason ?? 'closed')
    : new AppError('NOT_IN_QUEUE', 'you have no place in this queue: join it')

/** What everybody may know: also what the draw can be checked by. */
const publicBody = (room: Room) => ({
  match_id: room.matchId,
  status: statusOf(room),
  waiting: room.line.size,
  draw: {
    commitment: room.state.commitment,
    ...(room.state.phase === 'open' && {
      seed: room.state.seed ?? null,
      lobby_size: room.state.lobbySize,
    }),
  },
})

const operatorBody = (room: Room) => ({
  newest_number: room.lastSeat,
  open_windows: room.windows.size,
  rate: room.state.ratePerMinute,
  capacity: room.state.capacity,
  pace: room.state.pacePerMinute,
  estimated_wait_minutes: room.estimate(Math.max(1, room.line.size)),
})

function addOperatorRoutes(app: FastifyInstance, parts: ServerParts): void {
  const { auth, rooms } = parts

  /** Before anything else of the request is looked at. */
  async function authorize(request: FastifyRequest): Promise<void> {
    const { internal, userId } = await auth.caller(request.headers)
    if (!internal) {
      throw userId === undefined
        ? new AppError('UNAUTHENTICATED', 'this needs X-Internal-Auth')
        : new AppError('FORBIDDEN', 'this is for internal programs, by X-Internal-Auth')
    }
  }

  const route = (
    name: string,
    body: object,
    act: (matchId: string, body: Record<string, unknown>) => Promise<void>,
  ) =>
    app.post(`/api/v1/queue/:match/${name}`, {
      onRequest: authorize,
      schema: { params: matchParams, body },
      handler: async (request) => {
        const room = await rooms.get(matchOf(request))
        await act(room.matchId, request.body as Record<string, unknown>)
        await room.sync()
        return { ...publicBody(room), ...operatorBody(room) }
      },
    })

  route('open', none, (matchId) => openQueue(parts, matchId))
  route('pause', none, (matchId) => change(parts, matchId, { status: 'paused' }))
  route('resume', none, async (matchId) => {
    if (rooms.peek(matchId)?.state.phase !== 'open') {
      throw new AppError('QUEUE_CLOSED', 'the queue is not open yet: open it')
    }
    await change(parts, matchId, { status: 'active' })
  })
  route(
    'rate',
    {
      type: 'object',
      additionalProperties: false,
      properties: { rate: whole(1_000_000), capacity: whole(1_000_000) },
      minProperties: 1,
      description: 'an object with rate (users a minute), capacity (open windows), or both',
    },
    (matchId, { rate, capacity }) =>
      change(parts, matchId, {
        ...(rate !== undefined && { ratePerMinute: rate as number }),
        ...(capacity !== undefined && { capacity: capacity as number }),
      }),
  )
  route(
    'sold-out',
    {
      type: 'object',
      additionalProperties: false,
      properties: {
        remaining_sectors: {
          type: 'array',
          maxItems: 1000,
          items: { type: 'string', maxLength: 64, description: 'the name of a section' },
          description: 'a list of sections that still have places',
        },
      },
    },
    (matchId, { remaining_sectors = [] }) =>
      closeQueue(parts, matchId, 'sold_out', remaining_sectors as string[]),
  )
}
