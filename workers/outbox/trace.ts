// Brokers that tell their part of a trace: a span for each event that belongs to one, and the event goes on under it.

import type { DatabaseBroker, Outgoing, Publisher } from '../../domain/broker.ts'
import { beginSpan, messaging } from '../trace.ts'

export function tracedBroker<Scope>(broker: DatabaseBroker<Scope>): DatabaseBroker<Scope> {
  return {
    ...broker,
    async publish(scope, events) {
      const spans = events.map((event) => beginSend(broker.name, event))
      try {
        await broker.publish(
          scope,
          events.map((event, i) => {
            const traceparent = spans[i]?.traceparent
            return traceparent === undefined ? event : { ...event, traceparent }
          }),
        )
        for (const span of spans) span?.end()
      } catch (error) {
        for (const span of spans) span?.end({ error })
        throw error
      }
    },
  }
}

/** The same over the network: the span ends with the broker's word. */
export function tracedPublisher(publisher: Publisher): Publisher {
  return {
    ...publisher,
    publish(event, tell) {
      const span = beginSend(publisher.name, event)
      if (span === undefined) return publisher.publish(event, tell)
      publisher.publish(under(event, span.traceparent), (verdict) => {
        const { is } = verdict
        span.end(is === 'taken' ? undefined : { type: is })
        tell(verdict)
      })
    },
  }
}

/** Its body is the CloudEvent, which says it too. */
function under(event: Outgoing, traceparent: string | undefined): Outgoing {
  if (traceparent === undefined || traceparent === event.traceparent) return event
  const body = Buffer.from(JSON.stringify({ ...JSON.parse(event.body.toString()), traceparent }))
  return { ...event, body, traceparent }
}

type Sent = { id: string; type: string; traceparent?: string }

/** What nobody asked for, such as an expiry, begins no trace here. */
function beginSend(system: string, { id, type, traceparent }: Sent) {
  if (traceparent === undefined) return undefined
  const attributes = messaging('send', type, id, system)
  return beginSpan(`send ${type}`, { kind: 'producer', parent: traceparent, attributes })
}
