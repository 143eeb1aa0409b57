// fleet bench: runs bench/<name>.ts with the arguments that follow its name.

import { readdirSync } from 'node:fs'
import { join } from 'node:path'
import { type Command, known } from './program.ts'
import { root } from './workers.ts'

const folder = join(root, 'bench')

export const bench: Command<{ name?: string }> = (context) => ({
  command: 'bench [name] [arguments..]',
  describe: 'run one of bench/*.ts; what follows its name is passed on',
  builder: (yargs) =>
    yargs
      .positional('name', { type: 'string', describe: benchNames().join(', ') })
      .parserConfiguration({ 'unknown-options-as-args': true }),
  handler: (args) => {
    const all = benchNames().map((name) => ({ name }))
    const { name } = known('bench', args.name, all)
    const rest = context.argv.slice(context.argv.indexOf(name) + 1)
    context.become([join(folder, `${name}.ts`), ...rest], context.env)
  },
})

export const benchNames = (): string[] =>
  readdirSync(folder)
    .filter((file) => file.endsWith('.ts'))
    .map((file) => file.slice(0, -'.ts'.length))
    .sort()
