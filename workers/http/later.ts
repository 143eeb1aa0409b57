// Writes asked for with Prefer: respond-async. `createRunLater` makes a durable job of one and answers 202;
// `commandPass` runs such jobs. Every command ends in an answer that GET /commands/{id} tells: what it decided,
// a refusal, or, when its attempts are used up, the error that kept it from being run.

import { v7 as uuidv7 } from 'uuid'
import { type CommandJob, closeCommand, enqueueCommand, readPending } from '../../db/commands.ts'
import type { Job, Jobs } from '../../db/jobs.ts'
import { ReceiptTaken } from '../../db/receipts.ts'
import type { Db } from '../../db/schema.ts'
import { CommitUnknown } from '../../db/transaction.ts'
import type { StoredResponse } from '../../domain/idempotency.ts'
import { traceparentIn } from '../../domain/traces.ts'
import { jobPass } from '../jobs.ts'
import { json, problem, toAppError } from '../problem.ts'
import { messaging, withSpan } from '../trace.ts'
import type { Worker } from '../worker.ts'
import { type Command, type Commands, settleByReceipt } from './commands.ts'
import type { GuardParts } from './guard.ts'
import { isUuid } from './schemas.ts'

export const pendingSeconds = 1

export function createRunLater({ db, jobs }: { db: Db; jobs: Jobs }): GuardParts['runLater'] {
  return async (command, receipt, request) => {
    const id = uuidv7()
    const accepted = acceptedResponse(id)
    const row = {
      id,
      userId: request.caller.userId,
      method: request.method,
      path: request.url,
      command,
      requestId: request.id,
    }
    try {
      await withSpan(
        'send commands',
        {
          kind: 'producer',
          parent: command.traceparent,
          attributes: messaging('send', 'commands', id),
        },
        ({ traceparent }) => enqueueCommand(db, jobs, { ...row, traceparent }, receipt, accepted),
      )
      return accepted
    } catch (error) {
      if (error instanceof ReceiptTaken || error instanceof CommitUnknown) {
        return await settleByReceipt(db, receipt, error)
      }
      throw error
    }
  }
}

function acceptedResponse(id: string): StoredResponse {
  const { status, headers, body } = json(202, { command_id: id, status: 'pending' })
  const location = `/api/v1/commands/${id}`
  return { status, headers: { ...headers, location, 'preference-applied': 'respond-async' }, body }
}

/** Jobs claimed at once. They are run together, and so are groups of one transaction (commands.ts). */
const batchMax = 256
const concurrency = 64

/** Runs a batch of jobs of the queue `commands`. */
export function commandPass(parts: { db: Db; jobs: Jobs; commands: Commands; worker: Worker }) {
  const { db, jobs, worker } = parts
  const handle = createCommandHandler(parts)
  return jobPass({
    db,
    jobs,
    worker,
    queue: 'commands',
    batchMax,
    concurrency: worker.concurrency(concurrency),
    decode: decodeCommandJob,
    handle: (job) => {
      const { traceparent } = job.span
      return handle({ ...job, data: { ...job.data, ...(traceparent && { traceparent }) } })
    },
  })
}

/** @throws Error when the data is none of this queue's */
function decodeCommandJob(data: unknown): CommandJob {
  const id = (data as Partial<CommandJob> | null)?.command_id
  if (typeof id !== 'string' || !isUuid(id)) throw new Error('command_id must be a UUID')
  const traceparent = traceparentIn(data)
  return { command_id: id, ...(traceparent && { traceparent }) }
}

/**
 * Runs the command of one job.
 * @throws what kept it from being decided, for the job to run again; after the last attempt the row tells it too
 */
export function createCommandHandler({ db, commands }: { db: Db; commands: Commands }) {
  return async (job: Job<CommandJob>): Promise<void> => {
    const { command_id: id, traceparent } = job.data
    const command = (await readPending(db, id)) as Command | undefined
    if (command === undefined) return
    try {
      await commands.run({ ...command, traceparent }, { kind: 'command', id })
    } catch (thrown) {
      const answer = problem(toAppError(thrown))
      const refused = answer.status < 500
      if (refused || job.attempt >= job.attemptsMax) await closeCommand(db, id, answer)
      if (!refused) throw thrown
    }
  }
}
