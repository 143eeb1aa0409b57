// jobs stats: how the queues stand.

import { readQueueRates, readQueueStats } from '../../db/jobStats.ts'
import { queues } from '../../domain/queues.ts'
import { withDatabase } from '../database.ts'
import { type Command, known } from '../program.ts'
import { age, table } from '../table.ts'
import { jsonOption, queueList } from './options.ts'

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
        describe: queueList,
      })
      .option('json', jsonOption),
  handler: async ({ queue: names, json }) => {
    const chosen = names.map((name) => known('queue', name, queues).name)
    const rows = await withDatabase(context.env, async ({ db }) => {
      const all = await readQueueStats(db)
      const rates = await readQueueRates(db)
      return all
        .filter(({ queue }) => chosen.length === 0 || chosen.some((name) => name === queue))
        .map((row) => ({ ...row, rate_per_second: rates.get(row.queue) ?? 0 }))
    })
    if (json) return context.say(JSON.stringify(rows, null, 2))
    const head = ['queue', 'ready', 'delayed', 'active', 'failed', 'oldest', 'rate/s', '']
    const cells = rows.map((row) => [
      row.queue,
      ...[row.ready, row.delayed, row.active, row.failed].map(String),
      row.oldest_seconds === null ? '-' : age(row.oldest_seconds),
      row.rate_per_second.toFixed(1),
      row.paused ? 'paused' : '',
    ])
    for (const line of table(head, cells)) context.say(line)
  },
})
