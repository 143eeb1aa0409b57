// What is asked of a known path with a method it does not have: 405 with Allow, or for OPTIONS 204 with Allow. Watches
// the routes as they are added, and adds the missing ones at the end.

import type { FastifyInstance, HTTPMethods } from 'fastify'
import { AppError } from '../../domain/errors.ts'

const all: HTTPMethods[] = ['GET', 'HEAD', 'POST', 'PUT', 'PATCH', 'DELETE', 'OPTIONS']

export function addMethods(app: FastifyInstance) {
  const known = new Map<string, Set<string>>()
  app.addHook('onRoute', ({ path, method, routePath, prefix }) => {
    if (!prefix.startsWith('/api/')) return
    const methods = known.get(routePath) ?? new Set()
    known.set(routePath, methods)
    for (const one of [method].flat()) methods.add(one)
    if (path === '') throw new Error('a route needs a path')
  })
  return {
    /** Call it in the scope of the routes, after them. */
    refuseOthers(scope: FastifyInstance): void {
      for (const [url, methods] of [...known]) {
        const allow = [...methods, 'OPTIONS'].join(', ')
        scope.route({
          method: all.filter((method) => !methods.has(method)),
          url,
          schema: { hide: true },
          exposeHeadRoute: false,
          // Before the body is read: what it is does not matter.
          onRequest: async (request, reply) => {
            reply.header('allow', allow)
            if (request.method === 'OPTIONS') return reply.code(204).send()
            throw new AppError(
              'METHOD_NOT_ALLOWED',
              `${request.method} is not possible here: ${allow}`,
            )
          },
          handler: async () => {},
        })
      }
    },
  }
}
