// jobs show: one job with all that is known of it: payload without secrets and personal data, times, every attempt that
// failed, and what happened in the dead letter queue. Also one that is gone, when it was there once.

import { readAttempts } from '../../db/attempts.ts'
import { findJobs, idRange, type JobDetail, readAuditsOf } from '../../db/operate.ts'
import type { Db } from '../../db/schema.ts'
import { mask } from '../../domain/redact.ts'
import { withDatabase } from '../database.ts'
import { type Command, callOf, Exit, givenOnce } from '../program.ts'
import { blanked, moment, printable } from '../table.ts'
import { checkIds, jsonOption, queueNamed, queueOption } from './options.ts'
import { tellAttempts, tellAudit, tellFields } from './tell.ts'

type Arguments = { id: string; queue?: string; json: boolean }

export const show: Command<Arguments> = (context) => ({
  command: 'show <id>',
  describe: 'one job: payload (secrets and personal data masked), times, attempts, errors, audit',
  builder: (yargs) =>
    yargs
      .positional('id', {
        type: 'string',
        demandOption: true,
        describe: 'its id, the one in the dead letter queue, or the first 8 characters or more',
      })
      .option('queue', queueOption)
      .option('json', jsonOption),
  handler: async ({ id, json, ...given }) => {
    checkIds([id], (text) => idRange(text) !== undefined)
    const queue =
      given.queue === undefined ? undefined : queueNamed(givenOnce('queue', given.queue))
    await withDatabase(context.env, async ({ db }) => {
      const job = await findOne(db, id, queue)
      const attempts = job ? ((await readAttempts(db, [job.id])).get(job.id) ?? []) : []
      const audits = await readAuditsOf(db, job?.id ?? id)
      if (job === undefined && audits.length === 0) {
        throw new Exit('nothing', `there is no job ${id}${queue ? ` in ${queue}` : ''}`)
      }
      if (json) {
        const shown = job && { ...job, data: mask(job.data) }
        return context.say(JSON.stringify({ job: shown ?? null, attempts, audits }, null, 2))
      }
      if (job) tellJob(context.say, job)
      else context.say('The job is gone: it is completed, cancelled or removed.')
      tellAttempts(context.say, attempts)
      for (const audit of audits) tellAudit(context.say, audit)
      if (job?.state === 'failed') {
        context.say('')
        context.say(`To retry it: ${callOf(context, `failed:retry ${job.id}`)}`)
      }
    })
  },
})

/** @throws Exit 2 when several are meant */
export async function findOne(
  db: Db,
  id: string,
  queue: string | undefined,
): Promise<JobDetail | undefined> {
  const all = await findJobs(db, id)
  const found = queue === undefined ? all : all.filter((job) => job.queue === queue)
  if (found.length <= 1) return found[0]
  const named = found.map((job) => `${job.id} in ${job.queue}`).join(', ')
  throw new Exit('usage', `${id} may mean ${named}: give more of the id, or --queue`)
}

function tellJob(say: (line: string) => void, job: JobDetail): void {
  tellFields(say, [
    ['Id', job.id],
    ['In dead letters', job.dead_id],
    ['Queue', job.queue],
    ['State', job.state === 'finished' ? job.raw_state : job.state],
    ['Type', [job.type, job.template].filter(Boolean).join(' ') || null],
    ['Attempts', `${job.attempts} of ${job.attempts_max}`],
    ['Priority', job.priority === 0 ? null : String(job.priority)],
    ['Created', moment(job.created_at)],
    ['Due', job.state === 'ready' || job.state === 'delayed' ? moment(job.due_at) : null],
    ['Started', job.started_at && moment(job.started_at)],
    ['Sign of life', job.state === 'active' ? moment(job.heartbeat_at) : null],
    [job.state === 'failed' ? 'Failed' : 'Finished', job.finished_at && moment(job.finished_at)],
    ['Error', job.error && printable(job.error)],
  ])
  say('')
  say('Payload')
  for (const line of JSON.stringify(mask(job.data), null, 2).split('\n')) say(`  ${blanked(line)}`)
}
