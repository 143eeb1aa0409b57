// A call that names several devices becomes a job a device, in one transaction: from then on each device has its own
// attempts, its own end and its own history, and what was answered for one is never asked again for another's sake. The
// jobs' ids are made of the call's and the device's, so that a call that comes twice is the same jobs.

import { v5 as uuidv5 } from 'uuid'
import type { Jobs, NewJob } from '../../db/jobs.ts'
import type { Db } from '../../db/schema.ts'
import { transaction } from '../../db/transaction.ts'
import { type PushJob, type PushQueue, readTarget } from '../../domain/pushes.ts'
import type { Traced } from '../jobs.ts'

/** Before calls that are not split yet: no more of those are than are needed. */
const splitPriority = 1

export function splitCall({ id: callId, data, span, createdAt }: Traced<PushJob>): NewJob[] {
  return data.fcm_tokens.map((target) => {
    const { kind, value } = readTarget(target)
    const id = uuidv5(`${kind} ${value}`, callId)
    const own: PushJob = {
      ...data,
      job_id: id,
      fcm_tokens: [target],
      part_of: data.job_id,
      queued_at: createdAt.toISOString(),
      ...(span.traceparent !== undefined && { traceparent: span.traceparent }),
    }
    return { id, data: own, priority: splitPriority }
  })
}

/** @throws when the call was taken from this worker */
export async function splitIntoJobs(
  db: Db,
  jobs: Jobs,
  queue: PushQueue,
  job: Traced<PushJob>,
): Promise<void> {
  await transaction(
    db,
    async (tx) => {
      await jobs.send(tx, queue, splitCall(job))
      if ((await jobs.complete(tx, queue, [job])) === 0) {
        throw new Error('it was taken from this worker')
      }
    },
    { isolation: 'read committed' },
  )
}
