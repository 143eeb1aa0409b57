// fleet run: one worker as this very process, so that systemd, Docker, Kubernetes and cron deal with the worker itself.

import type { Argv } from 'yargs'
import type { Environment } from '../workers/config.ts'
import { parseLimits, UsageError } from '../workers/limits.ts'
import { runningDatabase } from './database.ts'
import { type Command, dataDirOf, Exit, givenOnce, known } from './program.ts'
import { startOf, workers } from './workers.ts'

/** The worker reads them; here they are checked and described. Text: yargs makes NaN of what is no number. */
const limits = {
  limit: { type: 'string', describe: 'stop after so many messages' },
  'time-limit': { type: 'string', describe: 'stop after so many seconds' },
  'memory-limit': { type: 'string', describe: 'stop when more is resident: 128M, 1G' },
  'failure-limit': { type: 'string', describe: 'stop after so many failures' },
  once: { type: 'boolean', describe: 'stop when there is nothing to do' },
  concurrency: { type: 'string', describe: 'how many at once' },
  grace: { type: 'string', describe: 'how long to finish what is in hand when told to stop, s' },
} as const

export const run: Command<{ worker?: string }> = (context) => ({
  command: 'run [worker]',
  describe: 'run one worker as this process',
  builder: (yargs) => {
    const one = yargs.positional('worker', {
      type: 'string',
      describe: workers.map(({ name }) => name).join(', '),
    })
    for (const [name, option] of Object.entries(limits)) {
      one.option(name, { ...option, requiresArg: option.type !== 'boolean' })
    }
    return one as Argv<{ worker?: string }>
  },
  handler: async (args) => {
    const worker = known('worker', args.worker, workers)
    const given = Object.keys(limits).flatMap((name) => {
      const value = (args as Record<string, string | string[] | boolean | undefined>)[name]
      if (typeof value === 'boolean') return value ? [`--${name}`] : []
      const text = givenOnce(name, value)
      return text === undefined ? [] : [`--${name}=${text}`]
    })
    checkLimits(given)
    const env: Environment = { ...context.env, FLEET_DATA_DIR: dataDirOf(context.env) }
    if (!env.DATABASE_URL_FILE) env.DATABASE_URL = await runningDatabase(env)
    const start = startOf(worker, env, String(env.FLEET_DATA_DIR))
    context.become([...start.args, ...given], start.env)
  },
})

/** @throws Exit 2 */
function checkLimits(given: readonly string[]): void {
  try {
    parseLimits(given)
  } catch (error) {
    throw error instanceof UsageError ? new Exit('usage', error.message) : error
  }
}
