// What the loader tells: events and failures by source, how long requests and appends take, and how the sources stand.
// What lies in the database is asked of it by whoever reads /metrics, at most once in a few seconds.

import { Counter, Gauge, Histogram } from 'prom-client'
import { readSourceStatus, type SourceState } from '../../db/loaderSources.ts'
import type { Db } from '../../db/schema.ts'
import { readSeldom } from '../metrics.ts'

const states: readonly SourceState[] = ['ok', 'new', 'failing', 'silent', 'paused', 'gone']

export function createLoaderMetrics(db: Db) {
  const labelNames = ['source'] as const
  const events = new Counter({ name: 'loader_events_total', help: 'Events loaded', labelNames })
  const failures = new Counter({
    name: 'loader_failures_total',
    help: 'Requests that failed, or whose events were refused',
    labelNames,
  })
  const fenced = new Counter({
    name: 'loader_fenced_total',
    help: 'Pages not stored because the source was in other hands',
  })
  const request = new Histogram({
    name: 'loader_request_seconds',
    help: 'How long a source took to answer in full',
    labelNames: ['had'] as const,
    buckets: [0.005, 0.02, 0.1, 0.5, 2, 10, 60],
  })
  for (const had of ['events', 'nothing']) request.zero({ had })
  const append = new Histogram({
    name: 'loader_append_seconds',
    help: 'How long it took to store a page',
    buckets: [0.001, 0.005, 0.02, 0.1, 0.5, 2, 10],
  })
  gaugeSources(db)
  return {
    loaded: (source: string, count: number) => events.inc({ source }, count),
    fetched: (count: number, seconds: number) =>
      request.observe({ had: count > 0 ? 'events' : 'nothing' }, seconds),
    appended: (seconds: number) => append.observe(seconds),
    failed: (source: string) => failures.inc({ source }),
    fenced: () => fenced.inc(),
  }
}

function gaugeSources(db: Db): void {
  const read = readSeldom(() => readSourceStatus(db))
  // A database that is away leaves the last values, and the other metrics readable.
  const all = () => read().catch(() => undefined)
  new Gauge({
    name: 'loader_sources',
    help: 'Sources by their state',
    labelNames: ['state'] as const,
    async collect() {
      const sources = await all()
      for (const state of states) {
        if (sources) this.set({ state }, sources.filter((one) => one.state === state).length)
      }
    },
  })
  const bySource = (name: string, help: string, field: 'lag_events' | 'lag_seconds') =>
    new Gauge({
      name,
      help,
      labelNames: ['source'] as const,
      async collect() {
        const sources = await all()
        if (sources === undefined) return
        this.reset()
        for (const { source, state, [field]: value } of sources) {
          if (value !== null && state !== 'gone') this.set({ source }, value)
        }
      },
    })
  bySource('loader_lag_events', 'Events the source has more, where it tells', 'lag_events')
  bySource('loader_lag_seconds', 'Since the last request that went well', 'lag_seconds')
}
