// The inbox worker: consumes domain events and makes the jobs they ask for.

import { openJobs } from '../../db/jobs.ts'
import { readConfig } from '../config.ts'
import { recoverLoop } from '../jobs.ts'
import { everyMinute, scheduledLoop } from '../schedule.ts'
import { main } from '../worker.ts'
import { inboxSettings } from './config.ts'
import { inboxPass, prunePass } from './inbox.ts'
import { createInboxMetrics } from './metrics.ts'

await main({
  name: 'inbox',
  env: process.env,
  read: (env) => readConfig(inboxSettings, env),
  metricsPort: 9402,
  poolMax: 4,
  setup(worker) {
    const { config, database } = worker
    const { db } = database
    const jobs = openJobs(database)
    const batchMax = config.INBOX_BATCH
    const pass = inboxPass({ db, jobs, worker, batchMax, ...createInboxMetrics() })
    return {
      loops: [
        { name: 'inbox', pass, idleMs: config.INBOX_POLL_MS, wokenBy: 'inbox' },
        recoverLoop({ jobs, queue: 'inbox', worker }),
        scheduledLoop({ db, name: 'inbox prune', schedule: everyMinute, pass: prunePass(db) }),
      ],
      close: () => jobs.close(),
    }
  },
})
