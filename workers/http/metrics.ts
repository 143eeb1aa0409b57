// What the API counts: how long answers took, by route and status.

import { Histogram } from 'prom-client'
import type { ServerParts } from './server.ts'

export function createHttpMetrics(): NonNullable<ServerParts['onAnswer']> {
  const answers = new Histogram({
    name: 'http_request_duration_seconds',
    help: 'From the head of the request to the end of the answer',
    labelNames: ['method', 'route', 'status'] as const,
    buckets: [0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10],
  })
  return (method, route, status, seconds) => answers.observe({ method, route, status }, seconds)
}
