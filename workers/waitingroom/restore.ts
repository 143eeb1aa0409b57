// Places that the store lost, given back. A token of an older epoch is believed for as long as a place is kept, counted
// from the loss, unless its turn has come already; those who are connected need not even ask.

import { readTaken } from '../../db/queueTurns.ts'
import type { Db } from '../../db/schema.ts'
import type { Joined, QueueStore } from '../../domain/waitingroom.ts'
import type { Log } from '../log.ts'
import type { Client } from './client.ts'
import type { Room } from './room.ts'
import type { QueueTicket } from './tokens.ts'

export type Restorer = {
  /** Undefined: the place is not to be had back. */
  restore(room: Room, ticket: QueueTicket): Promise<Joined | undefined>
  /** All that are connected here. */
  restoreAll(room: Room, clients: readonly Client[]): void
}

const together = 500

export function createRestorer(options: {
  db: Db
  store: QueueStore
  log: Log
  persistenceSeconds: number
}): Restorer {
  const { db, store, log, persistenceSeconds } = options

  async function giveBack(room: Room, clients: readonly Client[]): Promise<void> {
    const seats = clients.map((client) => client.seat)
    const taken = await readTaken(db, room.matchId, seats)
    const free = clients.filter((client) => !taken.has(client.seat))
    await Promise.all(
      free.map((client) =>
        store.restore(
          room.matchId,
          client.userId,
          client.seat,
          room.scoreOf(client.seat, client.joinedUs),
        ),
      ),
    )
  }

  return {
    async restore(room, ticket) {
      const { userId, seat, joinedUs, epoch, matchId } = ticket
      const isOpen = Date.now() - room.state.revivedAtMs < persistenceSeconds * 1000
      if (epoch >= room.state.epoch || !isOpen) return undefined
      if ((await readTaken(db, matchId, [seat])).has(seat)) return undefined
      return await store.restore(matchId, userId, seat, room.scoreOf(seat, joinedUs))
    },

    async restoreAll(room, clients) {
      for (const client of clients) room.restoring.add(client.seat)
      log.warn(
        { match_id: room.matchId, places: clients.length },
        'gives back places that were lost',
      )
      for (let i = 0; i < clients.length; i += together) {
        const some = clients.slice(i, i + together)
        // Who is not given a place back is told so, and asks with the token.
        await giveBack(room, some).catch((error) => log.warn({ err: error }, 'places stay lost'))
      }
      // They come as a step of the queue.
      await room.sync().catch(() => {})
      setTimeout(() => {
        for (const client of clients) room.restoring.delete(client.seat)
      }, settleMs).unref()
    },
  }
}

/** Until the leader has told everybody of the places that came back. */
const settleMs = 5000
