// jobs stats: how the queues stand.

import { readQueueStats } from '../db/jobStats.ts'
import { openDatabase } from '../db/open.ts'
import { queues } from '../domain/queues.ts'
import { runningDatabase } from './database.ts'
import { type Command, known } from './program.ts'
import { age, table } from './table.ts'

export const stats: Command<{ queue: string[]; json: boolean }> = (context) => ({
  command: 'stats [queue..]',
  describe: 'how many jobs are ready, delayed, active, failed in each queue',
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
      const rows = all.filter(
        (row) => chosen.length === 0 || chosen.some((name) => name === row.queue),
      )
      if (json) context.say(JSON.stringify(rows, null, 2))
      else {
        const head = ['queue', 'ready', 'delayed', 'active', 'failed', 'oldest']
        const cells = rows.map(({ queue, ready, delayed, active, failed, oldest_seconds }) => [
          queue,
          ...[ready, delayed, active, failed].map(String),
          oldest_seconds === null ? '-' : age(oldest_seconds),
        ])
        for (const line of table(head, cells)) context.say(line)
      }
    } finally {
      await database.close()
    }
  },
})
