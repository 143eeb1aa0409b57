// Builds the Fastify instance from its parts, so that a test can build one without a process: how bodies are read, how
// requests are told apart, what happens to errors, and which routes there are. It listens to nothing and opens nothing.

import { randomUUID } from 'node:crypto'
import type { IncomingMessage } from 'node:http'
import Fastify, {
  type FastifyBaseLogger,
  type FastifyInstance,
  type FastifyRequest,
  LogController,
} from 'fastify'
import parseJson from 'secure-json-parse'
import type { Jobs } from '../../db/jobs.ts'
import type { Db } from '../../db/schema.ts'
import { AppError } from '../../domain/errors.ts'
import { notFound, problem, toAppError } from '../problem.ts'
import { invalid } from '../validation.ts'
import type { HttpConfig } from './config.ts'
import { addConsole, type ConsoleMount } from './console.ts'
import { createGuard, type GuardParts, send } from './guard.ts'
import { createRunLater } from './later.ts'
import { addMethods } from './methods.ts'
import { addOpenApi } from './openapi.ts'
import { addCommandRoutes } from './routes/commands.ts'
import { addEventRoutes } from './routes/events.ts'
import { addItemRoutes, type ItemParts } from './routes/items.ts'
import { addJobRoutes } from './routes/jobs.ts'
import { addQuotaRoutes } from './routes/quotas.ts'
import { addReservationRoutes } from './routes/reservations.ts'
import { addStripeRoutes } from './routes/stripe.ts'
import { addUserRoutes } from './routes/users.ts'
import { addWebhookRoutes } from './routes/webhooks.ts'
import { noBody } from './schemas.ts'
import { traceRequests } from './trace.ts'

export type ServerParts = Omit<GuardParts, 'runLater'> &
  Pick<ItemParts, 'found'> & {
    config: GuardParts['config'] &
      Pick<
        HttpConfig,
        'TRUSTED_PROXIES' | 'HTTP_REQUEST_TIMEOUT' | 'MAILGUN_SIGNING_KEY' | 'STRIPE_WEBHOOK_SECRET'
      > &
      ConsoleMount['config']
    db: Db
    jobs: Jobs
    log: FastifyBaseLogger
    /** Told of every answer: the route's pattern, never the path that was asked for. */
    onAnswer?(method: string, route: string, status: number, seconds: number): void
  }

export const bodyMaxBytes = 64 * 1024
/** Of one process: far more than it can serve at once, fewer than the usual limit of descriptors, 65,536. */
export const connectionsMax = 10_000
const headersTimeoutMs = 10_000
/** How exactly the timeouts are kept. */
const timeoutCheckMs = 1000
/** Longer than the idle time of the usual load balancers (60 s), so that it is they who hang up. */
const keepAliveMs = 65_000

export async function createServer(parts: ServerParts): Promise<FastifyInstance> {
  const requestTimeout = parts.config.HTTP_REQUEST_TIMEOUT * 1000
  const app = Fastify({
    loggerInstance: parts.log,
    logController: new LogController({
      disableRequestLogging: true,
      requestIdLogLabel: 'request_id',
    }),
    genReqId: requestId,
    bodyLimit: bodyMaxBytes,
    requestTimeout,
    keepAliveTimeout: keepAliveMs,
    http: {
      headersTimeout: Math.min(headersTimeoutMs, requestTimeout),
      connectionsCheckingInterval: timeoutCheckMs,
    },
    trustProxy: parts.config.TRUSTED_PROXIES ?? false,
    routerOptions: { maxParamLength: 1024 },
    // Requests that come after the close are refused below, as problems.
    return503OnClosing: false,
    forceCloseConnections: 'idle',
    ajv: {
      customOptions: {
        coerceTypes: false,
        removeAdditional: false,
        useDefaults: false,
        // Else a text or a list that is too long is looked at to its end, by every other rule.
        allErrors: false,
        verbose: true,
      },
    },
    frameworkErrors: (error, request, reply) => {
      send(reply.header('x-request-id', request.id), problem(toAppError(error)))
    },
    clientErrorHandler: (error, socket) => {
      if (socket.writable) socket.write(malformed(error.code))
      socket.destroy()
    },
  })
  app.server.maxConnections = connectionsMax
  // Answers are finished texts; compiling serializers for the schemas of the OpenAPI page would be for nothing.
  app.setSerializerCompiler(() => (data) => JSON.stringify(data))
  app.decorateRequest('caller')
  app.decorateRequest('key', '')
  app.decorateRequest('unparsed')
  app.decorateRequest('text')
  readBodies(app)
  answerErrors(app, parts)
  traceRequests(app)
  observe(app, parts)

  const guard = createGuard({ ...parts, runLater: createRunLater(parts) })
  let closing = false
  app.addHook('preClose', async () => {
    closing = true
  })
  app.addHook('onRequest', async (request, reply) => {
    reply.header('x-request-id', request.id)
    reply.header('x-content-type-options', 'nosniff')
    if (closing) {
      throw new AppError('UNAVAILABLE', 'this instance is going down', { retryAfterMs: 1000 })
    }
    await guard.admit(request)
  })
  app.addHook('onSend', (_request, reply, payload, done) => {
    if (closing) reply.header('connection', 'close')
    done(null, payload)
  })

  addOpenApi(app)
  addConsole(app, parts)
  const methods = addMethods(app)
  await app.register(
    async (api) => {
      // Answers are somebody's own, and pages are not made of them.
      api.addHook('onRequest', (_request, reply, done) => {
        reply.header('cache-control', 'no-store')
        reply.header('content-security-policy', "default-src 'none'; frame-ancestors 'none'")
        done()
      })
      addEventRoutes(api, guard, parts)
      addReservationRoutes(api, guard, parts)
      addUserRoutes(api, guard)
      addQuotaRoutes(api, guard)
      addItemRoutes(api, guard, parts)
      addCommandRoutes(api, guard, parts)
      addJobRoutes(api, guard, parts)
      addWebhookRoutes(api, parts)
      addStripeRoutes(api, parts)
      methods.refuseOthers(api)
    },
    { prefix: '/api/v1' },
  )
  return app
}

