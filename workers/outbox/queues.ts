// How all queues and workers stand, as metrics. It is the relay that serves them: a fleet has one, and a queue whose own
// worker is down is the one to look at. Each relay tells the same: take the max, not the sum.

import { Gauge } from 'prom-client'
import { type QueueStats, readQueueLevels } from '../../db/jobStats.ts'
import { readWorkers } from '../../db/registry.ts'
import type { Db } from '../../db/schema.ts'
import { readSeldom } from '../metrics.ts'

export function createQueueMetrics(db: Db): void {
  const levels = readSeldom(() => readQueueLevels(db))
  const gauge = (name: string, help: string, value: (queue: QueueStats) => number) =>
    new Gauge({
      name,
      help,
      labelNames: ['queue'] as const,
      async collect() {
        // A database that is away leaves the last value, and the other metrics readable.
        for (const level of await levels().catch(() => [])) {
          this.set({ queue: level.queue }, value(level))
        }
      },
    })
  gauge('jobs_ready', 'Jobs that are due, counted up to 100000', ({ ready }) => ready)
  gauge('jobs_delayed', 'Jobs for later, counted up to 100000', ({ delayed }) => delayed)
  gauge('jobs_active', 'Jobs in hand', ({ active }) => active)
  gauge(
    'jobs_failed',
    'Jobs in the dead letter queue, counted up to 100000',
    ({ failed }) => failed,
  )
  gauge(
    'jobs_oldest_seconds',
    'For how long the oldest job has been due; 0: none is',
    ({ oldest_seconds }) => oldest_seconds ?? 0,
  )
  gauge('jobs_paused', '1: nothing is claimed from the queue', ({ paused }) => (paused ? 1 : 0))

  const workers = readSeldom(() => readWorkers(db))
  new Gauge({
    name: 'workers_alive',
    help: 'Processes that show signs of life; 0: died within a day',
    labelNames: ['worker'] as const,
    async collect() {
      const rows = await workers().catch(() => undefined)
      if (rows === undefined) return
      this.reset()
      for (const { name, alive } of rows) this.inc({ worker: name }, alive ? 1 : 0)
    },
  })
}
