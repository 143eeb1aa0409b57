// jobs list: the jobs of a queue in one state, or in any. Payloads are not in it: `jobs show` has them, masked.

import { type JobRow, type JobState, jobStates, listJobs } from '../../db/operate.ts'
import { withDatabase } from '../database.ts'
import { type Command, type Context, Exit, givenOnce } from '../program.ts'
import { moment, table } from '../table.ts'
import { jsonOption, maxMax, maxOption, queueList, queueNamed, wholeNumber } from './options.ts'

type Arguments = { queue: string; state?: string; max: string; json: boolean }

export const list: Command<Arguments> = (context) => ({
  command: 'list <queue>',
  describe: 'the jobs of a queue, by their state',
  builder: (yargs) =>
    yargs
      .positional('queue', { type: 'string', demandOption: true, describe: queueList })
      .option('state', {
        type: 'string',
        requiresArg: true,
        describe: `only those that are ${jobStates.join(', ')}`,
      })
      .option('max', maxOption)
      .option('json', jsonOption),
  handler: async ({ queue: name, json, ...given }) => {
    const queue = queueNamed(name)
    const state = stateNamed(givenOnce('state', given.state))
    const max = wholeNumber('max', givenOnce('max', given.max) ?? '', 1, maxMax)
    const rows = await withDatabase(context.env, ({ db }) => listJobs(db, queue, state, max))
    if (json) context.say(JSON.stringify(rows, null, 2))
    else if (rows.length > 0) tell(context, rows)
    if (rows.length === 0) {
      throw new Exit('nothing', `no job in ${queue}${state ? ` is ${state}` : ''}`)
    }
    if (rows.length === max && !json) {
      context.warn(`${max} are shown, there may be more: --max shows up to ${maxMax}`)
    }
  },
})

/** @throws Exit 2 */
function stateNamed(given: string | undefined): JobState | undefined {
  if (given === undefined) return undefined
  const state = jobStates.find((one) => one === given)
  if (state) return state
  const fault = `there is no state ${JSON.stringify(given)};`
  throw new Exit('usage', `${fault} known: ${jobStates.join(', ')}`)
}

function tell({ say, columns }: Context, rows: readonly JobRow[]): void {
  const head = ['Id', 'State', 'Type', 'Attempts', 'Created', 'When', 'Error']
  const cells = rows.map((row) => [
    row.id,
    row.state === 'finished' ? row.raw_state : row.state,
    row.template ?? row.type ?? '-',
    `${row.attempts} of ${row.attempts_max}`,
    moment(row.created_at),
    moment(row.finished_at ?? row.started_at ?? row.due_at),
    row.error ?? '',
  ])
  for (const line of table(head, cells, { width: columns, cut: ['Error', 'Type'] })) say(line)
}
