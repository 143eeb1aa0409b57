// A worker on the fleet's own runtime whose jobs write down that they ran: a row in `runs` each time one begins. What a
// job does stands in its payload. JOB_POLL_MS is the wait of an idle one, JOB_BATCH the jobs claimed at once.

import { setTimeout as sleep } from 'node:timers/promises'
import { sql } from 'kysely'
import { type Job, openJobs } from '../../db/jobs.ts'
import type { Db } from '../../db/schema.ts'
import { commonSettings, int, readConfig } from '../../workers/config.ts'
import { jobPass, recoverLoop } from '../../workers/jobs.ts'
import { main } from '../../workers/worker.ts'

export type TestJob = {
  n: number
  /** How long it takes. It ends early, with an error, when it is to be dropped. */
  ms?: number
  /** How long it takes the first time. */
  firstMs?: number
  does?: 'kill' | 'fail'
}

const settings = {
  ...commonSettings,
  JOB_POLL_MS: int({ doc: 'wait of an idle one, ms', fallback: 250, min: 10 }),
  JOB_BATCH: int({ doc: 'jobs claimed at once', fallback: 100, min: 1 }),
}

function decode(data: unknown): TestJob {
  const job = data as TestJob
  if (!Number.isSafeInteger(job.n)) throw new Error('n must be a whole number')
  return job
}

let running = 0

async function run(db: Db, { id, attempt, data }: Job<TestJob>, signal: AbortSignal) {
  const { rows } = await sql<{ again: boolean }>`
    insert into runs (n, job_id, attempt, pid, beside)
    values (${data.n}, ${id}, ${attempt}, ${process.pid}, ${running})
    returning exists (select from runs r where r.job_id = ${id}) as again`.execute(db)
  if (data.does === 'kill') process.kill(process.pid, 'SIGKILL')
  if (data.does === 'fail') throw new Error('it was told to')
  const ms = rows[0]?.again ? data.ms : (data.firstMs ?? data.ms)
  if (ms) await sleep(ms, undefined, { signal })
}

await main({
  name: 'test-jobs',
  env: process.env,
  read: (env) => readConfig(settings, env),
  metricsPort: 9499,
  setup(worker) {
    const { config, database } = worker
    const { db } = database
    const jobs = openJobs(database)
    const queue = 'commands'
    const pass = jobPass<TestJob>({
      jobs,
      db,
      queue,
      worker,
      batchMax: config.JOB_BATCH,
      concurrency: worker.concurrency(16),
      decode,
      async handle(job, signal) {
        running++
        await run(db, job, signal).finally(() => running--)
      },
    })
    return {
      loops: [
        { name: 'jobs', pass, idleMs: config.JOB_POLL_MS, wokenBy: queue },
        recoverLoop({ jobs, queue, worker }),
      ],
      close: () => jobs.close(),
    }
  },
})
