// The API's description at /openapi.json, made from the routes themselves, and a page to read and try it at /docs, which
// loads nothing from elsewhere. What all routes share (the key, Prefer, who may call, how they fail) is added here.

import swagger from '@fastify/swagger'
import swaggerUi from '@fastify/swagger-ui'
import Fastify, { type FastifyInstance, type FastifySchema, type RouteOptions } from 'fastify'
import type { ErrorCode } from '../../domain/errors.ts'
import { notFound, problem, problems, toAppError } from '../problem.ts'
import { type Access, send } from './guard.ts'
import { commandAccepted } from './schemas.ts'

const securityOf: Record<Access, Record<string, never[]>[]> = {
  open: [],
  user: [{ bearer: [] }, { mockUser: [] }],
  internal: [{ internal: [] }],
  any: [{ bearer: [] }, { mockUser: [] }, { internal: [] }],
  self: [{ bearer: [] }, { mockUser: [] }, { internal: [] }],
}

const openapi = {
  openapi: '3.1.0',
  info: {
    title: 'Flotilla',
    version: '1',
    description:
      'Holds, confirms and cancels tickets. Every write is safe to repeat with its Idempotency-Key; errors are RFC 9457 problems whose `code` is stable.',
  },
  tags: [
    { name: 'events', description: 'what is sold' },
    { name: 'reservations', description: 'holds of seats, and what becomes of them' },
    { name: 'items', description: 'what is offered besides, found by words and by likeness' },
    { name: 'users', description: 'where notifications go' },
    { name: 'jobs', description: 'jobs made by internal programs' },
    { name: 'webhooks', description: 'what providers tell of their own accord' },
    { name: 'commands', description: 'the outcome of writes asked for with Prefer: respond-async' },
  ],
  components: {
    securitySchemes: {
      bearer: { type: 'http', scheme: 'bearer', bearerFormat: 'JWT' },
      mockUser: {
        type: 'apiKey',
        in: 'header',
        name: 'X-Mock-User-Id',
        description: 'development',
      },
      internal: { type: 'apiKey', in: 'header', name: 'X-Internal-Auth' },
    },
  },
} as const

/** An instance of its own: it describes the routes and serves the page, and answers none of them. */
export async function createDocs(routes: readonly RouteOptions[]): Promise<FastifyInstance> {
  const docs = Fastify()
  docs.setValidatorCompiler(() => () => true)
  docs.setSerializerCompiler(() => (data) => JSON.stringify(data))
  docs.setNotFoundHandler((request, reply) => send(reply, problem(notFound(request.url))))
  docs.setErrorHandler((error, _request, reply) => send(reply, problem(toAppError(error))))
  await docs.register(swagger, {
    openapi: openapi as never,
    transform: ({ schema, url, route }) => ({ schema: describe(schema ?? {}, route), url }),
  })
  await docs.register(swaggerUi, { routePrefix: '/docs', staticCSP: true })
  for (const { method, url, schema, config } of routes) {
    docs.route({ method, url, schema: schema ?? {}, config: config ?? {}, handler: async () => {} })
  }
  let text: string | undefined
  docs.get('/openapi.json', { schema: { hide: true } }, async (_request, reply) => {
    text ??= JSON.stringify(docs.swagger())
    return reply.header('content-type', 'application/json; charset=utf-8').send(text)
  })
  await docs.ready()
  return docs
}

const requestIdHeader = {
  'X-Request-Id': {
    type: 'string',
    maxLength: 128,
    description: 'comes back, and is in every log line',
  },
}
const writeHeaders = {
  'Idempotency-Key': {
    type: 'string',
    pattern: '^[0-9a-f]{12}4[0-9a-f]{3}[89ab][0-9a-f]{15}$',
    description:
      'a UUID v4, lower case, without hyphens; bare or quoted. The same key gives the same answer for 48 h',
    examples: ['a0eebc999c0b4ef8bb6d6bb9bd380a11'],
  },
  Prefer: {
    type: 'string',
    description: 'respond-async: 202 at once, the outcome is at Location',
    examples: ['respond-async'],
  },
}

function describe(schema: FastifySchema, route: RouteOptions): FastifySchema {
  if (schema.hide) return schema
  const { access = 'open', keyed = false, problems: own = [] } = route.config ?? {}
  const response: Record<string, unknown> = { ...(schema.response as object) }
  if (keyed) response[202] = { description: 'A durable job will do it', ...commandAccepted }
  const codes: ErrorCode[] = [...general(access, keyed), ...own]
  for (const [status, group] of Map.groupBy(codes, (code) => problems[code].status)) {
    response[status] = problemResponse(status, group)
  }
  return {
    ...schema,
    security: securityOf[access],
    headers: {
      type: 'object',
      required: keyed ? ['Idempotency-Key'] : [],
      properties: keyed ? { ...writeHeaders, ...requestIdHeader } : requestIdHeader,
    },
    response,
  }
}

function general(access: Access, keyed: boolean): ErrorCode[] {
  const codes: ErrorCode[] = ['RATE_LIMITED', 'UNAVAILABLE', 'INTERNAL']
  if (access !== 'open') codes.push('UNAUTHENTICATED')
  if (access === 'internal' || access === 'self') codes.push('FORBIDDEN')
  if (keyed) {
    codes.push('IDEMPOTENCY_KEY_MISSING', 'IDEMPOTENCY_KEY_INVALID', 'INVALID_JSON')
    codes.push('VALIDATION_FAILED', 'IDEMPOTENCY_KEY_IN_USE', 'IDEMPOTENCY_KEY_REUSED')
    codes.push('BODY_TOO_LARGE', 'UNSUPPORTED_MEDIA_TYPE')
    codes.push('LOCK_TIMEOUT', 'OVERLOADED', 'OUTCOME_UNKNOWN')
  }
  return codes
}

const problemResponse = (status: number, codes: ErrorCode[]) => ({
  description: codes.map((code) => `${code}: ${problems[code].title}`).join('; '),
  content: {
    'application/problem+json': {
      schema: {
        type: 'object',
        properties: {
          type: { type: 'string' },
          title: { type: 'string' },
          status: { type: 'integer', enum: [status] },
          code: { type: 'string', enum: codes },
          detail: { type: 'string' },
          ...(codes.includes('VALIDATION_FAILED') && {
            errors: {
              type: 'array',
              items: {
                type: 'object',
                properties: { path: { type: 'string' }, message: { type: 'string' } },
              },
            },
          }),
        },
      },
    },
  },
})
