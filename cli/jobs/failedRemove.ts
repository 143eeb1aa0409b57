// jobs failed:remove: deletes failed jobs for good. Their audit rows stay, and tell that they were removed.

import { countFailed } from '../../db/redrive.ts'
import { removeFailed } from '../../workers/removeFailed.ts'
import { withDatabase } from '../database.ts'
import { type Command, callOf, Exit } from '../program.ts'
import { choose } from '../terminal.ts'
import { checkGiven, type Given, moveAll, moveNamed, tellOutcome } from './failed.ts'
import { jsonOption, queueOption } from './options.ts'

export const failedRemove: Command<Given> = (context) => ({
  command: 'failed:remove [id..]',
  describe: 'delete failed jobs for good; what went wrong with them stays known',
  builder: (yargs) =>
    yargs
      .positional('id', {
        type: 'string',
        array: true,
        default: [] as string[],
        defaultDescription: 'needs --all',
        describe: 'jobs, by either of their ids or its first 8 characters or more',
      })
      .option('queue', queueOption)
      .option('all', { type: 'boolean', default: false, describe: 'all of them' })
      .option('force', { type: 'boolean', default: false, describe: 'without asking' })
      .option('json', jsonOption),
  handler: async (given) => {
    const asked = checkGiven(given)
    const named = asked.ids.length > 0
    const terminal = given.json ? undefined : context.terminal
    const call = callOf(context, 'failed:remove')
    const all = `${call} --all${asked.queue ? ` --queue ${asked.queue}` : ''}`
    if (!named && !given.all) throw new Exit('usage', `which jobs? ${call} <id…>, or ${all}`)
    if (!named && !given.force && !terminal) {
      throw new Exit('usage', `nobody can be asked here: ${all} --force removes all of them`)
    }
    await withDatabase(context.env, async ({ db }) => {
      if (!given.force && terminal) {
        const count = named ? asked.ids.length : (await countFailed(db, asked.names)).failed
        const where = asked.queue ? ` of ${asked.queue}` : ''
        const question = `Remove ${count === 1 ? 'one failed job' : `${count} failed jobs`}${where} for good?`
        const answer = count === 0 ? 'yes' : await choose(terminal, question, ['yes', 'no'])
        if (answer !== 'yes') throw new Exit('failed', 'nothing was removed')
      }
      const move = named ? moveNamed : moveAll
      const outcome = await move(context, db, asked, 'removed', removeFailed)
      await tellOutcome(context, db, 'removed', outcome, given.json)
    })
  },
})
