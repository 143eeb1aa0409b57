// fleet loader:add: puts a source into the table, or changes the one of that name, which keeps its cursor. Every loader
// has it within a second or so.

import { addSource } from '../../db/loaderSources.ts'
import { sourceTypes } from '../../domain/loader.ts'
import { describeSource, readSource } from '../../domain/sources.ts'
import { withDatabase } from '../database.ts'
import { jsonOption } from '../jobs/options.ts'
import { type Command, Exit } from '../program.ts'

type Arguments = {
  name: string
  url: string
  type: string
  header: string[]
  set: string[]
  json: boolean
}

export const add: Command<Arguments> = (context) => ({
  command: 'loader:add <name> <url>',
  describe: 'add a source to the table, or change it; its cursor stays',
  builder: (yargs) =>
    yargs
      .positional('name', { type: 'string', demandOption: true, describe: 'of the source' })
      .positional('url', { type: 'string', demandOption: true, describe: 'where it is asked' })
      .option('type', {
        type: 'string',
        requiresArg: true,
        default: 'http',
        describe: sourceTypes.join(', '),
      })
      .option('header', {
        type: 'string',
        array: true,
        requiresArg: true,
        default: [] as string[],
        describe: `"Name: value"; a secret as ${variable}, in single quotes`,
      })
      .option('set', {
        type: 'string',
        array: true,
        requiresArg: true,
        default: [] as string[],
        describe: 'more of its fields: timeout_ms=5000 overlap=100 after_param=since',
      })
      .option('json', jsonOption),
  handler: async ({ name, url, type, header, set, json }) => {
    const { source, faults } = readSource({
      name: String(name),
      url: String(url),
      type,
      headers: Object.fromEntries(header.map(readHeader)),
      ...Object.fromEntries(set.map(readField)),
    })
    if (source === undefined) throw new Exit('usage', faults.join('; '))
    const { name: _, ...definition } = describeSource(source)
    const isNew = await withDatabase(context.env, ({ db }) =>
      addSource(db, source.name, definition),
    )
    if (json) context.say(JSON.stringify({ source: source.name, added: isNew }, null, 2))
    else context.say(`${source.name} is ${isNew ? 'added' : 'changed: it goes on from its cursor'}`)
  },
})

// biome-ignore lint/suspicious/noTemplateCurlyInString: it is what people write
const variable = '${env:NAME}'

/** @throws Exit 2 */
function readHeader(given: string): [string, string] {
  const [, name, value] = /^([^:]+):\s*(.*)$/s.exec(given) ?? []
  if (name !== undefined && value !== undefined) return [name.trim(), value]
  // Not the text itself: it may be a secret.
  throw new Exit('usage', '--header must be "Name: value"')
}

function readField(given: string): [string, string | number] {
  const [, name, value] = /^([a-z_]+)=(.*)$/s.exec(given) ?? []
  if (name === undefined || value === undefined) {
    throw new Exit(
      'usage',
      `--set must be field=value (it is ${JSON.stringify(given.slice(0, 40))})`,
    )
  }
  return [name, /^\d{1,15}$/.test(value) ? Number(value) : value]
}
