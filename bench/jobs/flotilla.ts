// Ours for bench/jobs.ts: a worker on the fleet's own runtime, its main() and loops included. BENCH_QUEUE names a queue of
// the catalogue, one that keeps finished jobs or one that keeps none; BENCH_PASS the kind of pass: `job` hands jobs one
// by one to a handler, `batch` a whole batch to the transaction that completes it.

import { openJobs } from '../../db/jobs.ts'
import { installJobs } from '../../db/jobTable.ts'
import { migrate } from '../../db/migrate.ts'
import { openDatabase } from '../../db/open.ts'
import type { QueueName } from '../../domain/queues.ts'
import { commonSettings, readConfig } from '../../workers/config.ts'
import { batchPass, jobPass, recoverLoop } from '../../workers/jobs.ts'
import { main, type Worker } from '../../workers/worker.ts'
import { type Handle, type Payload, serve } from './contender.ts'

const url = process.env.DATABASE_URL!
const queue = process.env.BENCH_QUEUE as QueueName
const batchMax = 1000

if (process.env.BENCH_ROLE === 'worker') await work()
else drive()

function drive(): void {
  const { db, pool } = openDatabase({ url, name: 'bench', poolMax: 2 })
  const jobs = openJobs({ db, pool })
  serve({
    async install() {
      await migrate({ url })
      await installJobs(pool)
    },
    async clear() {
      await pool.query('truncate pgboss.job, claims, finished_jobs')
    },
    insert: (payloads) =>
      jobs.send(
        db,
        queue,
        payloads.map((data) => ({ data })),
      ),
    async insertFinished(payloads) {
      await pool.query(
        `insert into finished_jobs (queue, id, data, attempts, attempts_max, priority, created_at, started_at)
         select $1, gen_random_uuid(), unnest($2::jsonb[]), 1, 3, 0, now(), now()`,
        [queue, payloads.map((data) => JSON.stringify(data))],
      )
    },
    async remaining() {
      const { rows } = await pool.query(
        `select (select count(*) from pgboss.job where name = $1 and state < 'completed')::int
           + (select coalesce(sum(bit_count(~settled)), 0) from claims)::int as count`,
        [queue],
      )
      return rows[0].count
    },
  })
}

async function work(): Promise<void> {
  const asked = Promise.withResolvers<Handle>()
  await main({
    name: 'bench',
    env: { DATABASE_URL: url, METRICS_PORT: '0', LOG_LEVEL: 'error' },
    read: (env) => readConfig(commonSettings, env),
    metricsPort: 0,
    async setup(worker) {
      serve({
        async work(handle) {
          asked.resolve(handle)
        },
      })
      const handle = await asked.promise
      const jobs = openJobs(worker.database)
      return {
        loops: [
          { name: queue, pass: passOf(worker, jobs, handle), idleMs: 1000, wokenBy: queue },
          recoverLoop({ jobs, queue, worker }),
        ],
        close: () => jobs.close(),
      }
    },
  })
}

function passOf(worker: Worker, jobs: ReturnType<typeof openJobs>, handle: Handle) {
  const { db } = worker.database
  const decode = (data: unknown) => data as Payload
  const runtime = { db, jobs, queue, worker, batchMax, decode }
  if (process.env.BENCH_PASS === 'job') {
    return jobPass<Payload>({
      ...runtime,
      concurrency: 100,
      handle: async ({ data }) => handle(data),
    })
  }
  return batchPass<Payload>({
    ...runtime,
    async handle(_tx, batch) {
      await Promise.all(batch.map(({ data }) => handle(data)))
      return () => {}
    },
  })
}
