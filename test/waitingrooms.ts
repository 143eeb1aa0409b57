// What tests of the waiting room begin with: an event that has one, and its room.

import { createEvent } from '../db/events.ts'
import type { Db } from '../db/schema.ts'
import { transaction } from '../db/transaction.ts'
import { changeRoom, ensureRoom } from '../db/waitingRooms.ts'
import type { QueueStore } from '../domain/waitingroom.ts'
import { newSeed } from '../workers/waitingroom/lot.ts'

export async function makeMatch(db: Db, { room = true, capacity = 1000, rate = 600 } = {}) {
  const matchId = await transaction(db, (tx) =>
    createEvent(tx, {
      name: 'Final',
      starts_at: '2030-07-01T18:00:00Z',
      waiting_room: true,
      sections: [{ name: 'A', rows: 10, seats_per_row: 10, price_minor: 5000, currency: 'EUR' }],
    }),
  )
  if (room) await ensureRoom(db, matchId, { ratePerMinute: rate, capacity, seed: newSeed() })
  return matchId
}

/** First come, first served from the start: a lobby that nobody stood in. */
export async function openAtOnce(db: Db, store: QueueStore, matchId: string): Promise<void> {
  const { drawnBaseUs } = await store.seal(matchId)
  await changeRoom(db, matchId, { phase: 'open', status: 'active', drawnBaseUs })
  await store.control(matchId, { phase: 'open', status: 'active' })
}
