// A broker that tells its part of a trace: a span for each event that belongs to one, and the event goes on under it.

import type { Broker } from '../../domain/broker.ts'
import type { CloudEvent } from '../../domain/events.ts'
import { beginSpan, messaging } from '../trace.ts'

export function tracedBroker<Scope>(broker: Broker<Scope>): Broker<Scope> {
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

/** What nobody asked for, such as an expiry, begins no trace here. */
function beginSend(system: string, { id, type, traceparent }: CloudEvent) {
  if (traceparent === undefined) return undefined
  const attributes = messaging('send', type, id, system)
  return beginSpan(`send ${type}`, { kind: 'producer', parent: traceparent, attributes })
}
