// The two programs, fleet and jobs: their commands, and how they end. The one place of the command line that reads the
// environment, touches signals and sets the exit code.

import { setTimeout as sleep } from 'node:timers/promises'
import yargs from 'yargs'
import { MigrationChanged, SchemaTooNew } from '../db/migrate.ts'
import { ConfigError } from '../workers/config.ts'
import { bench } from './bench.ts'
import { check } from './check.ts'
import { migrate } from './migrate.ts'
import { type Command, type Context, Exit, exitCodes } from './program.ts'
import { run } from './run.ts'
import { stats } from './stats.ts'
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
  handler: () => main('jobs', context.argv.slice(context.argv.indexOf('jobs') + 1)),
})

type Parser = ReturnType<typeof yargs>

const programs = {
  fleet: (parser: Parser, context: Context) =>
    parser
      .command(up(context))
      .command(run(context))
      .command(migrate(context))
      .command(check(context))
      .command(demo(context))
      .command(bench(context))
      .command(jobs(context)),
  jobs: (parser: Parser, context: Context) => parser.command(stats(context)),
}

const commandNames = {
  fleet: ['up', 'run', 'migrate', 'check', 'demo', 'bench', 'jobs'],
  jobs: ['stats'],
} as const

const flushMaxMs = 2000

/** Ends the process. */
export async function main(program: keyof typeof programs, argv: readonly string[]): Promise<void> {
  const context: Context = {
    env: { ...process.env },
    argv,
    say: (line) => process.stdout.write(`${line}\n`),
    warn: (line) => process.stderr.write(`${line}\n`),
    onStop(stop) {
      for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.on(signal, stop)
      // Whoever read our lines is gone: so is the wish for them.
      process.stdout.on('error', stop)
    },
    become(args, env) {
      const words = [process.execPath, ...args]
      process.removeAllListeners('warning')
      process.execve?.(process.execPath, words, env as Record<string, string>)
      throw new Error('this platform cannot replace a process')
    },
  }
  try {
    await parse(program, context)
  } catch (error) {
    process.exitCode = report(program, context, error)
  }
  await flushed()
  process.exit()
}

/** What was said is read, or nobody reads it: then the end does not wait for them. */
async function flushed(): Promise<void> {
  const streams = [process.stdout, process.stderr].map(
    (stream) => new Promise((resolve) => stream.on('error', resolve).write('', resolve)),
  )
  await Promise.race([Promise.all(streams), sleep(flushMaxMs)])
}

async function parse(program: keyof typeof programs, context: Context): Promise<void> {
  const parser = yargs([...context.argv])
    .scriptName(program)
    .usage(`$0 <command>`)
    .strict()
    .demandCommand(1, 'which command?')
    .version(false)
    .help()
    .wrap(100)
    .exitProcess(false)
    .fail((message, error) => {
      // Some of yargs's own findings come as an error.
      if (error && error.name !== 'YError') throw error
      const fault = message || error?.message
      throw new Exit('usage', `${fault}\n${rightUsage(program, context)}`)
    })
  await programs[program](parser, context).parseAsync()
}

/** What would have been right: the command's own page, or the commands there are. */
function rightUsage(program: keyof typeof programs, { argv }: Context): string {
  const names: readonly string[] = commandNames[program]
  const given = argv.find((word) => names.includes(word))
  return given
    ? `${program} ${given} --help tells how it is used`
    : `known commands: ${names.join(', ')}; ${program} --help describes them`
}

function report(program: string, { warn }: Context, error: unknown): number {
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
