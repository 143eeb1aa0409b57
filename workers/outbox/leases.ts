// The slots that a relay leases: its share of them, renewed in time, given up to a relay that has fewer. What was taken
// of a slot is settled before it goes, and what is on its way is waited for; nothing of it is read or sent any more.

import { readAsideSubjects } from '../../db/aside.ts'
import { giveUpSlots, holdSlots, leaseSeconds, leaveRelays } from '../../db/relay.ts'
import type { Db } from '../../db/schema.ts'
import type { Slot, Slots } from './slots.ts'

/** A third of a lease: two renewals may fail. */
const renewMs = (leaseSeconds * 1000) / 3
/** Before a lease ends nothing more is sent: what is on its way arrives within this. */
const marginMs = 3000

export type LeasesOptions = { db: Db; relay: string; slots: Slots }

export function createLeases({ db, relay, slots }: LeasesOptions) {
  const { held } = slots
  // By this process's own clock.
  let [renewedAt, renewAt] = [Number.NEGATIVE_INFINITY, 0]

  const staying = (): Slot[] => [...held.values()].filter(({ leaving }) => !leaving)

  /** To be given up, of which nothing is on its way and nothing is left to settle. */
  const given = (): Slot[] =>
    [...held.values()].filter(
      ({ leaving, entries }) =>
        leaving && (entries[0]?.is ?? 'waiting') === 'waiting' && !hasSent(entries),
    )

  return {
    staying,
    isDue: (): boolean => performance.now() >= renewAt,
    /** Whether what is sent now arrives before another relay may hold the slots. */
    areSure: (): boolean => performance.now() <= renewedAt + leaseSeconds * 1000 - marginMs,
    isGiving: (): boolean => given().length > 0,

    /** @returns whether there are slots that were not ours before */
    async renew(): Promise<boolean> {
      const askedAt = performance.now()
      renewAt = askedAt + renewMs
      const { leases, share } = await holdSlots(db, relay)
      renewedAt = askedAt
      const numbers = new Map(leases.map(({ slot, leaseNo }) => [slot, leaseNo]))
      for (const slot of held.values()) if (numbers.get(slot.no) !== slot.leaseNo) slots.drop(slot)
      const taken = leases.filter(({ slot }) => !held.has(slot))
      if (taken.length > 0) {
        const aside = await readAsideSubjects(
          db,
          taken.map(({ slot }) => slot),
        )
        for (const lease of taken) slots.hold(lease)
        for (const { slot, subject } of aside) held.get(slot)?.aside.add(subject)
      }
      // Those with the least to do go first.
      const mine = staying().sort((a, b) => a.entries.length - b.entries.length)
      for (const slot of mine.slice(0, Math.max(0, mine.length - share))) slot.leaving = true
      return taken.length > 0
    },

    async giveUp(): Promise<void> {
      const going = given()
      for (const slot of going) slots.drop(slot)
      await giveUpSlots(
        db,
        relay,
        going.map(({ no }) => no),
      )
    },

    async leave(): Promise<void> {
      for (const slot of held.values()) slots.drop(slot)
      renewAt = 0
      await leaveRelays(db, relay)
    },
  }
}

const hasSent = (entries: Slot['entries']): boolean => entries.some(({ is }) => is === 'sent')
