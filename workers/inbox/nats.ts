// NATS JetStream as a place to take events from: a durable pull consumer for each type, as older servers filter by one
// subject only, acknowledged one by one. What is not acknowledged within half a minute is sent again.

import { AckPolicy, DeliverPolicy, type JsMsg, jetstream } from '@nats-io/jetstream'
import type { NatsConnection } from '@nats-io/transport-node'
import type { Consumer, Delivery } from '../../domain/broker.ts'
import { createArrivals } from '../arrivals.ts'
import { keepNats, stream, subjectOf } from '../nats.ts'
import type { ConsumerOptions } from './brokers.ts'

type NatsDelivery = Delivery & { message: JsMsg; of: NatsConnection }

/** Longer than a batch takes. */
const ackSeconds = 30
/** Over all inboxes. */
const pendingMax = 50_000

export function openConsumer(options: ConsumerOptions): Consumer<NatsDelivery> {
  const { url, log, queue, types, prefetch } = options
  const arrivals = createArrivals<NatsDelivery>()
  let current: NatsConnection | undefined

  const kept = keepNats({
    url,
    name: 'inbox',
    log,
    async onUp(connection, manager) {
      for (const type of types) {
        await manager.consumers.add(stream, {
          durable_name: nameOf(queue, type),
          filter_subject: subjectOf(type),
          ack_policy: AckPolicy.Explicit,
          deliver_policy: DeliverPolicy.All,
          ack_wait: ackSeconds * 1e9,
          max_ack_pending: pendingMax,
          max_deliver: -1,
        })
      }
      current = connection
      const share = Math.max(1, Math.ceil(prefetch / types.length))
      for (const type of types) {
        listen(connection, nameOf(queue, type), share).catch((error: Error) => {
          if (current === connection) kept.reset(error.message)
        })
      }
    },
    onDown() {
      current = undefined
      arrivals.clear()
    },
  })

  async function listen(connection: NatsConnection, name: string, share: number): Promise<void> {
    const consumer = await jetstream(connection).consumers.get(stream, name)
    const messages = await consumer.consume({
      max_messages: share,
      abort_on_missing_resource: true,
    })
    for await (const message of messages) {
      arrivals.add({ body: Buffer.from(message.data), message, of: connection })
      // While nobody takes them the server keeps them.
      await arrivals.below(prefetch)
    }
    throw new Error(`the consumer ${name} is gone`)
  }

  return {
    name: 'nats',
    away: kept.away,
    take: arrivals.take,
    async ack(deliveries) {
      for (const { message, of } of deliveries) if (of === current) message.ack()
    },
    close: kept.close,
  }
}

/** Dots part the words of subjects. */
const nameOf = (queue: string, type: string): string =>
  `${queue}-${type}`.replaceAll(/[^A-Za-z0-9_-]/g, '_')
