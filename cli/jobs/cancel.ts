// jobs cancel: takes a job out of its queue for good. A worker that has it in hand is told to drop it; the job does not
// run again, whatever becomes of it there.

import { cancelJob, idRange } from '../../db/operate.ts'
import { cancelledCommand } from '../../workers/problem.ts'
import { withDatabase } from '../database.ts'
import { type Command, callOf, Exit, givenOnce } from '../program.ts'
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
      if (job.dead_id !== null) {
        const right = callOf(context, `failed:remove ${job.id}`)
        throw new Exit('failed', `${job.id} has failed, it does not wait any more: ${right}`)
      }
      if (job.state === 'finished') {
        throw new Exit('failed', `${job.id} is ${job.raw_state} since ${moment(job.finished_at)}`)
      }
      if ((await cancelJob(db, job, cancelledCommand)) === 'lost') {
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

const document = ({ id, queue }: { id: string; queue: string }, running: boolean): string =>
  JSON.stringify({ id, queue, cancelled: true, was_running: running }, null, 2)
