// What happens to sources, as metrics and as lines of the log: a failure is a WARN that names its source and why.

import type { Worker } from '../worker.ts'
import type { LoaderConfig } from './config.ts'
import type { LoaderEvents } from './loader.ts'
import { createLoaderMetrics } from './metrics.ts'

export function createReporter(worker: Worker<LoaderConfig>): LoaderEvents {
  const { log, database } = worker
  const metrics = createLoaderMetrics(database.db)
  return {
    loaded: (source, events) => metrics.loaded(source, events),
    fetched: metrics.fetched,
    appended: metrics.appended,
    failed(source, why, failures, restMs) {
      metrics.failed(source)
      worker.failed(1)
      log.warn({ source, failures, rest_ms: Math.round(restMs) }, `source ${source}: ${why}`)
    },
    mended: (source, failures) => log.info({ source, failures }, `source ${source} works again`),
    fenced(source) {
      metrics.fenced()
      log.warn({ source }, `source ${source} is in other hands: a page was not stored`)
    },
  }
}
