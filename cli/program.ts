// What a command of the two programs is given and how it ends: the environment, places to write to, the person who may
// sit there, signals, and the exit codes 0 done, 1 failed, 2 wrong usage, 3 nothing matched, 78 a restart does not mend
// it (EX_CONFIG of sysexits.h).

import { join, resolve } from 'node:path'
import type { Argv, CommandModule } from 'yargs'
import type { Environment } from '../workers/config.ts'
import type { Terminal } from './terminal.ts'
import { root } from './workers.ts'

export type Context = {
  /** As it was called: fleet, jobs, or fleet jobs. */
  program: string
  env: Environment
  /** Everything after the program's name, as typed. */
  argv: readonly string[]
  /** One line on stdout. */
  say(line: string): void
  /** One line on stderr. */
  warn(line: string): void
  /** All of stdin as text. */
  input(): Promise<string>
  /** Characters a line of stdout has; undefined: it is no terminal. */
  columns: number | undefined
  /** Somebody who can be asked and shown how it goes; undefined: a program called us. */
  terminal: Terminal | undefined
  /** Called at each SIGINT, SIGTERM or SIGHUP, which then no longer end the process. */
  onStop(stop: () => void): void
  /** Becomes this other program, the same process: supervisors and signals see no difference. */
  become(args: readonly string[], env: Environment): never
}

export type Command<Arguments = object> = (context: Context) => CommandModule<object, Arguments>

/** A command in a list of them, whatever its arguments are. */
export type Entry = (context: Context) => {
  name: string
  /** Its name and arguments, as yargs has them: `list <queue>`. */
  usage: string
  addTo(parser: Argv): Argv
}

export const entry =
  <A>(command: Command<A>): Entry =>
  (context) => {
    const module = command(context)
    const usage = String(module.command)
    return { name: usage.split(' ')[0] ?? '', usage, addTo: (parser) => parser.command(module) }
  }

export const exitCodes = { failed: 1, usage: 2, nothing: 3, config: 78 } as const

/** Ends the program with one line and no stack. */
export class Exit extends Error {
  readonly code: number
  constructor(code: keyof typeof exitCodes, message: string) {
    super(message)
    this.name = 'Exit'
    this.code = exitCodes[code]
  }
}

/** The one of that name. @throws Exit 2 that lists the known */
export function known<T extends { name: string }>(
  kind: string,
  name: string | undefined,
  all: readonly T[],
): T {
  const found = all.find((one) => one.name === name)
  if (found) return found
  const names = all.map((one) => one.name).join(', ') || 'none'
  const fault =
    name === undefined ? `which ${kind}?` : `there is no ${kind} ${JSON.stringify(name)};`
  throw new Exit('usage', `${fault} known: ${names}`)
}

/** An option that was given twice is a list to yargs. @throws Exit 2 */
export function givenOnce(
  option: string,
  given: string | string[] | undefined,
): string | undefined {
  if (!Array.isArray(given)) return given
  throw new Exit('usage', `--${option} was given ${given.length} times: give it once`)
}

/** How a person calls a command of ours the way this one was called: `npx fleet jobs show`. */
export const callOf = ({ program, env }: Context, words: string): string =>
  `${env.npm_command === 'exec' ? 'npx ' : ''}${program} ${words}`

/** Absolute, and in the checkout when unset: the programs work from any folder. */
export const dataDirOf = (env: Environment): string =>
  env.FLEET_DATA_DIR ? resolve(env.FLEET_DATA_DIR) : join(root, '.fleet')
