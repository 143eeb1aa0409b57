// The outbox worker: relays domain events to the broker, and prunes those relayed long ago.

import { openJobs } from '../../db/jobs.ts'
import { readConfig } from '../config.ts'
import { recoverLoop } from '../jobs.ts'
import { everyMinute, scheduledLoop } from '../schedule.ts'
import { main } from '../worker.ts'
import { outboxSettings } from './config.ts'
import { openRelay } from './open.ts'
import { prunePass } from './outbox.ts'
import { createQueueMetrics } from './queues.ts'

await main({
  name: 'outbox',
  env: process.env,
  read: (env) => readConfig(outboxSettings, env),
  metricsPort: 9401,
  poolMax: 5,
  async setup(worker) {
    const { config, database, log } = worker
    const { db } = database
    const jobs = openJobs(database)
    createQueueMetrics(db)
    const relay = await openRelay(worker, jobs)
    log.info({ broker: relay.broker }, 'relays domain events')
    return {
      loops: [
        { name: 'relay', pass: relay.pass, idleMs: config.OUTBOX_POLL_MS, wokenBy: 'outbox' },
        { name: 'outbox', pass: relay.again, idleMs: 1000, wokenBy: 'outbox' },
        recoverLoop({ jobs, queue: 'outbox', worker }),
        scheduledLoop({ db, name: 'outbox prune', schedule: everyMinute, pass: prunePass(db) }),
      ],
      notReady: relay.notReady,
      async close() {
        await relay.close()
        await jobs.close()
      },
    }
  },
})
