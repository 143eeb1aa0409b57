// The embed worker: has items embedded by the vendor.

import { openJobs } from '../../db/jobs.ts'
import { openVendorLimits } from '../../db/vendorLimits.ts'
import { recoverLoop } from '../jobs.ts'
import { createSharedCircuit } from '../sharedCircuit.ts'
import { main } from '../worker.ts'
import { readEmbedConfig } from './config.ts'
import { embedPass, idlePass } from './embed.ts'
import { createEmbedMetrics } from './metrics.ts'
import { createVendor } from './vendor.ts'

const queue = 'embed'

await main({
  name: 'embed',
  env: process.env,
  read: readEmbedConfig,
  metricsPort: 9410,
  poolMax: 6,
  setup(worker) {
    const { config, database, log } = worker
    const { EMBEDDING_URL: url, EMBEDDING_MODEL: model = '' } = config
    const { db } = database
    const jobs = openJobs(database)
    const { onCall, onState } = createEmbedMetrics()
    const timeoutMs = config.EMBEDDING_TIMEOUT_MS
    const circuit = createSharedCircuit({
      db,
      name: 'embedding',
      what: 'the embedding vendor',
      worker,
      probeHoldMs: timeoutMs + 5000,
      onState,
    })
    const vendor =
      url &&
      createVendor({
        url,
        apiKey: config.EMBEDDING_API_KEY,
        model,
        withImages: config.EMBEDDING_IMAGES === 'on',
        timeoutMs,
      })
    const limits = openVendorLimits(db, 'embedding', config.EMBEDDING_WINDOW_MS)
    const concurrency = worker.concurrency(16)
    const parts = { db, jobs, model, limits, circuit, concurrency, worker, onCall }
    const pass = vendor ? embedPass({ ...parts, vendor }) : idlePass(parts)
    if (vendor) log.info({ model, to: new URL(String(url)).host, concurrency }, 'embeds items')
    else log.info('EMBEDDING_URL is not set: items are not embedded')
    return {
      loops: [
        { name: queue, pass, idleMs: 500, wokenBy: queue },
        { name: 'embedding vendor', pass: circuit.refresh, idleMs: 1000, upkeep: true },
        recoverLoop({ jobs, queue, worker }),
      ],
      close: () => jobs.close(),
    }
  },
})
