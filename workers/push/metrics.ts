// What the push worker tells (SPEC 11): pushes sent and given up, how long after they were asked for, how many wait, and
// whether the provider does its work.

import { Counter, Gauge, Histogram } from 'prom-client'
import { readQueueLevels } from '../../db/jobStats.ts'
import type { Db } from '../../db/schema.ts'
import { type PushTemplate, pushQueues, pushTemplates } from '../../domain/pushes.ts'
import { readSeldom } from '../metrics.ts'
import type { Circuit } from './circuit.ts'

export function createPushMetrics(db: Db, circuit: Circuit) {
  const sent = new Counter({
    name: 'notification_push_sent_total',
    help: 'Pushes that the provider took, one a device',
    labelNames: ['template'] as const,
  })
  const failed = new Counter({
    name: 'notification_push_failed_total',
    help: 'Pushes given up, by what the provider said',
    labelNames: ['template', 'code'] as const,
  })
  const latency = new Histogram({
    name: 'notification_push_latency_seconds',
    help: 'From the job to the answer of the provider that took the push',
    buckets: [0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900],
  })
  for (const template of pushTemplates) {
    sent.inc({ template }, 0)
    failed.inc({ template, code: 'UNREGISTERED' }, 0)
  }
  const levels = readSeldom(() => readQueueLevels(db))
  new Gauge({
    name: 'notification_push_queue_size',
    help: 'Pushes that wait, for their time as well, in both queues, each up to 100000',
    async collect() {
      // A database that is away leaves the last value, and the other metrics readable.
      const stats = await levels().catch(() => [])
      const own = stats.filter(({ queue }) => pushQueues.some((name) => name === queue))
      if (own.length > 0) this.set(own.reduce((sum, one) => sum + one.ready + one.delayed, 0))
    },
  })
  new Gauge({
    name: 'notification_push_provider_up',
    help: 'Whether the provider takes pushes',
    collect() {
      this.set(circuit.away() === undefined ? 1 : 0)
    },
  })
  return {
    onSent(template: PushTemplate, seconds: number) {
      sent.inc({ template })
      latency.observe(seconds)
    },
    onFailed: (template: PushTemplate, code: string) => failed.inc({ template, code }),
  }
}
