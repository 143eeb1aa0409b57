// What the relay tells: how much it has relayed, how long the broker takes, what it refused, and how far the relay is
// behind. What lies in the database is asked of it by whoever reads /metrics, at most once in a few seconds.

import { Counter, Gauge, Histogram } from 'prom-client'
import { countAsides } from '../../db/aside.ts'
import { type OutboxLag, readOutboxLag } from '../../db/outbox.ts'
import type { Db } from '../../db/schema.ts'
import { readSeldom } from '../metrics.ts'

export type RelayMetrics = {
  relayed(count: number): void
  /** From handing an event over to the broker's word that it has it, seconds. */
  confirmed(seconds: number): void
  refused(): void
  buried(): void
}

/** Told by RabbitMQ alone; here, so that every relay serves it. */
export const unheard = new Counter({
  name: 'outbox_unheard_total',
  help: 'Events that nobody listens for',
  labelNames: ['type'],
})

export type OutboxMetricsOptions = {
  db: Db
  broker: string
  /** Left out: it is where the database is, and up. */
  isUp?(): boolean
}

export function createOutboxMetrics({ db, broker, isUp }: OutboxMetricsOptions): RelayMetrics {
  const counter = <L extends string>(name: string, help: string, labelNames: L[]) =>
    new Counter({ name, help, labelNames })
  const relayed = counter('outbox_relayed_total', 'Events relayed', ['broker'])
  const refused = counter('outbox_refused_total', 'Events refused, each time', ['broker'])
  const buried = counter('outbox_dead_total', 'Events given up after refusals', ['broker'])
  const confirm = new Histogram({
    name: 'outbox_confirm_seconds',
    help: 'How long the broker took to confirm an event',
    buckets: [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10],
  })
  gaugeLag(db)
  const aside = readSeldom(() => countAsides(db))
  gauge('outbox_aside', 'Events aside, refused or behind one that was', aside)
  gauge('outbox_broker_up', 'Whether the broker takes events', async () => Number(isUp?.() ?? 1))
  return {
    relayed: (count) => relayed.inc({ broker }, count),
    confirmed: (seconds) => confirm.observe(seconds),
    refused: () => refused.inc({ broker }),
    buried: () => buried.inc({ broker }),
  }
}

function gaugeLag(db: Db): void {
  const lag = readSeldom(() => readOutboxLag(db))
  const of = (key: keyof OutboxLag) => async () => (await lag())[key]
  gauge('outbox_lag_rows', 'Events not relayed yet, up to 160000', of('rows'))
  gauge('outbox_lag_seconds', 'Age of the oldest event not relayed yet', of('seconds'))
  const help = 'Age of the oldest transaction that events wait for'
  gauge('outbox_horizon_seconds', help, of('horizonSeconds'))
}

function gauge(name: string, help: string, read: () => Promise<number>): Gauge {
  return new Gauge({
    name,
    help,
    async collect() {
      // A database that is away leaves the last value, and the other metrics readable.
      const value = await read().catch(() => undefined)
      if (value !== undefined) this.set(value)
    },
  })
}
