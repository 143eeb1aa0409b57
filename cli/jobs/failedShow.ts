// jobs failed:show: what lies in the dead letter queues and why, with the command that retries what is shown; with an id
// all that is known of that failure.

import { readAttempts, readAudit } from '../../db/attempts.ts'
import { idRange, type JobRow, listFailed } from '../../db/operate.ts'
import { countFailed, readFailedCounts } from '../../db/redrive.ts'
import type { Db } from '../../db/schema.ts'
import { type QueueName, queues } from '../../domain/queues.ts'
import { withDatabase } from '../database.ts'
import { type Command, type Context, callOf, Exit, givenOnce } from '../program.ts'
import { age, blanked, moment, table } from '../table.ts'
import {
  checkIds,
  jsonOption,
  maxMax,
  maxOption,
  queueNamed,
  queueOption,
  wholeNumber,
} from './options.ts'
import { findOne } from './show.ts'
import { tellAttempts, tellAudit } from './tell.ts'

type Arguments = { id?: string; queue?: string; max: string; stats: boolean; json: boolean }

export const failedShow: Command<Arguments> = (context) => ({
  command: 'failed:show [id]',
  describe: 'the jobs that were given up, and why; with an id: every attempt and the last stack',
  builder: (yargs) =>
    yargs
      .positional('id', { type: 'string', describe: 'the job, by either of its ids' })
      .option('queue', queueOption)
      .option('max', maxOption)
      .option('stats', {
        type: 'boolean',
        default: false,
        describe: 'only how many, by queue and type',
      })
      .option('json', jsonOption),
  handler: async ({ id, stats, json, ...given }) => {
    const queue =
      given.queue === undefined ? undefined : queueNamed(givenOnce('queue', given.queue))
    const max = wholeNumber('max', givenOnce('max', given.max) ?? '', 1, maxMax)
    if (id !== undefined && stats) {
      throw new Exit('usage', 'an id and --stats do not go together: leave one out')
    }
    if (id !== undefined) checkIds([id], (text) => idRange(text) !== undefined)
    await withDatabase(context.env, async ({ db }) => {
      if (id !== undefined) await showOne(context, db, id, queue, json)
      else if (stats) await showCounts(context, db, queue, json)
      else await showAll(context, db, queue, max, json)
    })
  },
})

async function showAll(
  context: Context,
  db: Db,
  queue: QueueName | undefined,
  max: number,
  json: boolean,
): Promise<void> {
  const names = queue ? [queue] : queues.map(({ name }) => name)
  const rows = await listFailed(db, names, max)
  if (json) context.say(JSON.stringify(rows, null, 2))
  const where = queue ? ` in ${queue}` : ''
  if (rows.length === 0) throw new Exit('nothing', `no failed job${where}`)
  if (json) return
  const head = ['Id', 'Queue', 'Type', 'Attempts', 'Failed at', 'Error']
  const cells = rows.map((row) => [
    row.id,
    row.queue,
    typeOf(row),
    String(row.attempts),
    moment(row.finished_at),
    row.error ?? '',
  ])
  const fit = { width: context.columns, cut: ['Error', 'Type'] }
  for (const line of table(head, cells, fit)) context.say(line)
  const { failed } = await countFailed(db, names)
  context.say('')
  if (failed > rows.length) context.say(`${rows.length} of ${failed} are shown.`)
  // Exactly what is shown: a few are named, and so are those that are not all.
  const named = rows.length <= 3 || failed > rows.length
  const which = named
    ? rows.map(({ id }) => id).join(' ')
    : ['--all', ...(queue ? [`--queue ${queue}`] : [])].join(' ')
  context.say(
    `To retry ${failed > rows.length ? 'those' : 'them'}: ${callOf(context, `failed:retry ${which}`)}`,
  )
}

const typeOf = ({ template, type }: JobRow): string => template ?? type ?? '-'

async function showCounts(
  { say }: Context,
  db: Db,
  queue: QueueName | undefined,
  json: boolean,
): Promise<void> {
  const counts = await readFailedCounts(db, queue ? [queue] : undefined)
  if (json) return say(JSON.stringify(counts, null, 2))
  const cells = counts.map(({ queue, failed, oldest_at, types }) => [
    queue,
    String(failed),
    oldest_at ? age((Date.now() - oldest_at.getTime()) / 1000) : '-',
    Object.entries(types)
      .map(([type, count]) => `${type} ${count}`)
      .join(', '),
  ])
  for (const line of table(['Queue', 'Failed', 'Oldest', 'Types'], cells)) say(line)
}

async function showOne(
  context: Context,
  db: Db,
  id: string,
  queue: QueueName | undefined,
  json: boolean,
): Promise<void> {
  const job = await findOne(db, id, queue)
  if (job?.dead_id == null) {
    const but = job ? `: job ${job.id} in ${job.queue} is ${job.state}` : ''
    throw new Exit('nothing', `${id} is not among the failed jobs${but}`)
  }
  const audit = await readAudit(db, job.dead_id)
  const attempts = (await readAttempts(db, [job.id])).get(job.id) ?? []
  if (json) {
    const { data: _, ...shown } = job
    return context.say(JSON.stringify({ job: shown, attempts, audit: audit ?? null }, null, 2))
  }
  const head = ['Id', 'Queue', 'Type', 'Attempts', 'Failed at']
  const cells = [job.id, job.queue, typeOf(job), String(job.attempts), moment(job.finished_at)]
  for (const line of table(head, [cells])) context.say(line)
  if (audit) tellAudit(context.say, audit)
  else {
    // It died before audits were kept, or pg-boss's own upkeep buried it.
    tellAttempts(context.say, attempts)
    context.say('')
    for (const line of (job.last_stack ?? job.error ?? 'no error was kept').split('\n'))
      context.say(blanked(line))
  }
  context.say('')
  context.say(`To retry it:  ${callOf(context, `failed:retry ${job.id}`)}`)
  context.say(`To remove it: ${callOf(context, `failed:remove ${job.id}`)}`)
}
