// What every worker tells of its way to the database: its connections, who waits for one, and the conflicts that its
// transactions met.

import { Counter, Gauge } from 'prom-client'
import type { Database } from '../db/open.ts'
import { conflictsSoFar } from '../db/transaction.ts'

export function createDatabaseMetrics({ pool }: Pick<Database, 'pool'>): void {
  new Gauge({
    name: 'database_connections',
    help: 'Connections to Postgres that are open',
    labelNames: ['state'] as const,
    collect() {
      this.set({ state: 'idle' }, pool.idleCount)
      this.set({ state: 'busy' }, pool.totalCount - pool.idleCount)
    },
  })
  new Gauge({
    name: 'database_waiting',
    help: 'Statements and transactions that wait for a connection',
    collect() {
      this.set(pool.waitingCount)
    },
  })
  new Counter({
    name: 'transaction_conflicts_total',
    help: 'Attempts of transactions that ended in a conflict, by SQLSTATE; nearly all are followed by another',
    labelNames: ['sqlstate'] as const,
    collect() {
      this.reset()
      for (const [sqlstate, count] of conflictsSoFar()) this.inc({ sqlstate }, count)
    },
  })
}
