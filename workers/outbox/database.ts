// The broker inside the database: an event becomes a job in every queue that subscribed to its type, in the relay's own
// transaction and under the event's id, so that it is there exactly once. Jobs are made and taken in the order of the
// relay, but the job table is a work queue: two workers may have two events of one subject in hand, and a failed one
// runs later than its successor. A consumer that needs the order keeps the last `sequence` of each subject.

import type { Jobs } from '../../db/jobs.ts'
import type { Tx } from '../../db/schema.ts'
import { type DatabaseBroker, subscriptions } from '../../domain/broker.ts'
import type { QueueName } from '../../domain/queues.ts'

export function createDatabaseBroker(jobs: Jobs): DatabaseBroker<Tx> {
  const bindings = Object.entries(subscriptions).map(
    ([queue, types]) => [queue as QueueName, new Set<string>(types)] as const,
  )
  return {
    name: 'database',
    async publish(tx, events) {
      for (const [queue, types] of bindings) {
        const wanted = events.filter((event) => types.has(event.type))
        await jobs.send(
          tx,
          queue,
          wanted.map((event) => ({ id: event.id, data: event })),
        )
      }
    },
  }
}
