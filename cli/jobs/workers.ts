// jobs workers: who is alive, where, and what it has in hand; and who died without a word within a day.

import { readWorkers, type WorkerRow } from '../../db/registry.ts'
import { withDatabase } from '../database.ts'
import { type Command, type Context, Exit } from '../program.ts'
import { age, table } from '../table.ts'
import { jsonOption } from './options.ts'

export const workers: Command<{ json: boolean }> = (context) => ({
  command: 'workers',
  describe: 'the workers, those that died within a day too, and what each has in hand',
  builder: (yargs) => yargs.option('json', jsonOption),
  handler: async ({ json }) => {
    const rows = await withDatabase(context.env, ({ db }) => readWorkers(db))
    if (json) context.say(JSON.stringify(rows, null, 2))
    if (!rows.some(({ alive }) => alive)) {
      if (!json) tell(context, rows)
      throw new Exit('nothing', 'no worker is alive')
    }
    if (!json) tell(context, rows)
  },
})

function tell({ say, columns }: Context, rows: readonly WorkerRow[]): void {
  if (rows.length === 0) return
  const head = ['Worker', 'Host', 'Pid', 'Up', 'Alive', 'Memory', 'Doing']
  const fit = { width: columns, cut: ['Doing', 'Host'] }
  for (const line of table(head, rows.map(toCells), fit)) say(line)
}

const secondsSince = (at: Date): number => (Date.now() - at.getTime()) / 1000

function toCells({ name, host, pid, startedAt, seenAt, alive, doing }: WorkerRow): string[] {
  const queues = Object.entries(doing.queues ?? {}).map(
    ([queue, { active, handled }]) => `${queue}: ${active} active, ${handled} handled`,
  )
  return [
    name,
    host,
    String(pid),
    age(secondsSince(startedAt)),
    alive ? 'yes' : `died ${age(secondsSince(seenAt))} ago`,
    doing.rssBytes === undefined ? '-' : `${Math.round(doing.rssBytes / 2 ** 20)} MB`,
    queues.join('; '),
  ]
}
