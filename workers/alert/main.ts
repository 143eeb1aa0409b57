// The alert worker: tells people when a vendor is away and when jobs are given up.

import { noticeDeadLetters } from '../../db/deadLetters.ts'
import { openJobs } from '../../db/jobs.ts'
import { openRates } from '../../db/rates.ts'
import { recoverLoop } from '../jobs.ts'
import { scheduledLoop } from '../schedule.ts'
import { main } from '../worker.ts'
import { alertPass } from './alert.ts'
import { readAlertConfig } from './config.ts'
import { createAlertMetrics } from './metrics.ts'
import { createSlack } from './slack.ts'

await main({
  name: 'alert',
  env: process.env,
  read: readAlertConfig,
  metricsPort: 9412,
  poolMax: 4,
  setup(worker) {
    const { config, database, log } = worker
    const { db } = database
    const jobs = openJobs(database)
    const url = config.SLACK_WEBHOOK_URL
    const slack = url ? createSlack({ url, timeoutMs: config.SLACK_TIMEOUT * 1000 }) : undefined
    const email = config.ALERT_EMAIL
    const parts = { db, jobs, slots: openRates(db), slack, email, worker }
    const pass = alertPass({ ...parts, ...createAlertMetrics() })
    log.info({ slack: slack !== undefined, email: email !== undefined }, 'tells people')
    return {
      loops: [
        { name: 'alert', pass, idleMs: config.ALERT_POLL_MS, wokenBy: 'alert' },
        scheduledLoop({
          db,
          name: 'alert dead letters',
          schedule: { everyMs: config.ALERT_LOOK * 1000 },
          pass: () => noticeDeadLetters(db, { everySeconds: config.ALERT_DIGEST }),
        }),
        recoverLoop({ jobs, queue: 'alert', worker }),
      ],
      close: () => jobs.close(),
    }
  },
})
