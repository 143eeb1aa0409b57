// What the search worker tells: items written to the index by what became of it, and whether the index takes any.

import { Counter, Gauge } from 'prom-client'
import type { Indexed } from './search.ts'

export function createSearchMetrics() {
  const indexed = new Counter({
    name: 'search_indexed_total',
    help: 'Items handed to the search index, by what became of it',
    labelNames: ['as'] as const,
  })
  for (const as of ['there', 'busy', 'failed', 'refused'] as const) indexed.inc({ as }, 0)
  const up = new Gauge({
    name: 'search_index_up',
    help: '0: OpenSearch is given up for now; always 1 where there is none',
  })
  up.set(1)
  return {
    onIndexed: (as: Indexed, count: number) => indexed.inc({ as }, count),
    onState: (isOpen: boolean) => up.set(isOpen ? 0 : 1),
  }
}
