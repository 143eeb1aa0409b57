// What the inbox tells: events and payments by what became of them, and whether the broker brings any.

import { Counter, Gauge } from 'prom-client'
import type { PaymentOutcome } from '../../db/payments.ts'
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
  const payments = new Counter({
    name: 'payments_settled_total',
    help: 'Payments by what became of them; known: it was decided before',
    labelNames: ['as'],
  })
  for (const as of ['confirmed', 'late', 'refund_due', 'failed', 'known']) payments.inc({ as }, 0)
  const onPayment = (outcome: PaymentOutcome) =>
    payments.inc({ as: outcome.is === 'confirmed' && outcome.late ? 'late' : outcome.is })
  return { onProcessed: count, onCounted: count, onPayment }
}
