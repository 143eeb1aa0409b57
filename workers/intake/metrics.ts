// What the intake tells: items by what became of them, and how many wait on each list.

import { Counter, Gauge } from 'prom-client'
import type { IntakeList } from '../../redis/lists.ts'
import { readSeldom } from '../metrics.ts'
import { type ListQueue, listOf, listQueues } from './items.ts'

export function createIntakeMetrics(lists: ReadonlyMap<ListQueue, IntakeList>) {
  const items = new Counter({
    name: 'intake_items_total',
    help: 'Items taken off the lists',
    labelNames: ['list', 'as'] as const,
  })
  for (const queue of listQueues) {
    for (const as of ['moved', 'malformed']) items.inc({ list: listOf(queue), as }, 0)
  }
  const lengths = readSeldom(() =>
    Promise.all([...lists].map(async ([queue, list]) => [queue, await list.length()] as const)),
  )
  new Gauge({
    name: 'intake_waiting',
    help: 'Items on the lists that nobody has taken yet',
    labelNames: ['list'] as const,
    async collect() {
      if (lists.size === 0) for (const queue of listQueues) this.set({ list: listOf(queue) }, 0)
      // A Redis that is away leaves the last values, and the other metrics readable.
      for (const [queue, length] of await lengths().catch(() => [])) {
        this.set({ list: listOf(queue) }, length)
      }
    },
  })
  return {
    onMoved: (queue: ListQueue, as: 'moved' | 'malformed', count: number) =>
      items.inc({ list: listOf(queue), as }, count),
  }
}
