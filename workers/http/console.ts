// The way to the console (console/): its addresses, how its forms are read, and its parts, which are loaded when somebody
// first asks for it. Until then it costs a process nothing.

import type { FastifyBaseLogger, FastifyInstance, FastifyReply, FastifyRequest } from 'fastify'
import type { Db } from '../../db/schema.ts'
import { AppError } from '../../domain/errors.ts'
import type { RateLimiter } from '../../domain/limits.ts'
import type { HttpConfig } from './config.ts'
import type { Console } from './console/console.ts'
import type { Answer, Visit } from './console/visit.ts'

export type ConsoleMount = {
  db: Db
  limits: RateLimiter
  log: FastifyBaseLogger
  config: Pick<
    HttpConfig,
    'CONSOLE_PASSWORD' | 'REDIS_URL' | 'WAITINGROOM_URL' | 'WAITINGROOM_PORT'
  >
}

export function addConsole(app: FastifyInstance, parts: ConsoleMount): void {
  let made: Promise<Console> | undefined
  const load = () => {
    made ??= import('./console/open.ts')
      .then(({ openConsole }) => openConsole(parts))
      .catch((error) => {
        made = undefined
        throw error
      })
    return made
  }

  app.register(async (scope) => {
    const type = 'application/x-www-form-urlencoded'
    scope.removeAllContentTypeParsers()
    scope.addContentTypeParser(type, { parseAs: 'string' }, (_request, text, done) =>
      done(null, text),
    )
    scope.addContentTypeParser('*', (_request, _body, done) =>
      done(new AppError('UNSUPPORTED_MEDIA_TYPE', `send the form as ${type}`)),
    )
    scope.setErrorHandler(async (error, request, reply) =>
      send(reply, (await load()).refuse(toVisit(request), error)),
    )
    const serve = async (request: FastifyRequest, reply: FastifyReply) =>
      send(reply, await (await load()).answer(toVisit(request)))
    for (const url of ['/console', '/console/*']) {
      scope.route({ method: ['GET', 'POST'], url, handler: serve })
    }
  })
  app.addHook('onClose', async () => {
    await (await made?.catch(() => undefined))?.close()
  })
}

function toVisit(request: FastifyRequest): Visit {
  const [path = '', query = ''] = request.url.split('?', 2)
  const body = typeof request.body === 'string' ? request.body : ''
  return {
    method: request.method,
    path: path.replace(/^\/console\/?|\/$/g, ''),
    query: new URLSearchParams(query),
    form: new URLSearchParams(body),
    headers: request.headers,
    host: request.host,
    secure: request.protocol === 'https',
    address: request.ip,
    requestId: request.id,
  }
}

const send = (reply: FastifyReply, { status, headers, body }: Answer): FastifyReply =>
  reply.code(status).headers(headers).send(body)
