// BullMQ for bench/jobs.ts: 100 jobs at once, a job that is done is removed, Redis keeps nothing on disk.

import { Queue, Worker } from 'bullmq'
import { Redis } from 'ioredis'
import { serve } from '../jobs/contender.ts'

const name = 'bench'
const connection = new Redis(process.env.REDIS_URL, { maxRetriesPerRequest: null })
const queue = new Queue(name, { connection })

serve({
  async install() {
    await queue.waitUntilReady()
  },
  async clear() {
    await queue.obliterate({ force: true })
  },
  async insert(payloads) {
    const opts = { removeOnComplete: true, removeOnFail: true }
    await queue.addBulk(payloads.map((data) => ({ name: 'job', data, opts })))
  },
  async remaining() {
    const { waiting, active, delayed, prioritized } = await queue.getJobCounts()
    return waiting + active + delayed + prioritized
  },
  async work(handle) {
    const worker = new Worker(name, async (job) => handle(job.data), {
      connection,
      concurrency: 100,
    })
    worker.on('error', () => {})
    process.once('SIGTERM', () => worker.close().finally(() => process.exit()))
    await worker.waitUntilReady()
  },
})
