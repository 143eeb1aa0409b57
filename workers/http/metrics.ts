// What the API counts: how long answers took, by route and status; and how many commands its transactions took together.

import { Histogram } from 'prom-client'
import type { CommandOptions } from './commands.ts'
import type { ServerParts } from './server.ts'

type HttpMetrics = {
  onAnswer: NonNullable<ServerParts['onAnswer']>
  onGroup: NonNullable<CommandOptions['onGroup']>
}

export function createHttpMetrics(): HttpMetrics {
  const answers = new Histogram({
    name: 'http_request_duration_seconds',
    help: 'From the head of the request to the end of the answer',
    labelNames: ['method', 'route', 'status'] as const,
    buckets: [0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10],
  })
  const labelNames = ['command'] as const
  const sizes = new Histogram({
    name: 'command_group_size',
    help: 'Commands that were carried out in one transaction',
    labelNames,
    buckets: [1, 2, 4, 8, 16, 32, 64, 128, 256],
  })
  const durations = new Histogram({
    name: 'command_group_duration_seconds',
    help: 'How long the transaction of a group took, with its repetitions',
    labelNames,
    buckets: [0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10],
  })
  return {
    onAnswer: (method, route, status, seconds) =>
      answers.observe({ method, route, status }, seconds),
    onGroup(command, size, seconds) {
      sizes.observe({ command }, size)
      durations.observe({ command }, seconds)
    },
  }
}
