// RabbitMQ as a place to relay to: the durable topic exchange `flotilla.events`, events persistent and mandatory under
// their type as routing key, with publisher confirms. An event is taken when the broker has confirmed it and somebody
// had a queue for it; what nobody listens for is refused, but for the types that may go unheard.

import type { ConfirmChannel } from 'amqplib'
import type { Outgoing, Publisher, Verdict } from '../../domain/broker.ts'
import { exchange, keepChannel } from '../amqp.ts'
import { overSize, type PublisherOptions } from './brokers.ts'
import { unheard } from './metrics.ts'

/** A confirm that is later than this does not come: the connection is given up. */
const confirmMs = 30_000

/** What the broker closes the channel over: ACCESS_REFUSED is said of a routing key or of all, PRECONDITION_FAILED of one. */
const blamed = new Map<number | undefined, 'event' | 'type'>([
  [403, 'type'],
  [406, 'event'],
])

type Sent = {
  event: Outgoing
  tell(verdict: Verdict): void
  at: number
  returned?: string
}

export function openPublisher(options: PublisherOptions): Publisher {
  const { url, log, mayGoUnheard } = options
  // The oldest first; by id the last of them, as a returned message names nothing else.
  const sent = new Set<Sent>()
  const byId = new Map<string, Sent>()
  const listeners: (() => void)[] = []
  const warned = new Set<string>()
  let channel: ConfirmChannel | undefined
  let sizeMax = options.sizeMax

  const kept = keepChannel<ConfirmChannel>({
    url,
    name: 'outbox',
    log,
    open: (connection) => connection.createConfirmChannel(),
    async prepare(channel) {
      await channel.assertExchange(exchange, 'topic', { durable: true })
      channel.on('return', ({ fields, properties }) => {
        const { replyText, routingKey } = fields as { replyText?: string; routingKey: string }
        const one = byId.get(properties.messageId)
        if (one) one.returned = `nobody listens for ${routingKey} (${replyText})`
      })
    },
    onUp(opened) {
      channel = opened
    },
    onDown(error) {
      channel = undefined
      const size = /larger than configured max size (\d+)/.exec(error.message)?.[1]
      if (size !== undefined) sizeMax = Math.min(sizeMax, Number(size))
      // The broker closes the channel over what it will not have: if there was but one event on it, it is that.
      const blames = sent.size === 1 ? blamed.get(error.code) : undefined
      const verdict: Verdict = blames
        ? { is: 'refused', why: error.message, blames }
        : { is: 'lost' }
      const all = [...sent]
      sent.clear()
      byId.clear()
      for (const { tell } of all) tell(verdict)
    },
    onChange: () => listeners.forEach((listener) => void listener()),
  })

  /** Blocked, it takes its time. */
  const watch = setInterval(() => {
    const [oldest] = sent
    if (oldest && kept.away() === undefined && performance.now() - oldest.at > confirmMs) {
      kept.reset(`no confirm within ${confirmMs / 1000} s`)
    }
  }, 1000).unref()

  function forget(one: Sent): void {
    sent.delete(one)
    if (byId.get(one.event.id) === one) byId.delete(one.event.id)
  }

  function confirmed(one: Sent, error: Error | null): void {
    // A channel that closes fails what is unconfirmed: onDown, which is next, knows why.
    if (!sent.has(one) || (error && error.message !== 'message nacked')) return
    forget(one)
    one.tell(verdictOn(one, error !== null))
  }

  function verdictOn({ event, returned }: Sent, isNacked: boolean): Verdict {
    if (isNacked) return { is: 'refused', why: 'RabbitMQ could not store it (nack)' }
    if (returned === undefined) return { is: 'taken' }
    const { type } = event
    if (!mayGoUnheard(type)) return { is: 'refused', why: returned }
    unheard.inc({ type })
    if (!warned.has(type)) log.warn({ type }, 'nobody listens for events of this type')
    warned.add(type)
    return { is: 'taken' }
  }

  return {
    name: 'rabbitmq',
    away: kept.away,
    onChange: (listener) => listeners.push(listener),
    publish(event, tell) {
      const later = (verdict: Verdict): void => void setImmediate(tell, verdict)
      const tooLarge = overSize(event, sizeMax)
      if (channel === undefined) later({ is: 'lost' })
      else if (tooLarge) later(tooLarge)
      else {
        const one: Sent = { event, tell, at: performance.now() }
        sent.add(one)
        byId.set(event.id, one)
        try {
          const { type, body } = event
          channel.publish(exchange, type, body, propertiesOf(event), (e) => confirmed(one, e))
        } catch (error) {
          // A closed channel throws, and so does what cannot be encoded.
          forget(one)
          const { name, message } = error as Error
          const isClosed = name === 'IllegalOperationError'
          later(isClosed ? { is: 'lost' } : { is: 'refused', why: message })
        }
      }
    },
    async close() {
      clearInterval(watch)
      await kept.close()
    },
  }
}

const propertiesOf = ({ id, type, traceparent }: Outgoing) => ({
  mandatory: true,
  persistent: true,
  messageId: id,
  type,
  appId: 'flotilla',
  contentType: 'application/cloudevents+json; charset=UTF-8',
  ...(traceparent ? { headers: { traceparent } } : {}),
})
