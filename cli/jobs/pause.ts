// jobs pause and jobs resume: workers claim nothing from a paused queue, and go on with what they have.

import { pauseQueue, resumeQueue } from '../../db/pauses.ts'
import type { Db } from '../../db/schema.ts'
import type { QueueName } from '../../domain/queues.ts'
import { withDatabase } from '../database.ts'
import type { Command, Context } from '../program.ts'
import { jsonOption, queueList, queueNamed } from './options.ts'

type Arguments = { queue: string; json: boolean }

const command = (
  context: Context,
  name: string,
  describe: string,
  run: (db: Db, queue: QueueName) => Promise<string>,
): ReturnType<Command<Arguments>> => ({
  command: `${name} <queue>`,
  describe,
  builder: (yargs) =>
    yargs
      .positional('queue', { type: 'string', demandOption: true, describe: queueList })
      .option('json', jsonOption),
  handler: async ({ queue: given, json }) => {
    const queue = queueNamed(given)
    const says = await withDatabase(context.env, ({ db }) => run(db, queue))
    context.say(json ? JSON.stringify({ queue, paused: name === 'pause' }, null, 2) : says)
  },
})

export const pause: Command<Arguments> = (context) =>
  command(context, 'pause', 'let workers claim nothing more from a queue', async (db, queue) =>
    (await pauseQueue(db, queue))
      ? `${queue} is paused: what is in hand is finished, the rest waits`
      : `${queue} was paused already`,
  )

export const resume: Command<Arguments> = (context) =>
  command(context, 'resume', 'let workers claim from a paused queue again', async (db, queue) =>
    (await resumeQueue(db, queue)) ? `${queue} is resumed` : `${queue} was not paused`,
  )
