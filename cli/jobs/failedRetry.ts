// jobs failed:retry: gives failed jobs back to their queues, with their ids and a fresh count of attempts. Names nothing
// and sits at a terminal: each is shown and asked for. Safe beside workers, beside another operator, and twice.

import { listFailed } from '../../db/operate.ts'
import { countFailed, retryFailed } from '../../db/redrive.ts'
import type { Db } from '../../db/schema.ts'
import { removeFailed } from '../../workers/removeFailed.ts'
import { withDatabase } from '../database.ts'
import { type Command, type Context, callOf, Exit } from '../program.ts'
import { moment, printable } from '../table.ts'
import { choose, type Terminal } from '../terminal.ts'
import { type Asked, checkGiven, type Given, moveAll, moveNamed, tellOutcome } from './failed.ts'
import { jsonOption, queueOption } from './options.ts'

export const failedRetry: Command<Given> = (context) => ({
  command: 'failed:retry [id..]',
  describe:
    'give failed jobs back to their queues; neither ids nor --all nor --force: asks for each',
  builder: (yargs) =>
    yargs
      .positional('id', {
        type: 'string',
        array: true,
        default: [] as string[],
        defaultDescription: 'asks for each',
        describe: 'jobs, by either of their ids or its first 8 characters or more',
      })
      .option('queue', queueOption)
      .option('all', { type: 'boolean', default: false, describe: 'all of them; asks once' })
      .option('force', { type: 'boolean', default: false, describe: 'without asking' })
      .option('json', jsonOption),
  handler: async (given) => {
    const asked = checkGiven(given)
    const terminal = given.json ? undefined : context.terminal
    const unnamed = asked.ids.length === 0 && !given.all && !given.force
    if (unnamed && !terminal) {
      const right = callOf(context, 'failed:retry')
      const of = asked.queue ? ` --queue ${asked.queue}` : ''
      throw new Exit('usage', `which jobs? ${right} <id…>, or ${right} --all${of}`)
    }
    await withDatabase(context.env, async ({ db }) => {
      if (unnamed && terminal) return await askForEach(context, terminal, db, asked)
      if (asked.ids.length === 0 && !given.force && terminal) await askOnce(terminal, db, asked)
      const move = asked.ids.length > 0 ? moveNamed : moveAll
      const outcome = await move(context, db, asked, 'retried', retryFailed)
      await tellOutcome(context, db, 'retried', outcome, given.json)
    })
  },
})

/** @throws Exit when it is not wanted */
async function askOnce(terminal: Terminal, db: Db, { names, queue }: Asked): Promise<void> {
  const { failed } = await countFailed(db, names)
  if (failed === 0) return
  const what = failed === 1 ? 'the one failed job' : `all ${failed} failed jobs`
  const answer = await choose(terminal, `Retry ${what}${queue ? ` of ${queue}` : ''}?`, [
    'yes',
    'no',
  ])
  if (answer !== 'yes') throw new Exit('failed', 'nothing was retried')
}

/** The oldest first, in the order they died. */
async function askForEach(
  { say, terminal: _, ...context }: Context,
  terminal: Terminal,
  db: Db,
  { names, queue }: Asked,
): Promise<void> {
  const most = 1000
  const jobs = (await listFailed(db, names, most)).reverse()
  if (jobs.length === 0) throw new Exit('nothing', `no failed job${queue ? ` in ${queue}` : ''}`)
  const did = { retry: 0, delete: 0, skip: 0 }
  for (const [n, job] of jobs.entries()) {
    say('')
    say(
      `${n + 1} of ${jobs.length}  ${job.id} in ${job.queue}, ${job.template ?? job.type ?? 'no type'}`,
    )
    say(
      `failed ${moment(job.finished_at)} after ${job.attempts} attempts: ${printable(job.error ?? 'no error was kept')}`,
    )
    const answer = await choose(terminal, 'What now?', ['retry', 'delete', 'skip'])
    if (answer === undefined) break
    const chosen = { deadIds: [job.dead_id ?? ''] }
    const moved =
      answer === 'skip'
        ? [job]
        : await (answer === 'retry' ? retryFailed : removeFailed)(db, chosen)
    if (moved.length === 0) context.warn('it is gone: somebody else was faster')
    else did[answer]++
  }
  say('')
  say(`retried ${did.retry}, removed ${did.delete}, skipped ${did.skip}`)
}
