// What a worker shows of itself on its own port: /healthz (alive and not stuck), /readyz (able to work, else 503 with
// the reasons), /metrics (Prometheus). The metrics every worker has are made here; a worker's own stand in its folder.

import { once } from 'node:events'
import { createServer, type Server } from 'node:http'
import type { AddressInfo } from 'node:net'
import { Counter, collectDefaultMetrics, Histogram, register } from 'prom-client'
import type { LoopObserver } from './loop.ts'

export type Health = {
  /** Why the process should be restarted; none when it is fine. */
  stuck(): string[]
  /** Why nothing should be sent here; none when it is ready. */
  notReady(): Promise<string[]>
}

/** For what is asked of the database: whoever scrapes, and however often, it is asked once in five seconds at most. */
export function readSeldom<T>(read: () => Promise<T>, freshMs = 5000): () => Promise<T> {
  let last: Promise<T> | undefined
  let readAt = Number.NEGATIVE_INFINITY
  return () => {
    if (last === undefined || performance.now() - readAt > freshMs) {
      readAt = performance.now()
      last = read()
    }
    return last
  }
}

export const passBuckets = [0.001, 0.005, 0.02, 0.1, 0.5, 2, 10, 60]

export function createLoopMetrics(): LoopObserver {
  collectDefaultMetrics()
  const labelNames = ['loop'] as const
  const passes = new Counter({ name: 'worker_passes_total', help: 'Passes run', labelNames })
  const handled = new Counter({
    name: 'worker_handled_total',
    help: 'Messages handled by passes',
    labelNames,
  })
  const failures = new Counter({
    name: 'worker_pass_failures_total',
    help: 'Passes that failed',
    labelNames,
  })
  const duration = new Histogram({
    name: 'worker_pass_duration_seconds',
    help: 'How long a pass took',
    labelNames,
    buckets: passBuckets,
  })
  return {
    passed(loop, count, seconds) {
      passes.inc({ loop })
      handled.inc({ loop }, count)
      duration.observe({ loop }, seconds)
    },
    failed(loop, seconds) {
      passes.inc({ loop })
      failures.inc({ loop })
      duration.observe({ loop }, seconds)
    },
  }
}

export type MetricsServer = { port: number; close(): Promise<void> }

/** @throws when the port is taken (EADDRINUSE) or not ours to take */
export async function serveMetrics(
  { host, port }: { host: string; port: number },
  health: Health,
): Promise<MetricsServer> {
  const server: Server = createServer(async (request, response) => {
    const { status, type, body } = await answer(request.url ?? '/', health)
    const length = Buffer.byteLength(body)
    response.writeHead(status, { 'content-type': type, 'content-length': length })
    response.end(request.method === 'HEAD' ? undefined : body)
  })
  server.listen(port, host)
  await once(server, 'listening')
  // It keeps nobody alive.
  server.unref()
  return {
    port: (server.address() as AddressInfo).port,
    async close() {
      server.close()
      server.closeAllConnections()
      await once(server, 'close')
    },
  }
}

type Answer = { status: number; type: string; body: string }

async function answer(url: string, health: Health): Promise<Answer> {
  const path = url.split('?', 1)[0]
  if (path === '/healthz') return report(health.stuck())
  if (path === '/readyz') return report(await health.notReady())
  if (path === '/metrics') {
    try {
      return { status: 200, type: register.contentType, body: await register.metrics() }
    } catch (error) {
      return { status: 500, type: 'text/plain', body: `${(error as Error).message}\n` }
    }
  }
  const body = 'there are /healthz, /readyz and /metrics\n'
  return { status: 404, type: 'text/plain', body }
}

const report = (reasons: string[]): Answer => ({
  status: reasons.length === 0 ? 200 : 503,
  type: 'application/json',
  body: `${JSON.stringify({ status: reasons.length === 0 ? 'ok' : 'unavailable', reasons })}\n`,
})
