// The relay: takes the next events of a few free slots of the outbox, hands them to the broker and moves the cursors,
// in one transaction (kind a). Any number of relays may run; each slot, and so each aggregate, is read by one at a time.
// A second, slow pass deletes what was relayed long ago.

import { eventsWait, pruneOutbox, relayEvents } from '../../db/outbox.ts'
import type { Db, Tx } from '../../db/schema.ts'
import type { DatabaseBroker } from '../../domain/broker.ts'
import type { Pass } from '../loop.ts'
import { nextLookMs } from './horizon.ts'

export type RelayOptions = {
  db: Db
  broker: DatabaseBroker<Tx>
  batchMax: number
  onRelayed?(count: number): void
}

export function relayPass({ db, broker, batchMax, onRelayed }: RelayOptions): Pass {
  let waitMs = 0
  return async (_signal, handledMax) => {
    const publish = (tx: Tx, events: Parameters<typeof broker.publish>[1]) =>
      broker.publish(tx, events)
    const relayed = await relayEvents(db, publish, Math.min(batchMax, handledMax))
    onRelayed?.(relayed)
    const waits = relayed === 0 && (await eventsWait(db))
    waitMs = nextLookMs(waits, waitMs)
    return waits ? { waitMs } : relayed
  }
}

/** Relayed events are kept three days, for people to look at. */
export const prunePass = (db: Db): Pass => {
  return () => pruneOutbox(db)
}
