// The email worker: sends transactional mails.

import { pruneEmailSends } from '../../db/emailSends.ts'
import { openJobs } from '../../db/jobs.ts'
import { recoverLoop } from '../jobs.ts'
import { everyMinute, scheduledLoop } from '../schedule.ts'
import { main } from '../worker.ts'
import { readEmailConfig } from './config.ts'
import { emailPass } from './email.ts'
import { createEmailMetrics } from './metrics.ts'
import { openProviders, openSlots } from './open.ts'
import { createProviders } from './providers.ts'

await main({
  name: 'email',
  env: process.env,
  read: readEmailConfig,
  metricsPort: 9403,
  poolMax: 6,
  async setup(worker) {
    const { config, database, log } = worker
    const { db } = database
    const jobs = openJobs(database)
    const metrics = createEmailMetrics(db)
    const named = await openProviders(config)
    const providers = createProviders({ db, providers: named, worker, onState: metrics.onState })
    const { slots, close } = openSlots(database, config.REDIS_URL, log)
    const send = { from: config.EMAIL_FROM, perSecond: config.EMAIL_RATE }
    const limits = { batchMax: config.EMAIL_BATCH, concurrency: worker.concurrency(40) }
    const unknown = {
      absentAfterMs: config.EMAIL_ABSENT_AFTER * 1000,
      unaskable: config.EMAIL_UNASKABLE,
    }
    const parts = { db, jobs, slots, providers, worker }
    const pass = emailPass({ ...parts, ...send, ...limits, ...unknown, ...metrics })
    const dry_run = config.EMAIL_DRY_RUN
    log.info(
      { providers: named.map(({ name }) => name), dry_run, ...send, ...limits },
      'sends mails',
    )
    return {
      loops: [
        { name: 'email', pass, idleMs: config.EMAIL_POLL_MS, wokenBy: 'email' },
        { name: 'email providers', pass: providers.refresh, idleMs: 1000, upkeep: true },
        recoverLoop({ jobs, queue: 'email', worker }),
        scheduledLoop({
          db,
          name: 'email prune',
          schedule: everyMinute,
          pass: () => pruneEmailSends(db),
        }),
      ],
      close: async () => {
        await Promise.all([jobs.close(), close(), ...named.map((one) => one.close?.())])
      },
    }
  },
})
