// The commands of the program jobs.

import type { Argv } from 'yargs'
import { completion } from '../completion.ts'
import type { Context } from '../program.ts'
import { cancel } from './cancel.ts'
import { failedRemove } from './failedRemove.ts'
import { failedRetry } from './failedRetry.ts'
import { failedShow } from './failedShow.ts'
import { list } from './list.ts'
import { pause, resume } from './pause.ts'
import { send } from './send.ts'
import { show } from './show.ts'
import { stats } from './stats.ts'
import { stopWorkers } from './stopWorkers.ts'
import { workers } from './workers.ts'

export const jobsCommandNames = [
  'stats',
  'list',
  'show',
  'failed:show',
  'failed:retry',
  'failed:remove',
  'send',
  'pause',
  'resume',
  'cancel',
  'workers',
  'stop-workers',
  'completion',
] as const

export const addJobsCommands = (parser: Argv, context: Context): Argv =>
  parser
    .command(stats(context))
    .command(list(context))
    .command(show(context))
    .command(failedShow(context))
    .command(failedRetry(context))
    .command(failedRemove(context))
    .command(send(context))
    .command(pause(context))
    .command(resume(context))
    .command(cancel(context))
    .command(workers(context))
    .command(stopWorkers(context))
    .command(completion(context))
    .epilogue(
      'Exit codes: 0 done, 1 failed, 2 wrong usage, 3 nothing matched.\n' +
        '`jobs` is also a builtin of the shell, which wins over this program at a prompt and under npx. ' +
        '`npx fleet jobs …` always works; after  eval "$(npx fleet shell-init)"  so does plain `jobs …`, with completion.',
    )
