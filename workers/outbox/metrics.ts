// What the relay tells: how much it has relayed, and how far it is behind. The lag is asked of the database by whoever
// reads /metrics, at most once in a few seconds.

import { Counter, Gauge } from 'prom-client'
import { type OutboxLag, readOutboxLag } from '../../db/outbox.ts'
import type { Db } from '../../db/schema.ts'
import { readSeldom } from '../metrics.ts'

export function createOutboxMetrics(db: Db): { relayed(count: number): void } {
  const relayed = new Counter({ name: 'outbox_relayed_total', help: 'Events relayed' })
  const lag = readSeldom(() => readOutboxLag(db))
  const gauge = (name: string, help: string, key: keyof OutboxLag) =>
    new Gauge({
      name,
      help,
      async collect() {
        // A database that is away leaves the last value, and the other metrics readable.
        const read = await lag().catch(() => undefined)
        if (read) this.set(read[key])
      },
    })
  gauge('outbox_lag_rows', 'Events not relayed yet, up to 160000', 'rows')
  gauge('outbox_lag_seconds', 'Age of the oldest event not relayed yet', 'seconds')
  gauge(
    'outbox_horizon_seconds',
    'Age of the oldest transaction that events wait for',
    'horizonSeconds',
  )
  return { relayed: (count) => relayed.inc(count) }
}
