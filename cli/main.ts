// The two programs, fleet and jobs: their commands, and how they end. The one place of the command line that reads the
// environment, touches signals and sets the exit code.

import { text } from 'node:stream/consumers'
import { setTimeout as sleep } from 'node:timers/promises'
import yargs from 'yargs'
import { MigrationChanged, SchemaTooNew } from '../db/migrate.ts'
import { ConfigError } from '../workers/config.ts'
import { bench } from './bench.ts'
import { check } from './check.ts'
import { completion, completionFlag, offer, shellInit } from './completion.ts'
import { emailPreview } from './email/preview.ts'
import { emailSuppress } from './email/suppress.ts'
import { flagsList, flagsSet } from './flags.ts'
import { itemsCommands } from './items/commands.ts'
import { jobsCommands, jobsEpilogue } from './jobs/commands.ts'
import { loaderCommands } from './loader/commands.ts'
import { migrate } from './migrate.ts'
import { type Command, type Context, type Entry, Exit, entry, exitCodes } from './program.ts'
import { run } from './run.ts'
import { openTerminal } from './terminal.ts'
import { up } from './up.ts'

const demo: Command = (context) => ({
  command: 'demo',
  describe: 'the whole way of a ticket, end to end, in about a minute',
  handler: async () => (await import('./demo.ts')).demo(context),
})

/** `jobs` is also a word of the shell itself, which `npx jobs` runs into: this way round it always works. */
const jobs: Command = (context) => ({
  command: 'jobs [arguments..]',
  describe: 'the program jobs: looks after the job table',
  builder: (yargs) => yargs.help(false).strict(false),
  handler: async () => {
    const argv = context.argv.slice(context.argv.indexOf('jobs') + 1)
    const code = await execute('jobs', { ...context, program: 'fleet jobs', argv })
    if (code !== 0) throw new Ended(code)
  },
})

type Program = 'fleet' | 'jobs'

/** A program inside this one has ended and said why. */
class Ended extends Error {
  readonly code: number
  constructor(code: number) {
    super(`ended with ${code}`)
    this.code = code
  }
}

export const programs: Record<Program, readonly Entry[]> = {
  fleet: [
    entry(up),
    entry(run),
    entry(migrate),
    entry(check),
    entry(demo),
    entry(bench),
    entry(emailPreview),
    entry(emailSuppress),
    entry(flagsList),
    entry(flagsSet),
    ...loaderCommands,
    ...itemsCommands,
    entry(jobs),
    entry(shellInit),
    entry(completion),
  ],
  jobs: jobsCommands,
}

const flushMaxMs = 2000

/** Ends the process. */
export async function main(program: Program, argv: readonly string[]): Promise<void> {
  const { stdin, stdout, stderr } = process
  const isAttended = stdin.isTTY === true && stderr.isTTY === true
  const terminal = isAttended ? openTerminal(stdin, stderr) : undefined
  const context: Context = {
    program,
    env: { ...process.env },
    argv,
    say: (line) => stdout.write(`${line}\n`),
    warn: (line) => stderr.write(`${line}\n`),
    input: () => text(stdin),
    columns: stdout.isTTY === true ? stdout.columns : undefined,
    terminal,
    onStop(stop) {
      for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.on(signal, stop)
      // Whoever read our lines is gone: so is the wish for them.
      stdout.on('error', stop)
    },
    become(args, env) {
      const words = [process.execPath, ...args]
      process.removeAllListeners('warning')
      process.execve?.(process.execPath, words, env as Record<string, string>)
      throw new Error('this platform cannot replace a process')
    },
  }
  process.exitCode = await execute(program, context)
  terminal?.close()
  await flushed()
  process.exit()
}

/** Runs a command. @returns its exit code */
export async function execute(program: Program, context: Context): Promise<number> {
  try {
    await parse(program, context)
    return 0
  } catch (error) {
    context.terminal?.show('')
    return report(context, error)
  }
}

