// The outbox worker: relays domain events to the broker, and prunes those relayed long ago.

import { openJobs } from '../../db/jobs.ts'
import { readConfig } from '../config.ts'
import { everyMinute, scheduledLoop } from '../schedule.ts'
import { main } from '../worker.ts'
import { outboxSettings } from './config.ts'
import { createDatabaseBroker } from './database.ts'
import { createOutboxMetrics } from './metrics.ts'
import { prunePass, relayPass } from './outbox.ts'
import { createQueueMetrics } from './queues.ts'
import { tracedBroker } from './trace.ts'

await main({
  name: 'outbox',
  env: process.env,
  read: (env) => readConfig(outboxSettings, env),
  metricsPort: 9401,
  poolMax: 3,
  setup({ config, database, log }) {
    const { db } = database
    const jobs = openJobs(database)
    const metrics = createOutboxMetrics(db)
    createQueueMetrics(db)
    const broker = tracedBroker(createDatabaseBroker(jobs))
    const relay = relayPass({
      db,
      broker,
      batchMax: config.OUTBOX_BATCH,
      onRelayed: metrics.relayed,
    })
    log.info({ broker: broker.name }, 'relays domain events')
    return {
      loops: [
        { name: 'relay', pass: relay, idleMs: config.OUTBOX_POLL_MS },
        scheduledLoop({ db, name: 'outbox prune', schedule: everyMinute, pass: prunePass(db) }),
      ],
      close: () => jobs.close(),
    }
  },
})
