// fleet loader:reset: sets a source's cursor. What was loaded above it is deleted first, so that every event is there
// once when it comes again; that is asked about when there is somebody to ask.

import { countAbove, readSourceStatus, resetSource } from '../../db/loaderSources.ts'
import type { Db } from '../../db/schema.ts'
import { idMax } from '../../domain/loader.ts'
import { withDatabase } from '../database.ts'
import { jsonOption } from '../jobs/options.ts'
import { type Command, type Context, Exit } from '../program.ts'
import { choose } from '../terminal.ts'

type Arguments = { name: string; to: string; force: boolean; json: boolean }

export const reset: Command<Arguments> = (context) => ({
  command: 'loader:reset <name>',
  describe: 'set a source’s cursor; events above it are deleted, and come again',
  builder: (yargs) =>
    yargs
      .positional('name', { type: 'string', demandOption: true, describe: 'of the source' })
      .option('to', {
        type: 'string',
        default: '0',
        requiresArg: true,
        describe: 'the id to go on after; 0: all come again',
      })
      .option('force', { type: 'boolean', default: false, describe: 'delete without asking' })
      .option('json', jsonOption),
  handler: async ({ name: given, to, force, json }) => {
    const name = String(given)
    const toId = /^\d{1,19}$/.test(to) ? BigInt(to) : -1n
    if (toId < 0n || toId > idMax) {
      throw new Exit('usage', `--to must be a whole number from 0 to ${idMax}`)
    }
    const deleted = await withDatabase(context.env, async ({ db }) => {
      if (!force) await confirm(context, db, name, toId, json)
      return await resetSource(db, name, toId)
    })
    if (deleted === undefined) throw new Exit('nothing', `there is no source ${name}`)
    if (json) context.say(JSON.stringify({ source: name, last_id: String(toId), deleted }, null, 2))
    else context.say(`${name} goes on after ${toId}; ${deleted} events were deleted`)
  },
})

/** @throws Exit when it was not meant */
async function confirm(
  { terminal }: Context,
  db: Db,
  name: string,
  toId: bigint,
  json: boolean,
): Promise<void> {
  const [status] = await readSourceStatus(db, [name])
  if (status === undefined) throw new Exit('nothing', `there is no source ${name}`)
  const count = await countAbove(db, name, toId)
  if (count === 0) return
  if (terminal === undefined || json) {
    throw new Exit('usage', `this deletes ${count} events: say --force if that is meant`)
  }
  const question = `Delete ${count} events of ${name} above ${toId}?`
  const answer = await choose(terminal, question, ['yes', 'no'])
  if (answer !== 'yes') throw new Exit('failed', 'nothing was changed')
}
