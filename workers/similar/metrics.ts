// What the similar worker tells: how the lists change.

import { Counter } from 'prom-client'

export function createSimilarMetrics() {
  const lists = new Counter({
    name: 'similar_lists_total',
    help: 'Lists of other items that an item came into or left',
    labelNames: ['change'] as const,
  })
  lists.inc({ change: 'entered' }, 0)
  lists.inc({ change: 'left' }, 0)
  return {
    onLists: (change: 'entered' | 'left', count: number) => lists.inc({ change }, count),
  }
}
