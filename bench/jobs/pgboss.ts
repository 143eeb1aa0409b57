// pg-boss with its own loop for bench/jobs.ts: work() in batches of 100, four at once, each followed by the next while
// they are full. It keeps finished jobs.

import pg from 'pg'
import { PgBoss } from 'pg-boss'
import { type Payload, serve } from './contender.ts'

const connectionString = process.env.DATABASE_URL!
const schema = 'peer_pgboss'
const queue = 'bench'
const pool = new pg.Pool({ connectionString, max: 2 })
const boss = new PgBoss({ connectionString, schema, max: 10, useListenNotify: true })
boss.on('error', () => {})

serve({
  async install() {
    await boss.start()
    await boss.createQueue(queue, { notify: true })
  },
  async clear() {
    await pool.query(`truncate ${schema}.job`)
  },
  async insert(payloads) {
    await boss.insert(
      queue,
      payloads.map((data) => ({ data })),
    )
  },
  async insertFinished(payloads) {
    await pool.query(
      `insert into ${schema}.job (name, data, state, started_on, completed_on)
       select $1, unnest($2::jsonb[]), 'completed', now(), now()`,
      [queue, payloads.map((data) => JSON.stringify(data))],
    )
  },
  async remaining() {
    const { rows } = await pool.query(
      `select count(*)::int as count from ${schema}.job where name = $1 and state < 'completed'`,
      [queue],
    )
    return rows[0].count
  },
  async work(handle) {
    await boss.start()
    const options = {
      batchSize: 100,
      localConcurrency: 4,
      pollingIntervalSeconds: 0.5,
      burstWhenBatchFull: true,
    }
    await boss.work<Payload>(queue, options, async (jobs) => {
      await Promise.all(jobs.map((job) => handle(job.data)))
    })
    process.once('SIGTERM', () => boss.stop().finally(() => process.exit()))
  },
})
