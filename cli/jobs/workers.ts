// jobs workers: who is alive, where, and what it has in hand.

import { readWorkers, type WorkerRow } from '../../db/operatorState.ts'
import { withDatabase } from '../database.ts'
import { type Command, Exit } from '../program.ts'
import { age, table } from '../table.ts'
import { jsonOption } from './options.ts'

export const workers: Command<{ json: boolean }> = (context) => ({
  command: 'workers',
  describe: 'the workers that are alive, and what each has in hand',
  builder: (yargs) => yargs.option('json', jsonOption),
  handler: async ({ json }) => {
    const rows = await withDatabase(context.env, ({ db }) => readWorkers(db))
    if (json) context.say(JSON.stringify(rows, null, 2))
    if (rows.length === 0) throw new Exit('nothing', 'no worker is alive')
    if (json) return
    const head = ['Worker', 'Host', 'Pid', 'Up', 'Seen', 'Memory', 'Doing']
    const fit = { width: context.columns, cut: ['Doing', 'Host'] }
    for (const line of table(head, rows.map(toCells), fit)) context.say(line)
  },
})

const secondsSince = (at: Date): number => (Date.now() - at.getTime()) / 1000

function toCells({ name, host, pid, startedAt, seenAt, doing }: WorkerRow): string[] {
  const queues = Object.entries(doing.queues ?? {}).map(
    ([queue, { active, handled }]) => `${queue}: ${active} active, ${handled} handled`,
  )
  return [
    name,
    host,
    String(pid),
    age(secondsSince(startedAt)),
    `${age(secondsSince(seenAt))} ago`,
    doing.rssBytes === undefined ? '-' : `${Math.round(doing.rssBytes / 2 ** 20)} MB`,
    queues.join('; '),
  ]
}
