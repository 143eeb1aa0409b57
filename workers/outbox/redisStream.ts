// A Redis stream as a place to relay to: `flotilla:events`, an entry an event. Taken is what Redis has answered for; how
// safe that is, is Redis's own setting. Once a minute what every group has acknowledged is trimmed.

import type { Outgoing, Publisher, Verdict } from '../../domain/broker.ts'
import { openRedis } from '../../redis/open.ts'
import { type EventStream, openStream } from '../../redis/stream.ts'
import { keepOpen, type Link } from '../kept.ts'
import { explainRedis, hostsOf, streamKey } from '../streamKey.ts'
import { overSize, type PublisherOptions } from './brokers.ts'

const connectMs = 5000
const trimEveryMs = 60_000

export function openPublisher({ url, log, sizeMax }: PublisherOptions): Publisher {
  const listeners: (() => void)[] = []
  let stream: EventStream | undefined
  let breakUp: ((error: Error) => void) | undefined

  async function live({ up, ended }: Link): Promise<Error> {
    const broken = Promise.withResolvers<Error>()
    const onEnd = () => broken.resolve(ended.reason)
    ended.addEventListener('abort', onEnd, { once: true })
    const name = 'outbox'
    const opened = openRedis({ url, name, commandTimeoutMs: connectMs, onError: broken.resolve })
    try {
      await opened.ready(connectMs)
      const found = openStream(opened.redis, streamKey)
      await found.check()
      stream = found
      breakUp = broken.resolve
      up()
      return await broken.promise
    } finally {
      stream = undefined
      ended.removeEventListener('abort', onEnd)
      // Frozen, it would not answer: nobody waits for its farewell.
      void opened.close().catch(() => {})
    }
  }

  const kept = keepOpen({
    what: `Redis at ${hostsOf(url)}`,
    log,
    explain: (error) => explainRedis(error, url),
    live,
    onChange() {
      for (const listener of listeners) listener()
    },
  })
  const trimming = setInterval(() => {
    stream?.trim().catch((error) => log.warn({ err: error }, 'the stream was not trimmed'))
  }, trimEveryMs).unref()

  async function send(event: Outgoing): Promise<Verdict> {
    const tooLarge = overSize(event, sizeMax)
    if (tooLarge !== undefined) return tooLarge
    const { id, type, subject, body, traceparent } = event
    const trace = traceparent ? ['traceparent', traceparent] : []
    try {
      if (stream === undefined) return { is: 'lost' }
      await stream.append(['id', id, 'type', type, 'subject', subject, ...trace, 'event', body])
      return { is: 'taken' }
    } catch (error) {
      // Out of memory, loading, read only, gone: none is this event's fault.
      breakUp?.(error as Error)
      return { is: 'lost' }
    }
  }

  return {
    name: 'redis',
    away: kept.away,
    onChange: (listener) => listeners.push(listener),
    publish(event, tell) {
      void send(event).then((verdict) => setImmediate(tell, verdict))
    },
    async close() {
      clearInterval(trimming)
      await kept.close()
    },
  }
}
