// fleet loader:remove: takes a source out of the table. Its events and its cursor stay: added again it goes on.

import { readSourceStatus, removeSource } from '../../db/loaderSources.ts'
import { withDatabase } from '../database.ts'
import { jsonOption } from '../jobs/options.ts'
import { type Command, Exit } from '../program.ts'

export const remove: Command<{ name: string; json: boolean }> = (context) => ({
  command: 'loader:remove <name>',
  describe: 'take a source out of the table; its events and its cursor stay',
  builder: (yargs) =>
    yargs
      .positional('name', { type: 'string', demandOption: true, describe: 'of the source' })
      .option('json', jsonOption),
  handler: async ({ name: given, json }) => {
    const name = String(given)
    await withDatabase(context.env, async ({ db }) => {
      if (await removeSource(db, name)) return
      const [known] = await readSourceStatus(db, [name])
      const fault = known ? 'stands in a file: take it out there' : 'is no source'
      throw new Exit('nothing', `${name} ${fault}`)
    })
    context.say(
      json
        ? JSON.stringify({ source: name, removed: true }, null, 2)
        : `${name} is removed: nobody asks it within a second or so, and its events stay`,
    )
  },
})
