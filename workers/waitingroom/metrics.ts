// What the waiting room counts: connections, joins, admissions, the queues themselves, how late news are, and who was
// turned away.

import { Counter, Gauge, Histogram, type Registry, register } from 'prom-client'
import type { Room } from './room.ts'

export type Dropped = 'slow' | 'silent' | 'flood' | 'replaced'
export type Refused = 'token' | 'full' | 'rate' | 'closing'

export type WaitingroomMetrics = {
  joined(isNew: boolean): void
  admitted(count: number): void
  /** From a step of the queue to its last word here. */
  told(seconds: number): void
  dropped(why: Dropped): void
  refused(why: Refused): void
}

/** @param leads whether this process leads a match: the queue's own figures are told by its leader alone */
export function createWaitingroomMetrics(sources: {
  count(transport: 'ws' | 'sse'): number
  rooms(): Iterable<Room>
  leads(matchId: string): boolean
  registry?: Registry
}): WaitingroomMetrics {
  const registers = [sources.registry ?? register]
  new Gauge({
    name: 'websocket_connections',
    help: 'Open WebSocket connections of this process',
    registers,
    collect() {
      this.set(sources.count('ws'))
    },
  })
  new Gauge({
    name: 'sse_connections',
    help: 'Open event streams of this process',
    registers,
    collect() {
      this.set(sources.count('sse'))
    },
  })
  const labelNames = ['match_id'] as const
  const each = (gauge: Gauge<'match_id'>, value: (room: Room) => number) => {
    gauge.reset()
    for (const room of sources.rooms()) {
      if (sources.leads(room.matchId)) gauge.set({ match_id: room.matchId }, value(room))
    }
  }
  new Gauge({
    name: 'queue_length',
    help: 'People who wait, told by the leader of the match',
    registers,
    labelNames,
    collect() {
      each(this, (room) => room.line.size)
    },
  })
  new Gauge({
    name: 'queue_open_windows',
    help: 'Purchase windows that are open, told by the leader of the match',
    registers,
    labelNames,
    collect() {
      each(this, (room) => room.windows.size)
    },
  })
  const joins = new Counter({
    name: 'queue_joins_total',
    help: 'Answers to joins',
    registers,
    labelNames: ['as'] as const,
  })
  const admissions = new Counter({
    name: 'queue_admissions_total',
    help: 'People let in',
    registers,
  })
  const latency = new Histogram({
    name: 'queue_update_seconds',
    help: 'From a step of the queue until the last it concerns here was written to',
    registers,
    buckets: [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 1.5, 2.5, 10],
  })
  const drops = new Counter({
    name: 'queue_dropped_total',
    help: 'Connections cut off',
    registers,
    labelNames: ['why'] as const,
  })
  const refusals = new Counter({
    name: 'queue_refused_total',
    help: 'Connections and joins refused',
    registers,
    labelNames: ['why'] as const,
  })
  for (const as of ['new', 'again']) joins.inc({ as }, 0)
  for (const why of ['slow', 'silent', 'flood', 'replaced']) drops.inc({ why }, 0)
  for (const why of ['token', 'full', 'rate', 'closing']) refusals.inc({ why }, 0)
  return {
    joined: (isNew) => joins.inc({ as: isNew ? 'new' : 'again' }),
    admitted: (count) => admissions.inc(count),
    told: (seconds) => latency.observe(seconds),
    dropped: (why) => drops.inc({ why }),
    refused: (why) => refusals.inc({ why }),
  }
}
