// Consumes domain events: drops those it has seen and makes mail jobs of the rest, a batch in one transaction (kind a)
// that also completes the events' own jobs. Nothing is made twice and nothing is lost, whenever it is killed. What is in
// hand at once may be of one aggregate: its mails have no order among them.

import { processOnce, pruneInbox } from '../../db/inbox.ts'
import type { Jobs, NewJob } from '../../db/jobs.ts'
import type { Db, Tx } from '../../db/schema.ts'
import { readRecipients } from '../../db/users.ts'
import type { CloudEvent } from '../../domain/events.ts'
import type { QueueName } from '../../domain/queues.ts'
import { batchPass, type Traced } from '../jobs.ts'
import type { Pass } from '../loop.ts'
import type { Worker } from '../worker.ts'
import { decodeEvent, type Outcome, toJobs, usersOf } from './events.ts'

/** Under which name this consumer remembers what it has seen. */
const consumer = 'notifications'

export type InboxOptions = {
  db: Db
  jobs: Jobs
  batchMax: number
  worker: Pick<Worker, 'log' | 'failed' | 'dying'>
  onProcessed?(outcome: { processed: number; duplicates: number; unreachable: number }): void
}

export function inboxPass(options: InboxOptions): Pass {
  const { db, jobs, batchMax, worker, onProcessed } = options

  async function handle(tx: Tx, batch: Traced<CloudEvent>[]): Promise<() => void> {
    const events = batch.map(({ data, span: { traceparent } }): CloudEvent => {
      return traceparent === undefined ? data : { ...data, traceparent }
    })
    const fresh = await processOnce(tx, consumer, events)
    const users = await readRecipients(tx, usersOf(fresh))
    const outcome = toJobs(fresh, new Map(users.map((user) => [user.id, user])))
    for (const [queue, made] of byQueue(outcome)) await jobs.send(tx, queue, made)
    const duplicates = events.length - fresh.length
    return () => {
      tellUnreachable(outcome)
      const unreachable = outcome.unreachable.length
      onProcessed?.({ processed: fresh.length, duplicates, unreachable })
    }
  }

  function tellUnreachable({ unreachable }: Outcome): void {
    for (const { type, userId, eventId } of unreachable) {
      const told = { type, user_id: userId, event_id: eventId }
      worker.log.warn(told, 'no mail: the user has no address')
    }
  }

  return batchPass({ db, jobs, queue: 'inbox', batchMax, worker, decode: decodeEvent, handle })
}

type Made = Outcome['jobs'][number]

const byQueue = ({ jobs }: Outcome): [QueueName, NewJob[]][] =>
  [...Map.groupBy(jobs, (made: Made) => made.queue)].map(([queue, made]) => [
    queue,
    made.map(({ job }) => job),
  ])

/** Forgets messages that nobody sends again. */
export const prunePass = (db: Db): Pass => {
  return () => pruneInbox(db)
}
