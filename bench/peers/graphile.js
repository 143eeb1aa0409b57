// graphile-worker for bench/jobs.ts, set up as its own performance page does: a local queue of 500, completions and
// failures in batches, 24 jobs at once. It deletes a job that is done.

import { Logger, makeWorkerUtils, run } from 'graphile-worker'
import pg from 'pg'
import { serve } from '../jobs/contender.ts'

const connectionString = process.env.DATABASE_URL
const schema = 'graphile_worker'
const silent = new Logger(() => () => {})
const pool = new pg.Pool({ connectionString, max: 4 })
const utils = await makeWorkerUtils({ connectionString, schema, logger: silent })

serve({
  install: () => utils.migrate(),
  async clear() {
    await pool.query(`truncate ${schema}._private_jobs`)
  },
  async insert(payloads) {
    await utils.addJobs(payloads.map((payload) => ({ identifier: 'job', payload })))
  },
  async remaining() {
    const { rows } = await pool.query(`select count(*)::int as count from ${schema}._private_jobs`)
    return rows[0].count
  },
  async work(handle) {
    const runner = await run({
      connectionString,
      schema,
      logger: silent,
      noHandleSignals: true,
      taskList: { job: (payload) => handle(payload) },
      preset: {
        worker: {
          maxPoolSize: 10,
          concurrentJobs: 24,
          localQueue: { size: 500 },
          completeJobBatchDelay: 0,
          failJobBatchDelay: 0,
        },
      },
    })
    process.once('SIGTERM', () => runner.stop().finally(() => process.exit()))
  },
})
