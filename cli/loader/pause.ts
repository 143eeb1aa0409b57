// fleet loader:pause and loader:resume: nobody asks a paused source, and a page that was under way is not stored.

import { pauseSource, resumeSource } from '../../db/loaderSources.ts'
import type { Db } from '../../db/schema.ts'
import { withDatabase } from '../database.ts'
import { jsonOption } from '../jobs/options.ts'
import { type Command, type Context, Exit } from '../program.ts'

type Arguments = { name: string; json: boolean }

const command = (
  context: Context,
  name: 'pause' | 'resume',
  describe: string,
  run: (db: Db, source: string) => Promise<boolean | undefined>,
  says: { changed: string; was: string },
): ReturnType<Command<Arguments>> => ({
  command: `loader:${name} <name>`,
  describe,
  builder: (yargs) =>
    yargs
      .positional('name', { type: 'string', demandOption: true, describe: 'of the source' })
      .option('json', jsonOption),
  handler: async ({ name: given, json }) => {
    const source = String(given)
    const changed = await withDatabase(context.env, ({ db }) => run(db, source))
    if (changed === undefined) throw new Exit('nothing', `there is no source ${source}`)
    const paused = name === 'pause'
    if (json) context.say(JSON.stringify({ source, paused }, null, 2))
    else context.say(`${source} ${changed ? says.changed : says.was}`)
  },
})

export const pause: Command<Arguments> = (context) =>
  command(context, 'pause', 'let nobody ask a source', pauseSource, {
    changed: 'is paused: nobody asks it any more',
    was: 'was paused already',
  })

export const resume: Command<Arguments> = (context) =>
  command(context, 'resume', 'let a paused source be asked again', resumeSource, {
    changed: 'is resumed: it goes on from its cursor',
    was: 'was not paused',
  })