/** What was said is read, or nobody reads it: then the end does not wait for them. */
async function flushed(): Promise<void> {
  const streams = [process.stdout, process.stderr].map(
    (stream) => new Promise((resolve) => stream.on('error', resolve).write('', resolve)),
  )
  await Promise.race([Promise.all(streams), sleep(flushMaxMs)])
}

async function parse(program: Program, context: Context): Promise<void> {
  const { argv } = context
  const typed = argv[0] === completionFlag ? argv.slice(1) : undefined
  if (program === 'fleet' && typed?.[1] === 'jobs' && typed.length > 2) {
    return await parse('jobs', { ...context, argv: [completionFlag, ...typed.slice(1)] })
  }
  const commands = programs[program].map((command) => command(context))
  const parser = yargs([...argv])
    .scriptName(context.program)
    .usage(`$0 <command>`)
    .strict()
    .demandCommand(1, 'which command?')
    .version(false)
    .help()
    .wrap(100)
    .exitProcess(false)
    .completion('yargs-completion', false, offerToo(typed ?? []))
    .fail((message, error) => {
      // Some of yargs's own findings come as an error.
      if (error && error.name !== 'YError') throw error
      const fault = (message || error?.message) ?? ''
      const told = fault
        .replace(/^Not enough non-option.*/s, 'an argument is missing')
        .replace(/^Not enough arguments following: (.*)/, '--$1 needs a value')
      throw new Exit('usage', `${told}\n${rightUsage(commands, context)}`)
    })
  parser.middleware((_: object, yargs?: unknown) => checkSwitches(argv, yargs), true)
  for (const command of commands) command.addTo(parser)
  if (program === 'jobs') parser.epilogue(jobsEpilogue)
  await parser.parseAsync()
}

/** Any value but true is false to yargs. @throws Exit 2 */
function checkSwitches(argv: readonly string[], yargs: unknown): void {
  // Not in the types of yargs.
  const { boolean } = (yargs as { getOptions(): { boolean: string[] } }).getOptions()
  for (const word of argv) {
    const [, name = '', value] = /^--(?:no-)?([\w-]+)=(.*)$/s.exec(word) ?? []
    if (value === undefined || !boolean.includes(name) || /^(true|false)$/.test(value)) continue
    const right = `--${name} is a switch: it takes no value (it is ${JSON.stringify(value)})`
    throw new Exit('usage', right)
  }
}

type Done = (found: string[]) => void
type ByYargs = (done: (error: Error | null, found?: string[]) => void) => void

/** What is typed after a command, besides what yargs knows of: commands and options. */
const offerToo =
  (typed: readonly string[]) =>
  (_current: string, _argv: object, byYargs: ByYargs, done: Done): void => {
    const { values, only } = offer(typed)
    if (only) done([...values])
    else byYargs((_error, found = []) => done([...values, ...found]))
  }

/** What would have been right: the command with its arguments, or the commands there are. */
function rightUsage(commands: readonly ReturnType<Entry>[], { argv, program }: Context): string {
  const given = argv.map((word) => commands.find(({ name }) => name === word)).find(Boolean)
  if (given) {
    const right = `${program} ${given.usage}`
    return `${program} ${given.name} --help tells how it is used: ${right}`
  }
  const names = commands.map(({ name }) => name).join(', ')
  return `known commands: ${names}; ${program} --help describes them`
}

function report({ program, warn }: Context, error: unknown): number {
  if (error instanceof Ended) return error.code
  if (error instanceof Exit) {
    warn(`${program}: ${error.message}`)
    return error.code
  }
  if (error instanceof ConfigError) {
    warn(`${program}: bad configuration:\n  ${error.faults.join('\n  ')}`)
    return exitCodes.config
  }
  if (error instanceof SchemaTooNew || error instanceof MigrationChanged) {
    warn(`${program}: ${error.message}`)
    return exitCodes.config
  }
  warn(`${program}: ${error instanceof Error ? error.message : String(error)}`)
  return exitCodes.failed
}
