// What the inbox tells: events by what became of them.

import { Counter } from 'prom-client'

export function createInboxMetrics() {
  const events = new Counter({ name: 'inbox_events_total', help: 'Events', labelNames: ['as'] })
  for (const as of ['processed', 'duplicates', 'unreachable']) events.inc({ as }, 0)
  return {
    onProcessed(counts: { processed: number; duplicates: number; unreachable: number }) {
      for (const [as, count] of Object.entries(counts)) events.inc({ as }, count)
    },
  }
}
