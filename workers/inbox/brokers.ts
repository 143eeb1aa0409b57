// What the consumers of all brokers are opened with.

import type { EventType } from '../../domain/events.ts'
import type { Log } from '../log.ts'

export type ConsumerOptions = {
  url: string
  log: Log
  /** Name of the durable queue or subscription. All who use it share its messages. */
  queue: string
  types: readonly EventType[]
  /** Messages that may be here without being acknowledged. */
  prefetch: number
}
