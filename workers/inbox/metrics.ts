// What the inbox tells: events by what became of them, and whether the broker brings any.

import { Counter, Gauge } from 'prom-client'
import type { Consumer } from '../../domain/broker.ts'

export function createInboxMetrics(consumer?: Pick<Consumer, 'away'>) {
  const events = new Counter({ name: 'inbox_events_total', help: 'Events', labelNames: ['as'] })
  for (const as of ['processed', 'duplicates', 'unreachable']) events.inc({ as }, 0)
  new Gauge({
    name: 'inbox_broker_up',
    help: 'Whether the broker brings events',
    collect() {
      this.set(consumer?.away() === undefined ? 1 : 0)
    },
  })
  const count = (counts: Record<string, number>) => {
    for (const [as, n] of Object.entries(counts)) events.inc({ as }, n)
  }
  return { onProcessed: count, onCounted: count }
}
