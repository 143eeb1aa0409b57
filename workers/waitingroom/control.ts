// What operators do to a queue: open it, pause and resume it, set its rate, close it. Postgres is told first and the
// store then, so that a store that loses everything is made anew as it should be. All of it can be repeated.

import type { Db } from '../../db/schema.ts'
import { changeRoom, type RoomChange, readRoom, type WaitingRoom } from '../../db/waitingRooms.ts'
import { AppError } from '../../domain/errors.ts'
import type { QueueState, QueueStore } from '../../domain/waitingroom.ts'
import { drawFromSeed } from './lot.ts'

type Parts = { db: Db; store: QueueStore }

/** Draws the lobby and lets people in; one that is open is resumed. */
export async function openQueue({ db, store }: Parts, matchId: string): Promise<void> {
  const room = await existing(db, matchId)
  if (room.phase === 'open') return await change({ db, store }, matchId, { status: 'active' })
  if (room.status === 'closed') throw closedForGood()
  const sealed = await store.seal(matchId)
  // What was decided by an earlier call, or for a store that is no more, stands.
  if (room.phase === 'lobby') await save(db, matchId, { phase: 'drawing', ...sealed })
  await finishDraw({ db, store }, matchId)
}

/** The part that can be taken up by anybody, should the process die that began it. */
export async function finishDraw({ db, store }: Parts, matchId: string): Promise<void> {
  const sealed = await store.seal(matchId)
  const room = await existing(db, matchId)
  if (room.phase === 'lobby') await save(db, matchId, { phase: 'drawing', ...sealed })
  const { lobbySize, drawnBaseUs } = sealed
  await store.writeDraw(matchId, drawnBaseUs, drawFromSeed(room.seed, lobbySize))
  await save(db, matchId, { phase: 'open', status: 'active' })
  await store.control(matchId, { phase: 'open', status: 'active', seed: room.seed })
}

export async function change(
  { db, store }: Parts,
  matchId: string,
  wanted: RoomChange &
    Partial<Pick<QueueState, 'status' | 'ratePerMinute' | 'capacity' | 'reason'>>,
): Promise<void> {
  const { remainingSectors: _, ...state } = wanted
  await save(db, matchId, wanted)
  await store.control(matchId, state)
}

/** Everybody who waits is told; who may buy already goes on. Repeated, it changes nothing. */
export async function closeQueue(
  { db, store }: Parts,
  matchId: string,
  reason: string,
  remainingSectors: readonly string[],
): Promise<void> {
  const room = await existing(db, matchId)
  const closing = { status: 'closed', reason, remainingSectors } as const
  if (room.status !== 'closed') await changeRoom(db, matchId, closing)
  await store.control(matchId, { status: 'closed', reason: room.reason ?? reason })
}

async function existing(db: Db, matchId: string): Promise<WaitingRoom> {
  const room = await readRoom(db, matchId)
  if (room !== undefined) return room
  throw new AppError('EVENT_NOT_FOUND', `there is no event ${matchId} with a waiting room`)
}

async function save(db: Db, matchId: string, wanted: RoomChange): Promise<void> {
  if ((await changeRoom(db, matchId, wanted)) !== undefined) return
  await existing(db, matchId)
  throw closedForGood()
}

const closedForGood = () => new AppError('QUEUE_CLOSED', 'the queue is closed, and stays so')
