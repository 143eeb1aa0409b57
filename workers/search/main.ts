// The search worker: brings items to the search index.

import { openJobs } from '../../db/jobs.ts'
import { readConfig } from '../config.ts'
import { recoverLoop } from '../jobs.ts'
import { openSearch } from '../opensearch.ts'
import { createSharedCircuit } from '../sharedCircuit.ts'
import { main } from '../worker.ts'
import { searchSettings } from './config.ts'
import { createSearchMetrics } from './metrics.ts'
import { searchPass } from './search.ts'

const queue = 'search'

await main({
  name: 'search',
  env: process.env,
  read: (env) => readConfig(searchSettings, env),
  metricsPort: 9409,
  poolMax: 6,
  setup(worker) {
    const { config, database, log } = worker
    const { OPENSEARCH_URL: url, OPENSEARCH_INDEX: alias, SEARCH_BATCH: batchMax } = config
    const { db } = database
    const jobs = openJobs(database)
    const { onIndexed, onState } = createSearchMetrics()
    const timeoutMs = config.OPENSEARCH_TIMEOUT_MS
    const circuit = createSharedCircuit({
      db,
      name: 'opensearch',
      what: 'OpenSearch',
      worker,
      probeHoldMs: 2 * timeoutMs,
      onState,
    })
    const index =
      url === undefined ? undefined : { search: openSearch({ url, alias, timeoutMs }), circuit }
    const pass = searchPass({ db, jobs, index, batchMax, worker, onIndexed })
    log.info({ index: index === undefined ? 'postgres' : alias, batch: batchMax }, 'indexes items')
    return {
      loops: [
        { name: queue, pass, idleMs: 500, wokenBy: queue },
        ...(index
          ? [{ name: 'opensearch', pass: circuit.refresh, idleMs: 1000, upkeep: true }]
          : []),
        recoverLoop({ jobs, queue, worker }),
      ],
      close: () => jobs.close(),
    }
  },
})
