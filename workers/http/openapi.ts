// Collects the routes for the API's description and its page (docs.ts), which are made when somebody first asks for
// them: they would cost every process 6 MB and a fifth of its start.

import type { FastifyInstance, FastifyReply, FastifyRequest, RouteOptions } from 'fastify'

/** Call it before the routes are added. */
export function addOpenApi(app: FastifyInstance): void {
  const routes: RouteOptions[] = []
  app.addHook('onRoute', (route) => {
    if (route.url.startsWith('/api/') && route.method !== 'HEAD') routes.push(route)
  })

  let made: Promise<FastifyInstance> | undefined
  const make = async () => {
    const { createDocs } = await import('./docs.ts')
    return await createDocs(routes)
  }

  const serve = async (request: FastifyRequest, reply: FastifyReply) => {
    made ??= make()
    const docs = await made.catch((error) => {
      made = undefined
      throw error
    })
    for (const [name, value] of Object.entries(reply.getHeaders())) {
      if (value !== undefined) reply.raw.setHeader(name, value)
    }
    reply.hijack()
    docs.routing(request.raw, reply.raw)
  }
  for (const url of ['/openapi.json', '/docs', '/docs/*']) app.get(url, serve)
  app.addHook('onClose', async () => {
    await (await made?.catch(() => undefined))?.close()
  })
}
