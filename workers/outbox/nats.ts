// NATS JetStream as a place to relay to: the stream `flotilla_events`, the event's type as part of its subject, its id as
// Nats-Msg-Id, by which the stream drops what it has within two minutes. Taken is what the stream has acknowledged.

import { JetStreamApiError, type JetStreamClient, jetstream } from '@nats-io/jetstream'
import { headers, type NatsConnection, PermissionViolationError } from '@nats-io/transport-node'
import type { Outgoing, Publisher, Verdict } from '../../domain/broker.ts'
import { keepNats, subjectOf } from '../nats.ts'
import { overSize, type PublisherOptions } from './brokers.ts'

/** Longer than a leader's election. */
const answerMs = 10_000
/** The stream refuses this message for its size (JSStreamMessageExceedsMaximumErr). Anything else is the stream's trouble. */
const messageTooLarge = 10_054

export function openPublisher({ url, log, sizeMax }: PublisherOptions): Publisher {
  const listeners: (() => void)[] = []
  let opened: { connection: NatsConnection; stream: JetStreamClient } | undefined

  const kept = keepNats({
    url,
    name: 'outbox',
    log,
    async onUp(connection) {
      opened = { connection, stream: jetstream(connection, { timeout: answerMs }) }
    },
    onDown() {
      opened = undefined
    },
    onChange() {
      for (const listener of listeners) listener()
    },
  })

  async function send(event: Outgoing): Promise<Verdict> {
    if (opened === undefined) return { is: 'lost' }
    const { connection, stream } = opened
    const max = Math.min(sizeMax, (connection.info?.max_payload ?? sizeMax) - 512)
    const tooLarge = overSize(event, max)
    if (tooLarge !== undefined) return tooLarge
    try {
      const options = { msgID: event.id, headers: headersOf(event) }
      await stream.publish(subjectOf(event.type), event.body, options)
      return { is: 'taken' }
    } catch (error) {
      if (error instanceof JetStreamApiError && error.code === messageTooLarge) {
        return { is: 'refused', why: `the stream says: ${error.message}`, blames: 'event' }
      }
      const forbidden = [error, (error as Error).cause].find(isForbidden)
      if (forbidden) {
        const why = `the user may not do this: ${forbidden.message}`
        return { is: 'refused', why, blames: 'type' }
      }
      // It is full, without a leader, gone, or slow: a new connection looks what is there.
      kept.reset((error as Error).message)
      return { is: 'lost' }
    }
  }

  return {
    name: 'nats',
    away: kept.away,
    onChange: (listener) => listeners.push(listener),
    publish(event, tell) {
      void send(event).then((verdict) => setImmediate(tell, verdict))
    },
    close: kept.close,
  }
}

const isForbidden = (error: unknown): error is PermissionViolationError =>
  error instanceof PermissionViolationError

function headersOf({ traceparent }: Outgoing) {
  const made = headers()
  made.set('Content-Type', 'application/cloudevents+json; charset=UTF-8')
  if (traceparent) made.set('traceparent', traceparent)
  return made
}
