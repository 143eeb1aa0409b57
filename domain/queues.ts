// The catalogue of the job table's queues: what each is for, how it retries, how long one job may take, what is kept.
// Every queue has a dead letter queue, `<name>.dead`, made beside it. db/jobTable.ts creates what stands here.

import { type JobSchedule, jobSchedules } from './retries.ts'

export type QueueName =
  | 'commands'
  | 'outbox'
  | 'inbox'
  | 'email'
  | 'push'
  | 'push:priority'
  | 'alert'
  | 'search'
  | 'embed'
  | 'similar'
  | 'payments'

export type Queue = {
  name: QueueName
  /** One line for people: shown by the tools that list queues. */
  purpose: string
  retry: JobSchedule
  /** A job that runs longer than this is taken from its worker, seconds. */
  expireInSeconds: number
  /** Whether finished jobs can be looked at for a day. A queue that keeps none is faster by half. */
  keepFinished: boolean
  /** In a table of its own, so that what is hot does not bloat the others. Only when the queue is first made. */
  partition?: boolean
  /** Jobs active at once over all workers; left out: no limit. */
  activeMax?: number
  /** Jobs begun a second over all workers; left out: no limit. */
  perSecond?: number
}

/** A worker that shows no sign of life for this long loses its jobs (seconds; pg-boss's minimum is 10). */
export const heartbeatSeconds = 10

/** A job that was in hand when its worker died, so often, is dead: it is taken for what kills them. */
export const deathsMax = 3

export const queues: readonly Queue[] = [
  {
    name: 'commands',
    purpose: 'writes asked for with Prefer: respond-async',
    retry: 'background',
    expireInSeconds: 60,
    keepFinished: true,
  },
  {
    name: 'outbox',
    purpose: 'domain events that the broker refused, sent once more by `jobs failed:retry`',
    retry: 'background',
    expireInSeconds: 60,
    keepFinished: true,
  },
  {
    name: 'inbox',
    purpose: 'domain events relayed inside the database, one job an event',
    retry: 'background',
    expireInSeconds: 60,
    // inbox_processed remembers what was handled, for longer and in fewer bytes.
    keepFinished: false,
    partition: true,
  },
  {
    name: 'email',
    purpose: 'transactional mails, one job a mail',
    retry: 'notification',
    expireInSeconds: 120,
    // What went out is what people ask for; and a mail that is asked for once more finds its job by its id.
    keepFinished: true,
  },
  {
    name: 'push',
    purpose: 'push messages, one job a call; the worker makes one job a device of it',
    retry: 'notification',
    expireInSeconds: 120,
    // As with mails: what was sent once under an id is not sent again.
    keepFinished: true,
    partition: true,
  },
  {
    name: 'push:priority',
    purpose: 'push messages that overtake those of the queue push',
    retry: 'notification',
    expireInSeconds: 120,
    keepFinished: true,
  },
  {
    name: 'alert',
    purpose: 'alerts for people: Slack and e-mail',
    retry: 'notification',
    expireInSeconds: 60,
    keepFinished: true,
  },
  {
    name: 'search',
    purpose: 'IndexItem: what changed about an item, to the search index',
    retry: 'background',
    expireInSeconds: 120,
    keepFinished: false,
  },
  {
    name: 'embed',
    purpose: 'EmbedItem: an item, to the embedding vendor',
    retry: 'background',
    // A call may take a minute, and waits for its turn before.
    expireInSeconds: 180,
    keepFinished: true,
  },
  {
    name: 'similar',
    purpose: 'RecomputeSimilar: whom an item is like, and who is like it',
    retry: 'background',
    expireInSeconds: 120,
    keepFinished: false,
  },
  {
    name: 'payments',
    purpose:
      'payments that came or failed: each confirms or cancels its reservation, or is due back',
    retry: 'background',
    expireInSeconds: 120,
    keepFinished: true,
  },
]

export const deadLetterOf = (queue: string): string => `${queue}.dead`

/** Every queue of the job table, the dead letter queues too. */
export const allQueueNames: readonly string[] = queues.flatMap(({ name }) => [
  name,
  deadLetterOf(name),
])

/** Attempts in all, the first included. */
export const attemptsMax = (queue: Queue): number => jobSchedules[queue.retry].length + 1

/** The catalogue's entry. Undefined: a queue that somebody else made. */
export const queueOf = (name: string): Queue | undefined =>
  queues.find((queue) => queue.name === name)
