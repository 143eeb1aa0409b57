// Where the queues are kept: on Redis when REDIS_URL is set, for any number of processes, else on Postgres, for this one.
// The Redis client is loaded only where it is used: it costs 25 MB.

import { readTaken, readUnfreed, recordTurns } from '../../db/queueTurns.ts'
import type { Db } from '../../db/schema.ts'
import { openPostgresWaitingroom } from '../../db/waitingPlaces.ts'
import { reviveRoom, type WaitingRoom } from '../../db/waitingRooms.ts'
import type { QueueState, QueueStore } from '../../domain/waitingroom.ts'
import type { Log } from '../log.ts'
import { commitmentOf } from './lot.ts'

export type StoreOptions = {
  db: Db
  redisUrl: string | undefined
  log: Log
  windowSeconds: number
  persistenceSeconds: number
  /** For tests: how long a lead lasts without its leader, ms. */
  leadMs?: number
}

/** Seats given in the second or two since last_seat was noted, and many more: they are numbers only. */
const lostSeatsMax = 200_000
const answerMs = 2000
const readyMs = 500

/** What Postgres knows of a queue. */
export const stateOf = (room: WaitingRoom): QueueState => ({
  epoch: room.epoch,
  revivedAtMs: 0,
  phase: room.phase,
  status: room.status,
  ratePerMinute: room.ratePerMinute,
  capacity: room.capacity,
  pacePerMinute: 0,
  lobbySize: room.lobbySize,
  drawnBaseUs: room.drawnBaseUs,
  commitment: commitmentOf(room.seed),
  seed: room.phase === 'open' ? room.seed : undefined,
  reason: room.reason,
})

export async function openStore(options: StoreOptions): Promise<QueueStore> {
  const { db, redisUrl, log, windowSeconds, persistenceSeconds, leadMs } = options
  if (redisUrl === undefined) {
    return openPostgresWaitingroom({ db, windowSeconds, toState: stateOf })
  }
  const { openRedis } = await import('../../redis/open.ts')
  const { openRedisWaitingroom } = await import('../../redis/waitingroom.ts')
  const onError = (error: Error) => log.debug({ err: error }, 'no connection to Redis')
  const open = () =>
    openRedis({ url: redisUrl, name: 'waitingroom', commandTimeoutMs: answerMs, onError })
  const commands = open()
  const listener = open()
  // Not there yet: whoever asks is told, and asks again.
  await commands.ready(readyMs).catch(() => {})
  return openRedisWaitingroom({
    redis: commands.redis,
    subscriber: listener.redis,
    persistenceSeconds,
    windowSeconds,
    ...(leadMs !== undefined && { leadMs }),
    taken: (matchId, seats) => readTaken(db, matchId, seats),
    record: (matchId, turns) => recordTurns(db, matchId, turns, windowSeconds),
    async revive(matchId) {
      const room = await reviveRoom(db, matchId)
      if (room === undefined) return undefined
      // A room is made in epoch 1, and comes to Redis for the first time in epoch 2.
      const isFirst = room.epoch === 2
      log.info(
        { match_id: matchId, epoch: room.epoch },
        isFirst
          ? 'a queue begins'
          : 'Redis lost a queue, or has an older copy of it: it is made anew',
      )
      return {
        state: { ...stateOf(room), revivedAtMs: isFirst ? 0 : Date.now() },
        lastSeat: room.lastSeat + (isFirst ? 0 : lostSeatsMax),
        windows: await readUnfreed(db, matchId),
      }
    },
  })
}
