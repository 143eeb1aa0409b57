// RabbitMQ as a place to take events from: a durable queue bound to the types that are wanted, with prefetch, and
// acknowledged by hand. A queue of the name that is there already is used as it is, of whatever kind its operator made
// it; else it is made with the kind its virtual host prefers.

import type { Channel, ChannelModel, ConsumeMessage } from 'amqplib'
import type { Consumer, Delivery } from '../../domain/broker.ts'
import { exchange, keepChannel } from '../amqp.ts'
import { createArrivals } from '../arrivals.ts'
import type { ConsumerOptions } from './brokers.ts'

/** Sooner than the relay gives an event up that nobody listens for. */
const bindEveryMs = 10_000

type RabbitDelivery = Delivery & { channel: Channel; message: ConsumeMessage }

export function openConsumer(options: ConsumerOptions): Consumer<RabbitDelivery> {
  const { url, log, queue, types, prefetch } = options
  const arrivals = createArrivals<RabbitDelivery>()
  let current: Channel | undefined

  async function bind(channel: Channel): Promise<void> {
    await channel.assertExchange(exchange, 'topic', { durable: true })
    for (const type of types) await channel.bindQueue(queue, exchange, type)
  }

  /** Who deletes the exchange takes the bindings with it, and RabbitMQ tells nobody. A failure closes the channel. */
  const binding = setInterval(() => {
    if (current) bind(current).catch(() => {})
  }, bindEveryMs).unref()

  const kept = keepChannel<Channel>({
    url,
    name: 'inbox',
    log,
    async open(connection) {
      if (!(await isThere(connection, queue))) {
        const channel = await connection.createChannel()
        await channel.assertQueue(queue, { durable: true })
        await channel.close()
      }
      return await connection.createChannel()
    },
    async prepare(channel) {
      await bind(channel)
      await channel.prefetch(prefetch)
      await channel.consume(queue, (message) => {
        if (message) arrivals.add({ body: message.content, channel, message })
        else kept.reset(`the queue ${queue} was deleted`)
      })
    },
    onUp(channel) {
      current = channel
    },
    onDown() {
      // They are sent again, on another channel.
      current = undefined
      arrivals.clear()
    },
  })

  return {
    name: 'rabbitmq',
    away: kept.away,
    take: arrivals.take,
    async ack(deliveries) {
      const last = deliveries.at(-1)
      // All before it are done too: they are taken in their order, one batch at a time.
      if (last === undefined || last.channel !== current) return
      try {
        current.ack(last.message, true)
      } catch {
        // The channel is closing. They are sent again, and known.
      }
    },
    async close() {
      clearInterval(binding)
      await kept.close()
    },
  }
}

/** Asked on a channel of its own, which a No closes. */
async function isThere(connection: ChannelModel, queue: string): Promise<boolean> {
  const channel = await connection.createChannel()
  channel.on('error', () => {})
  try {
    await channel.checkQueue(queue)
    await channel.close()
    return true
  } catch (error) {
    if ((error as { code?: number }).code === 404) return false
    throw error
  }
}
