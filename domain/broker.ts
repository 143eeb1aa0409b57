// What the relay hands events to, and who listens when there is no broker but the database. A broker takes events at
// least once, those of one subject in the order it is given them; a consumer drops what it has seen (`id`).

import type { CloudEvent, EventType } from './events.ts'
import type { QueueName } from './queues.ts'

/**
 * `Scope` is what the broker's own write belongs to. The database's broker takes the relay's transaction: events and
 * cursor move together, so each arrives exactly once. One across the network has none to share and takes `void`.
 */
export type Broker<Scope> = {
  name: string
  /** Resolves when every event is taken for good. @throws when one is not: all of them are handed over again */
  publish(scope: Scope, events: readonly CloudEvent[]): Promise<void>
}

/**
 * The subscriptions inside the database: which queue gets which events, as a binding of RabbitMQ would say it. What no
 * queue asks for is relayed to nobody and makes no job: a sold-out sale has a hundred holds for each order.
 */
export const subscriptions: Readonly<Partial<Record<QueueName, readonly EventType[]>>> = {
  inbox: ['order.completed', 'ticket.generated'],
}
