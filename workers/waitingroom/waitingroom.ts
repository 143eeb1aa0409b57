// Puts the parts of the waiting room together, so that a test can do so without a process: store, rooms, crowd, leader,
// sockets, REST. Listens to nothing by itself.

import { randomUUID } from 'node:crypto'
import type { FastifyInstance } from 'fastify'
import type { Registry } from 'prom-client'
import type { Db } from '../../db/schema.ts'
import type { QueueStore } from '../../domain/waitingroom.ts'
import { openAuth } from '../auth.ts'
import type { Log } from '../log.ts'
import type { Loop } from '../loop.ts'
import { checkoutUrl } from './answers.ts'
import type { WaitingroomConfig } from './config.ts'
import { type Crowd, createCrowd } from './crowd.ts'
import { createLeader, type Leader } from './leader.ts'
import { createWaitingroomMetrics } from './metrics.ts'
import { createRestorer } from './restore.ts'
import { createRooms, type Rooms } from './rooms.ts'
import { createServer } from './server.ts'
import { createSockets } from './sockets.ts'
import { openStore } from './store.ts'
import { createTokens, type Tokens } from './tokens.ts'

export type Waitingroom = {
  app: FastifyInstance
  store: QueueStore
  rooms: Rooms
  crowd: Crowd
  leader: Leader
  tokens: Tokens
  loops: Loop[]
  /** @throws Error that names the setting, when the port is taken or not ours to take */
  listen(): Promise<number>
  /** Takes nobody in any more and lets those who are here go, bit by bit. */
  stop(dying: AbortSignal): Promise<void>
  close(): Promise<void>
}

export type WaitingroomParts = {
  db: Db
  config: WaitingroomConfig
  log: Log
  /** For tests, which have several in one process. */
  registry?: Registry
  leadMs?: number
  turnMs?: number
}

/** People that one stopping process sends to the others in a second. */
const dismissPerSecond = 2000

export async function openWaitingroom(parts: WaitingroomParts): Promise<Waitingroom> {
  const { db, config, log } = parts
  const persistenceSeconds = config.QUEUE_PERSISTENCE
  const store = await openStore({
    db,
    redisUrl: config.REDIS_URL,
    log,
    windowSeconds: config.QUEUE_WINDOW,
    persistenceSeconds,
    ...(parts.leadMs !== undefined && { leadMs: parts.leadMs }),
  })
  const tokens = createTokens(config.QUEUE_TOKEN_SECRET)
  const metrics = createWaitingroomMetrics({
    count: (transport) => crowd.count(transport),
    rooms: () => rooms.all(),
    leads: (matchId) => leader.leads(matchId),
    ...(parts.registry && { registry: parts.registry }),
  })
  const restorer = createRestorer({ db, store, log, persistenceSeconds })
  const crowd: Crowd = createCrowd({
    metrics,
    perPlaceMax: config.QUEUE_SOCKETS_PER_PLACE,
    checkoutUrl: (room, seat) =>
      checkoutUrl(config.CHECKOUT_URL, room.matchId, room.windows.get(seat)?.sessionToken ?? ''),
    onLost: restorer.restoreAll,
    ...(parts.turnMs !== undefined && { turnMs: parts.turnMs }),
  })
  const rooms = createRooms({
    db,
    store,
    listener: crowd,
    ratePerMinute: config.QUEUE_RATE,
    capacity: config.QUEUE_CAPACITY,
  })
  const leader = createLeader({
    db,
    store,
    rooms,
    log,
    metrics,
    id: randomUUID(),
    persistenceSeconds,
  })
  const sockets = createSockets({
    log,
    crowd,
    rooms,
    tokens,
    store,
    restorer,
    metrics,
    socketsMax: config.QUEUE_SOCKETS_MAX,
  })
  const auth = await openAuth(config)
  const app = await createServer({
    config,
    db,
    store,
    rooms,
    tokens,
    auth,
    restorer,
    sockets,
    metrics,
    log,
  })
  await app.ready()
  return {
    app,
    store,
    rooms,
    crowd,
    leader,
    tokens,
    loops: loopsOf({ store, rooms, crowd, leader }),
    listen: () => listen(app, config),
    async stop(dying) {
      sockets.refuseMore()
      const gone = app.close()
      await crowd.dismiss(dismissPerSecond, dying)
      crowd.close()
      await gone
    },
    close: () => store.close(),
  }
}

type Looped = Pick<Waitingroom, 'store' | 'rooms' | 'crowd' | 'leader'>

const loopsOf = ({ store, rooms, crowd, leader }: Looped): Loop[] => [
  { name: 'admission', pass: leader.admissionPass, idleMs: 100 },
  { name: 'turns', pass: leader.upkeepPass, idleMs: 1000, upkeep: true },
  {
    name: 'signs of life',
    idleMs: 1000,
    upkeep: true,
    async pass() {
      for (const [matchId, users] of crowd.takeAlive()) {
        for (let i = 0; i < users.length; i += touchMax) {
          await store.touch(matchId, users.slice(i, i + touchMax))
        }
      }
      return 0
    },
  },
  {
    name: 'rooms',
    idleMs: 1000,
    upkeep: true,
    async pass() {
      await rooms.refresh()
      await rooms.syncAll()
      return 0
    },
  },
]

const touchMax = 500

/** Processes share the port where the queue is shared as well: the kernel spreads connections evenly over them. */
async function listen(app: FastifyInstance, config: WaitingroomConfig): Promise<number> {
  const { WAITINGROOM_HOST: host, WAITINGROOM_PORT: port, REDIS_URL } = config
  const reusePort = REDIS_URL !== undefined && port !== 0 && process.platform === 'linux'
  // Fastify hands its options on to Node, whose type they lack.
  const options = { host, port, backlog: 4096, reusePort }
  try {
    await app.listen(options)
  } catch (cause) {
    const { message } = cause as Error
    throw new Error(`WAITINGROOM_PORT ${port} on ${host} cannot be listened on: ${message}`, {
      cause,
    })
  }
  return (app.server.address() as { port: number }).port
}
