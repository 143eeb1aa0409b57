// jobs stats: how the queues stand.

import { readQueueRates, readQueueStats } from '../db/jobStats.ts'
import { openDatabase } from '../db/open.ts'
import { queues } from '../domain/queues.ts'
import { runningDatabase } from './database.ts'
import { type Command, known } from './program.ts'
import { age, table } from './table.ts'

export const stats: Command<{ queue: string[]; json: boolean }> = (context) => ({
  command: 'stats [queue..]',
  describe: 'how many jobs are ready, delayed, active, failed in each queue, and how fast it goes',
  builder: (yargs) =>
    yargs
      .positional('queue', {
        type: 'string',
        array: true,
        default: [] as string[],
        defaultDescription: 'all',
        describe: queues.map(({ name }) => name).join(', '),
      })
      .option('json', { type: 'boolean', default: false, describe: 'one JSON document' }),
  handler: async ({ queue: names, json }) => {
    const chosen = names.map((name) => known('queue', name, queues).name)
    const url = await runningDatabase(context.env)
    const database = openDatabase({ url, name: 'jobs', poolMax: 1 })
    try {
      const all = await readQueueStats(database.db)
      const rates = await readQueueRates(database.db)
      const rows = all
        .filter(({ queue }) => chosen.length === 0 || chosen.some((name) => name === queue))
        .map((row) => ({ ...row, rate_per_second: rates.get(row.queue) ?? 0 }))
      if (json) context.say(JSON.stringify(rows, null, 2))
      else {
        const head = ['queue', 'ready', 'delayed', 'active', 'failed', 'oldest', 'rate/s']
        const cells = rows.map((row) => [
          row.queue,
          ...[row.ready, row.delayed, row.active, row.failed].map(String),
          row.oldest_seconds === null ? '-' : age(row.oldest_seconds),
          row.rate_per_second.toFixed(1),
        ])
        for (const line of table(head, cells)) context.say(line)
      }
    } finally {
      await database.close()
    }
  },
})
