// Consumes domain events: drops those it has seen and makes jobs of the rest, for mails, pushes and payments, a batch in one
// transaction (kind a) that also completes the events' own jobs. Nothing is made twice and nothing is lost, whenever it is
// killed. What is in hand at once may be of one aggregate: its mails have no order among them.

import { processOnce, pruneInbox } from '../../db/inbox.ts'
import type { Jobs, NewJob } from '../../db/jobs.ts'
import type { Db, Tx } from '../../db/schema.ts'
import { readDevices, readRecipients } from '../../db/users.ts'
import type { CloudEvent } from '../../domain/events.ts'
import type { QueueName } from '../../domain/queues.ts'
import { decodeEvent } from '../../domain/readEvent.ts'
import { batchPass, type Traced } from '../jobs.ts'
import type { Pass } from '../loop.ts'
import type { Span } from '../trace.ts'
import type { Worker } from '../worker.ts'
import { type Outcome, toJobs, usersOf } from './events.ts'

/** Under which name this consumer remembers what it has seen. */
const consumer = 'notifications'

export type Counts = { processed: number; duplicates: number; unreachable: number }

export type HandlerOptions = {
  jobs: Jobs
  worker: Pick<Worker, 'log'>
  onProcessed?(counts: Counts): void
}

/** Does what events ask for, once, inside the caller's transaction; what it gives back is called after the commit. */
export type Handler = (tx: Tx, events: readonly CloudEvent[]) => Promise<() => void>

export function createHandler({ jobs, worker, onProcessed }: HandlerOptions): Handler {
  function tellUnreachable({ unreachable }: Outcome): void {
    for (const { type, userId, eventId } of unreachable) {
      const told = { type, user_id: userId, event_id: eventId }
      worker.log.warn(told, 'no mail: the user has no address')
    }
  }

  return async (tx, events) => {
    const fresh = await processOnce(tx, consumer, events)
    const ids = usersOf(fresh)
    const users = await readRecipients(tx, ids)
    const devices = Map.groupBy(await readDevices(tx, ids), ({ user_id }) => user_id)
    const outcome = toJobs(fresh, new Map(users.map((user) => [user.id, user])), devices)
    for (const [queue, made] of byQueue(outcome)) await jobs.send(tx, queue, made)
    const duplicates = events.length - fresh.length
    return () => {
      tellUnreachable(outcome)
      const unreachable = outcome.unreachable.length
      onProcessed?.({ processed: fresh.length, duplicates, unreachable })
    }
  }
}

export type InboxOptions = HandlerOptions & {
  db: Db
  batchMax: number
  worker: Pick<Worker, 'log' | 'failed' | 'dying'>
}

/** Over the queue `inbox`: events relayed inside the database, and those that failed when a broker brought them. */
export function inboxPass(options: InboxOptions): Pass {
  const { db, jobs, batchMax, worker } = options
  const take = createHandler(options)
  const handle = (tx: Tx, batch: Traced<CloudEvent>[]) =>
    take(
      tx,
      batch.map(({ data, span }) => underSpan(data, span)),
    )
  return batchPass({ db, jobs, queue: 'inbox', batchMax, worker, decode: decodeEvent, handle })
}

/** What comes of the event belongs to this part of its trace. */
export const underSpan = (event: CloudEvent, { traceparent }: Span): CloudEvent =>
  traceparent === undefined ? event : { ...event, traceparent }

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
