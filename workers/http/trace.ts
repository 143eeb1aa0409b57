// A span for every request, caused by the traceparent it came with, by the conventions for HTTP servers
// (https://opentelemetry.io/docs/specs/semconv/http/http-spans/). It is named by the route: paths hold ids of people.

import type { FastifyInstance } from 'fastify'
import { traceIdOf } from '../../domain/traces.ts'
import { beginSpan } from '../trace.ts'

/** Before all other hooks: what they log carries the trace's id. */
export function traceRequests(app: FastifyInstance): void {
  app.decorateRequest('span')
  app.addHook('onRequest', (request, reply, done) => {
    const { method, headers, protocol } = request
    const route = request.routeOptions.url
    const span = beginSpan(route === undefined ? method : `${method} ${route}`, {
      kind: 'server',
      parent: headers.traceparent,
      attributes: {
        'http.request.method': method,
        'http.route': route,
        'url.scheme': protocol,
        'network.protocol.version': request.raw.httpVersion,
      },
    })
    request.span = span
    const trace_id = traceIdOf(span.traceparent)
    if (trace_id !== undefined) {
      request.log = request.log.child({ trace_id })
      reply.log = request.log
    }
    done()
  })
  // Only what we did wrong is an error of the server's.
  app.addHook('onResponse', ({ span, id }, { statusCode }, done) => {
    span.set({ 'http.response.status_code': statusCode, 'flotilla.request_id': id })
    span.end(statusCode >= 500 ? { type: String(statusCode) } : undefined)
    done()
  })
}
