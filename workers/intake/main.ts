// The intake worker: moves jobs that other systems push on Redis lists into the job table.

import { openJobs } from '../../db/jobs.ts'
import { readConfig } from '../config.ts'
import { main } from '../worker.ts'
import { intakeSettings } from './config.ts'
import { aliveLoop, intakePass } from './intake.ts'
import { listOf } from './items.ts'
import { createIntakeMetrics } from './metrics.ts'
import { openLists } from './open.ts'

await main({
  name: 'intake',
  env: process.env,
  read: (env) => readConfig(intakeSettings, env),
  metricsPort: 9406,
  poolMax: 4,
  async setup(worker) {
    const { config, database, log } = worker
    const { db } = database
    const jobs = openJobs(database)
    const { lists, beside, close } = await openLists(config.REDIS_URL, log)
    const { onMoved } = createIntakeMetrics(beside)
    const batchMax = config.INTAKE_BATCH
    if (lists.size === 0) log.info('REDIS_URL is not set: there are no lists to take from')
    else log.info({ lists: [...lists.keys()].map(listOf), batch: batchMax }, 'takes jobs off lists')
    const takes = [...lists].map(([queue, list]) => ({
      name: `intake ${queue}`,
      pass: intakePass({ db, jobs, queue, list, batchMax, worker, onMoved }),
      idleMs: 0,
    }))
    const nothing = { name: 'intake', pass: async () => 0, idleMs: 60_000 }
    return {
      loops: lists.size > 0 ? [...takes, aliveLoop([...beside.values()], worker)] : [nothing],
      async close() {
        await close()
        await jobs.close()
      },
    }
  },
})
