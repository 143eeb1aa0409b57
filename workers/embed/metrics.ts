// What the embed worker tells: calls by what came of them, how long they take, what they cost, and whether the vendor
// does its work.

import { Counter, Gauge, Histogram } from 'prom-client'
import type { EmbedOutcome } from './vendor.ts'

export function createEmbedMetrics() {
  const calls = new Counter({
    name: 'embed_calls_total',
    help: 'Calls to the embedding vendor, by what came of them',
    labelNames: ['outcome'] as const,
  })
  for (const outcome of ['embedded', 'rejected', 'limited', 'gone', 'failed'] as const) {
    calls.inc({ outcome }, 0)
  }
  const seconds = new Histogram({
    name: 'embed_call_seconds',
    help: 'How long the embedding vendor took to answer',
    buckets: [0.1, 0.25, 0.5, 1, 2, 4, 7, 10, 20, 30, 60],
  })
  const tokens = new Counter({
    name: 'embed_tokens_total',
    help: 'Tokens that the embedding vendor says it used',
  })
  const up = new Gauge({
    name: 'embed_vendor_up',
    help: '0: the embedding vendor is given up for now',
  })
  up.set(1)
  return {
    onCall(outcome: EmbedOutcome['is'], took: number, used: number) {
      calls.inc({ outcome })
      seconds.observe(took)
      tokens.inc(used)
    },
    onState: (isOpen: boolean) => up.set(isOpen ? 0 : 1),
  }
}
