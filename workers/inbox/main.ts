// The inbox worker: consumes domain events and makes the jobs they ask for.

import { Counter } from 'prom-client'
import { openJobs } from '../../db/jobs.ts'
import { readConfig } from '../config.ts'
import { recoverLoop } from '../jobs.ts'
import { main } from '../worker.ts'
import { inboxSettings } from './config.ts'
import { inboxPass, prunePass } from './inbox.ts'

await main({
  name: 'inbox',
  env: process.env,
  read: (env) => readConfig(inboxSettings, env),
  metricsPort: 9402,
  poolMax: 4,
  setup(worker) {
    const { config, database, log } = worker
    const { db } = database
    const onError = (error: Error) => log.warn({ err: error }, 'upkeep of the job table failed')
    const jobs = openJobs({ ...database, upkeep: true, onError })
    const events = new Counter({ name: 'inbox_events_total', help: 'Events', labelNames: ['as'] })
    const pass = inboxPass({
      db,
      jobs,
      worker,
      batchMax: config.INBOX_BATCH,
      onProcessed(counts) {
        for (const [as, count] of Object.entries(counts)) events.inc({ as }, count)
      },
    })
    return {
      loops: [
        { name: 'inbox', pass, idleMs: config.INBOX_POLL_MS },
        recoverLoop({ jobs, queue: 'inbox', worker }),
        { name: 'prune', pass: prunePass(db), idleMs: 60_000, upkeep: true },
      ],
      close: () => jobs.close(),
    }
  },
})
