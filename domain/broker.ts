// What the relay hands events to, what the inbox takes them from, and who listens when there is no broker but the
// database. A broker takes events at least once, those of one subject in the order it is given them; a consumer drops
// what it has seen (`id`).

import type { CloudEvent, EventType } from './events.ts'
import type { QueueName } from './queues.ts'

/**
 * The broker inside the database. `Tx` is the relay's transaction: events and cursor move together, so each arrives
 * exactly once.
 */
export type DatabaseBroker<Tx> = {
  name: string
  /** @throws when one is not taken: all of them are handed over again */
  publish(tx: Tx, events: readonly CloudEvent[]): Promise<void>
}

/** An event as it goes over the network. */
export type Outgoing = {
  /** Of the message: the same each time it is sent. */
  id: string
  type: string
  subject: string
  /** The CloudEvent, as JSON. */
  body: Buffer
  traceparent?: string
}

/** Not this event, whatever the others do. */
export type Refused = {
  is: 'refused'
  why: string
  /** What it is about the event where that is known: its size, say, or that the user may not send events of its type. */
  blames?: 'event' | 'type'
}

export type Verdict =
  /** It is the broker's now, on its disk as far as the broker's settings say so. */
  | { is: 'taken' }
  | Refused
  /** The connection broke before the answer: it may or may not be there. */
  | { is: 'lost' }

/**
 * A broker across the network, as the relay sees it. It keeps its connection by itself, and never throws: what it has
 * in hand when the connection breaks is `lost`.
 */
export type Publisher = {
  name: string
  /** Why it takes nothing now, in words for people. Undefined: it does. */
  away(): string | undefined
  /** Called each time `away` has changed. */
  onChange(listener: () => void): void
  /** `tell` is called once, later. What is handed over one after the other arrives in that order. */
  publish(event: Outgoing, tell: (verdict: Verdict) => void): void
  close(): Promise<void>
}

/** A message as it came. */
export type Delivery = { body: Buffer }

/** A broker across the network, as the inbox sees it. It keeps its connection and its subscription by itself. */
export type Consumer<D extends Delivery = Delivery> = {
  name: string
  /** Why nothing comes now, in words for people. */
  away(): string | undefined
  /** What has come and was not taken yet, the oldest first; waits up to `waitMs` while there is nothing. */
  take(batchMax: number, waitMs: number, signal: AbortSignal): Promise<D[]>
  /** They are done, and are not sent again. Those of a connection that broke are sent again, and nothing is thrown. */
  ack(deliveries: readonly D[]): Promise<void>
  /** Ends the subscription: what is not acknowledged goes to others. */
  close(): Promise<void>
}

/** How long a message is remembered (fixed): longer than anything sends one again. */
export const processedSeconds = 8 * 86_400

/** Quick knowledge of what was processed already. Not the truth: what it does not know may have been, and it may be away. */
export type Seen = {
  /** Those of the ids that were processed for certain. */
  among(ids: readonly string[]): Promise<Set<string>>
  /** After the commit. */
  remember(ids: readonly string[]): Promise<void>
}

/**
 * The subscriptions of our own queues, as a binding of RabbitMQ would say it. Inside the database what no queue asks for
 * is relayed to nobody and makes no job: a sold-out sale has a hundred holds for each order.
 */
export const subscriptions: Readonly<Partial<Record<QueueName, readonly EventType[]>>> = {
  inbox: [
    'order.completed',
    'ticket.generated',
    'quota.invitation',
    'queue.turn_granted',
    'queue.expired',
    'queue.position_update',
    'payment.webhook',
  ],
}
