// What the publishers of all brokers are opened with, and the rules they share: how large an event may be, and which types
// may be relayed to nobody.

import type { Outgoing, Refused } from '../../domain/broker.ts'
import type { Log } from '../log.ts'

export type PublisherOptions = {
  url: string
  log: Log
  /** Bytes of one event at most; a broker may say less. */
  sizeMax: number
  /** Whether an event that nobody listens for counts as relayed. */
  mayGoUnheard(type: string): boolean
}

/** Undefined: it is small enough. */
export function overSize({ body }: Outgoing, sizeMax: number): Refused | undefined {
  if (body.length <= sizeMax) return undefined
  const why = `it has ${body.length} bytes, and the broker takes ${sizeMax} at most`
  return { is: 'refused', why, blames: 'event' }
}

/** `patterns`: types, where `*` at the end stands for whatever follows: `reservation.*`. */
export function matcher(patterns: readonly string[]): (type: string) => boolean {
  return (type) =>
    patterns.some((pattern) =>
      pattern.endsWith('*') ? type.startsWith(pattern.slice(0, -1)) : type === pattern,
    )
}
