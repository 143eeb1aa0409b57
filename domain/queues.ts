// The catalogue of the job table's queues: what each is for, how it retries, how long one job may take.
// Every queue has a dead letter queue, `<name>.dead`, made beside it. db/jobs.ts creates what stands here.

import { type JobSchedule, jobSchedules } from './retries.ts'

export type QueueName = 'commands' | 'inbox' | 'email'

export type Queue = {
  name: QueueName
  /** One line for people: shown by the tools that list queues. */
  purpose: string
  retry: JobSchedule
  /** A job that runs longer than this is taken from its worker, seconds. */
  expireInSeconds: number
}

/** A worker that shows no sign of life for this long loses its jobs (seconds; pg-boss's minimum is 10). */
export const heartbeatSeconds = 10

export const queues: readonly Queue[] = [
  {
    name: 'commands',
    purpose: 'writes asked for with Prefer: respond-async',
    retry: 'background',
    expireInSeconds: 60,
  },
  {
    name: 'inbox',
    purpose: 'domain events relayed inside the database, one job an event',
    retry: 'background',
    expireInSeconds: 60,
  },
  {
    name: 'email',
    purpose: 'transactional mails, one job a mail',
    retry: 'notification',
    expireInSeconds: 120,
  },
]

export const deadLetterOf = (queue: string): string => `${queue}.dead`

/** Attempts in all, the first included. */
export const attemptsMax = (queue: Queue): number => jobSchedules[queue.retry].length + 1
