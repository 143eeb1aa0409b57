// The email worker: sends transactional mails.

import { openJobs } from '../../db/jobs.ts'
import { readConfig } from '../config.ts'
import { recoverLoop } from '../jobs.ts'
import { main } from '../worker.ts'
import { emailSettings } from './config.ts'
import { emailPass } from './email.ts'
import { createLogProvider } from './log.ts'
import { createEmailMetrics } from './metrics.ts'

await main({
  name: 'email',
  env: process.env,
  read: (env) => readConfig(emailSettings, env),
  metricsPort: 9403,
  poolMax: 4,
  setup(worker) {
    const { config, database, log } = worker
    const { db } = database
    const jobs = openJobs(database)
    const provider = createLogProvider(config.FLEET_DATA_DIR)
    const concurrency = worker.concurrency(20)
    const send = { from: config.EMAIL_FROM, perSecond: config.EMAIL_RATE, concurrency }
    const batchMax = config.EMAIL_BATCH
    const metrics = createEmailMetrics(db)
    const pass = emailPass({ db, jobs, provider, worker, batchMax, ...send, ...metrics })
    log.info({ provider: provider.name, per_second: send.perSecond, concurrency }, 'sends mails')
    return {
      loops: [
        { name: 'email', pass, idleMs: config.EMAIL_POLL_MS, wokenBy: 'email' },
        recoverLoop({ jobs, queue: 'email', worker }),
      ],
      close: () => jobs.close(),
    }
  },
})
