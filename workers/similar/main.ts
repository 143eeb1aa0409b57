// The similar worker: keeps the lists of who is like whom.

import { openJobs } from '../../db/jobs.ts'
import { readConfig } from '../config.ts'
import { recoverLoop } from '../jobs.ts'
import { main } from '../worker.ts'
import { similarSettings } from './config.ts'
import { createSimilarMetrics } from './metrics.ts'
import { codesLoop, similarPass } from './similar.ts'

const queue = 'similar'

await main({
  name: 'similar',
  env: process.env,
  read: (env) => readConfig(similarSettings, env),
  metricsPort: 9411,
  poolMax: 6,
  setup(worker) {
    const { database, log } = worker
    const { db } = database
    const jobs = openJobs(database)
    const concurrency = worker.concurrency(2)
    const pass = similarPass({ db, jobs, concurrency, worker, ...createSimilarMetrics() })
    log.info({ concurrency }, 'compares items')
    return {
      loops: [
        { name: queue, pass, idleMs: 500, wokenBy: queue },
        codesLoop({ db, worker }),
        recoverLoop({ jobs, queue, worker }),
      ],
      close: () => jobs.close(),
    }
  },
})
