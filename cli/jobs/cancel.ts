// jobs cancel: takes a job out of its queue for good. A worker that has it in hand is told to drop it; the job does not
// run again, whatever becomes of it there.

import { cancelJob, idRange, type JobDetail } from '../../db/operate.ts'
import { cancelledCommand } from '../../workers/problem.ts'
import { withDatabase } from '../database.ts'
import { type Command, type Context, callOf, Exit, givenOnce } from '../program.ts'
import { moment } from '../table.ts'
import { checkIds, jsonOption, queueNamed, queueOption } from './options.ts'
import { findOne } from './show.ts'

type Arguments = { id: string; queue?: string; json: boolean }

export const cancel: Command<Arguments> = (context) => ({
  command: 'cancel <id>',
  describe: 'take a job out of its queue for good; one that runs does not run again',
  builder: (yargs) =>
    yargs
      .positional('id', { type: 'string', demandOption: true, describe: 'the job' })
      .option('queue', queueOption)
      .option('json', jsonOption),
  handler: async ({ id, json, ...given }) => {
    checkIds([id], (text) => idRange(text) !== undefined)
    const queue =
      given.queue === undefined ? undefined : queueNamed(givenOnce('queue', given.queue))
    await withDatabase(context.env, async ({ db }) => {
      const job = await findOne(db, id, queue)
      if (job === undefined) throw new Exit('nothing', `there is no job ${id}`)
      if (job.raw_state === 'cancelled') {
        return context.say(json ? document(job, false) : `${job.id} is cancelled already`)
      }
      refuseOver(context, job)
      if ((await cancelJob(db, job, cancelledCommand)) === 'lost') {
        const now = await findOne(db, job.id, job.queue)
        if (now) refuseOver(context, now)
        throw new Exit('failed', `${job.id} has just finished: it was too late`)
      }
      const running = job.state === 'active'
      if (json) return context.say(document(job, running))
      context.say(`cancelled ${job.id} in ${job.queue}`)
      if (running) {
        context.say(
          `A worker has it since ${moment(job.started_at)}, and is told to drop it: what it has done stays done. ` +
            'It fails no more, and does not run again.',
        )
      }
    })
  },
})

/** @throws Exit 1 when the job has failed for good or is finished */
function refuseOver(context: Context, { id, dead_id, state, raw_state, finished_at }: JobDetail) {
  if (dead_id !== null) {
    const right = callOf(context, `failed:remove ${id}`)
    throw new Exit('failed', `${id} has failed, it does not wait any more: ${right}`)
  }
  if (state === 'finished') {
    throw new Exit('failed', `${id} is ${raw_state} since ${moment(finished_at)}`)
  }
}

const document = ({ id, queue }: { id: string; queue: string }, running: boolean): string =>
  JSON.stringify({ id, queue, cancelled: true, was_running: running }, null, 2)
