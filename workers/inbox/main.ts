// The inbox worker: consumes domain events, makes the jobs they ask for, and settles payments.

import { openJobs } from '../../db/jobs.ts'
import { readConfig } from '../config.ts'
import { recoverLoop } from '../jobs.ts'
import { everyMinute, scheduledLoop } from '../schedule.ts'
import { main } from '../worker.ts'
import { inboxSettings } from './config.ts'
import { createHandler, inboxPass, prunePass } from './inbox.ts'
import { createInboxMetrics } from './metrics.ts'
import { openConsumer } from './open.ts'
import { paymentsPass } from './payments.ts'
import { remoteInboxPass } from './remote.ts'
import { openSeen } from './seen.ts'

await main({
  name: 'inbox',
  env: process.env,
  read: (env) => readConfig(inboxSettings, env),
  metricsPort: 9402,
  poolMax: 4,
  async setup(worker) {
    const { config, database, log } = worker
    const { db } = database
    const jobs = openJobs(database)
    const url = config.BROKER_URL
    const consumer = url === undefined ? undefined : await openConsumer(url, worker)
    const seen = consumer && (await openSeen(config.REDIS_URL, log))
    const metrics = createInboxMetrics(consumer)
    const common = { db, jobs, worker, batchMax: config.INBOX_BATCH, ...metrics }
    const handle = createHandler(common)
    log.info({ broker: consumer?.name ?? 'database' }, 'consumes domain events')
    const remote = consumer && remoteInboxPass({ ...common, consumer, handle, seen })
    return {
      loops: [
        { name: 'inbox', pass: inboxPass(common), idleMs: config.INBOX_POLL_MS, wokenBy: 'inbox' },
        ...(remote ? [{ name: 'broker', pass: remote, idleMs: 0 }] : []),
        {
          name: 'payments',
          pass: paymentsPass(common),
          idleMs: config.INBOX_POLL_MS,
          wokenBy: 'payments',
        },
        recoverLoop({ jobs, queue: 'inbox', worker }),
        recoverLoop({ jobs, queue: 'payments', worker }),
        scheduledLoop({ db, name: 'inbox prune', schedule: everyMinute, pass: prunePass(db) }),
      ],
      notReady: () => [consumer?.away()].filter((why) => why !== undefined),
      async close() {
        await Promise.all([consumer?.close(), seen?.close()])
        await jobs.close()
      },
    }
  },
})