/** @throws Error that names the setting, when the port is taken or not ours to take */
export async function listen(
  app: FastifyInstance,
  { HTTP_HOST: host, HTTP_PORT: port }: Pick<HttpConfig, 'HTTP_HOST' | 'HTTP_PORT'>,
): Promise<void> {
  try {
    await app.listen({ host, port })
  } catch (cause) {
    const { message } = cause as Error
    throw new Error(`HTTP_PORT ${port} on ${host} cannot be listened on: ${message}`, { cause })
  }
}

const requestIdSyntax = /^[\x21-\x7e]{1,128}$/

/** The caller's own X-Request-Id when it can stand in a header and a log line, else a new one. */
function requestId({ headers }: Pick<IncomingMessage, 'headers'>): string {
  const given = headers['x-request-id']
  return typeof given === 'string' && requestIdSyntax.test(given) ? given : randomUUID()
}

/** JSON only. What does not parse is kept: the guard tells it after the replay and the limits. */
function readBodies(app: FastifyInstance): void {
  app.removeAllContentTypeParsers()
  app.addContentTypeParser<string>(
    'application/json',
    { parseAs: 'string' },
    (request, text, done) => {
      const encoding = request.headers['content-encoding'] ?? 'identity'
      if (encoding !== 'identity') {
        return done(
          new AppError('UNSUPPORTED_MEDIA_TYPE', 'send the body without Content-Encoding'),
        )
      }
      if (request.routeOptions.config.keepsText) request.text = text
      try {
        done(null, text === '' ? undefined : parseJson(text))
      } catch (cause) {
        request.unparsed = { text, error: unparsable(text, cause) }
        done(null, undefined)
      }
    },
  )
  // A write that takes no body, such as a confirmation, may also be sent an empty object: they are the same request.
  app.addHook('preValidation', (request, _reply, done) => {
    const takesNone = request.routeOptions.schema?.body === noBody
    if (takesNone && request.body === undefined) request.body = {}
    done()
  })
}

function unparsable(text: string, cause: unknown): AppError {
  try {
    JSON.parse(text)
  } catch (syntax) {
    const detail = `the body is not JSON: ${(syntax as Error).message.slice(0, 120)}`
    return new AppError('INVALID_JSON', detail, {}, { cause })
  }
  const message = 'must not have a key __proto__ or constructor.prototype'
  return invalid([{ path: '', message }])
}

function answerErrors(app: FastifyInstance, { auth }: ServerParts): void {
  app.setErrorHandler((thrown, request, reply) => {
    const error = toAppError(thrown)
    const answer = problem(error)
    if (answer.status >= 500) {
      request.log.error(
        { err: error.cause ?? error, code: error.code, ip: request.ip },
        error.message,
      )
    } else request.log.debug({ code: error.code }, error.message)
    if (answer.status === 401) reply.header('www-authenticate', auth.challenge(request.headers))
    return send(reply, answer)
  })
  app.setNotFoundHandler((request) => {
    throw notFound(request.url)
  })
}

function observe(app: FastifyInstance, { onAnswer }: ServerParts): void {
  if (onAnswer === undefined) return
  app.addHook('onResponse', (request: FastifyRequest, reply, done) => {
    const route = request.routeOptions.url ?? 'none'
    onAnswer(request.method, route, reply.statusCode, reply.elapsedTime / 1000)
    done()
  })
}

/** A request that was not HTTP, or came too slowly: there is no reply object to answer it with. */
function malformed(code: string | undefined): string {
  const [status, reason] =
    code === 'ERR_HTTP_REQUEST_TIMEOUT'
      ? [408, 'Request Timeout']
      : code === 'HPE_HEADER_OVERFLOW'
        ? [431, 'Request Header Fields Too Large']
        : [400, 'Bad Request']
  const body = JSON.stringify({
    type: 'about:blank',
    title: reason,
    status,
    code: 'BAD_REQUEST',
    detail: 'the request could not be read',
  })
  return `HTTP/1.1 ${status} ${reason}\r\nconnection: close\r\ncontent-type: application/problem+json\r\ncontent-length: ${body.length}\r\n\r\n${body}`
}
