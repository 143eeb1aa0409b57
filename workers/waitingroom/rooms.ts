// The rooms this process knows: found by their match, made where an event asks for one, kept up with the store as it
// calls out changes and, as a call may be missed, once a second, and forgotten when nobody has use for them.

import type { Db } from '../../db/schema.ts'
import { ensureRoom, readLiveRooms } from '../../db/waitingRooms.ts'
import { AppError } from '../../domain/errors.ts'
import type { QueueStore } from '../../domain/waitingroom.ts'
import { newSeed } from './lot.ts'
import { Room, type RoomListener } from './room.ts'

export type Rooms = {
  /** Known already: without a look anywhere. */
  peek(matchId: string): Room | undefined
  /** @throws AppError EVENT_NOT_FOUND: no such event, or one without a waiting room */
  get(matchId: string): Promise<Room>
  all(): Iterable<Room>
  /** Takes in rooms that others opened, and lets go of those that are over. */
  refresh(): Promise<void>
  /** For what may have been missed. */
  syncAll(): Promise<void>
}

export type RoomsOptions = {
  db: Db
  store: QueueStore
  listener: RoomListener
  ratePerMinute: number
  capacity: number
}

const unusedMs = 600_000

export function createRooms(options: RoomsOptions): Rooms {
  const { db, store, listener, ratePerMinute, capacity } = options
  const rooms = new Map<string, Room>()
  const opening = new Map<string, Promise<Room>>()

  async function open(matchId: string): Promise<Room> {
    const made = { ratePerMinute, capacity, seed: newSeed() }
    if ((await ensureRoom(db, matchId, made)) === undefined) {
      throw new AppError('EVENT_NOT_FOUND', `there is no event ${matchId} with a waiting room`)
    }
    const room = new Room(matchId, await store.snapshot(matchId), store, listener)
    rooms.set(matchId, room)
    return room
  }

  function get(matchId: string): Promise<Room> {
    const known = rooms.get(matchId)
    if (known !== undefined) {
      known.usedAt = performance.now()
      return Promise.resolve(known)
    }
    const begun = opening.get(matchId) ?? open(matchId).finally(() => opening.delete(matchId))
    opening.set(matchId, begun)
    return begun
  }

  /** Nobody waits for it: what fails here, the store or Postgres, fails again within a second, in syncAll, and is told. */
  const sync = (room: Room) => {
    room.sync().catch(() => {})
  }

  store.onChange((matchId) => {
    if (matchId === undefined) for (const room of rooms.values()) sync(room)
    else {
      const room = rooms.get(matchId)
      if (room !== undefined) sync(room)
    }
  })

  return {
    peek: (matchId) => rooms.get(matchId),
    get,
    all: () => rooms.values(),

    async refresh() {
      const live = new Set(await readLiveRooms(db))
      await Promise.all([...live].map(get))
      const since = performance.now() - unusedMs
      for (const room of rooms.values()) {
        if (live.has(room.matchId) || room.clients.size > 0 || room.usedAt > since) continue
        rooms.delete(room.matchId)
      }
    },

    async syncAll() {
      await Promise.all([...rooms.values()].map((room) => room.sync()))
    },
  }
}
