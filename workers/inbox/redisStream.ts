// A Redis stream as a place to take events from: a consumer group, in which each inbox is a consumer. What an inbox had
// in hand when it died is claimed by another half a minute later. Types that nobody asked for are acknowledged at once.

import { randomUUID } from 'node:crypto'
import { hostname } from 'node:os'
import type { Consumer, Delivery } from '../../domain/broker.ts'
import { openRedis } from '../../redis/open.ts'
import { type EventStream, openStream, type StreamEntry } from '../../redis/stream.ts'
import { keepOpen, type Link } from '../kept.ts'
import { explainRedis, hostsOf, streamKey } from '../streamKey.ts'
import type { ConsumerOptions } from './brokers.ts'

type StreamDelivery = Delivery & { id: string }

const connectMs = 5000
/** Longer than a batch takes. */
const claimIdleMs = 30_000
const claimEveryMs = 10_000
/** An inbox that lives reads every second. */
const sweptIdleMs = 86_400_000

export function openConsumer(options: ConsumerOptions): Consumer<StreamDelivery> {
  const { url, log, queue: group, types } = options
  const self = `${hostname()}:${process.pid}:${randomUUID().slice(0, 8)}`
  const wanted = new Set<string>(types)
  let stream: EventStream | undefined
  let breakUp: ((error: Error) => void) | undefined
  let claimAt = 0

  async function live({ up, ended }: Link): Promise<Error> {
    const broken = Promise.withResolvers<Error>()
    const onEnd = () => broken.resolve(ended.reason)
    ended.addEventListener('abort', onEnd, { once: true })
    const name = 'inbox'
    const opened = openRedis({ url, name, commandTimeoutMs: connectMs, onError: broken.resolve })
    try {
      await opened.ready(connectMs)
      const found = openStream(opened.redis, streamKey)
      await found.check()
      await found.ensureGroup(group)
      await found.sweep(group, sweptIdleMs)
      stream = found
      breakUp = broken.resolve
      claimAt = 0
      up()
      const error = await broken.promise
      if (ended.aborted) await found.leave(group, self).catch(() => {})
      return error
    } finally {
      stream = undefined
      ended.removeEventListener('abort', onEnd)
      // Frozen, it would not answer: nobody waits for its farewell.
      void opened.close().catch(() => {})
    }
  }

  const explain = (error: Error) => explainRedis(error, url)
  const kept = keepOpen({ what: `Redis at ${hostsOf(url)}`, log, explain, live })

  async function next(from: EventStream, max: number, waitMs: number): Promise<StreamEntry[]> {
    if (performance.now() > claimAt) {
      const claimed = await from.claim(group, self, max, claimIdleMs)
      if (claimed.length > 0) return claimed
      claimAt = performance.now() + claimEveryMs
    }
    return await from.read(group, self, max, waitMs)
  }

  return {
    name: 'redis',
    away: kept.away,
    async take(max, waitMs, signal) {
      if (stream === undefined || signal.aborted) return []
      try {
        const entries = await next(stream, max, waitMs)
        const isWanted = ({ fields }: StreamEntry) => wanted.has(String(fields.get('type')))
        const others = entries.filter((entry) => !isWanted(entry))
        await stream?.ack(
          group,
          others.map(({ id }) => id),
        )
        return entries.filter(isWanted).map(({ id, fields }) => ({
          id,
          body: fields.get('event') ?? Buffer.alloc(0),
        }))
      } catch (error) {
        breakUp?.(error as Error)
        return []
      }
    },
    async ack(deliveries) {
      try {
        await stream?.ack(
          group,
          deliveries.map(({ id }) => id),
        )
      } catch (error) {
        // They come again, and are known.
        breakUp?.(error as Error)
      }
    },
    close: kept.close,
  }
}
