// The waiting room on Redis, for any number of processes. A match's keys, as others may read them: `queue:<match>` (sorted
// set of users by the time they joined, µs), `queue_meta:<match>` (hash), `queue_session:<user>:<match>` (JSON, kept as
// long as the place), `purchase_windows:<match>` (hash of users, JSON). On a Cluster the match is in braces,
// `queue:{<match>}`, so that all keys of a match share a slot, as their scripts need. What Redis lost is made anew from
// Postgres (`revive`), and so is what another server has of it: a copy that may be older. A turn is only told when Postgres
// has it (`record`): who is let in twice is refused there.

import { randomBytes } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import {
  type AdmitOptions,
  type Delta,
  type Joined,
  type Led,
  type PurchaseWindow,
  QueueAway,
  type QueueState,
  type QueueStore,
  type Snapshot,
  type WindowEnd,
} from '../domain/waitingroom.ts'
import { answered, type RedisClient } from './open.ts'
import * as scripts from './waitingroomScripts.ts'

/** What Postgres knows of a match whose keys are gone. */
export type Revived = {
  state: QueueState
  /** At least the last seat that anybody was given. */
  lastSeat: number
  windows: readonly PurchaseWindow[]
}

export type RedisWaitingroomOptions = {
  redis: RedisClient
  /** A connection of its own that listens. */
  subscriber: RedisClient
  /** The match as a new epoch. Undefined: there is no such match. */
  revive(matchId: string): Promise<Revived | undefined>
  /** Those of the seats that had their turn. */
  taken(matchId: string, seats: readonly number[]): Promise<ReadonlySet<number>>
  /** Makes turns durable; those that are already are given back as they are. */
  record(matchId: string, turns: readonly NewTurn[]): Promise<readonly PurchaseWindow[]>
  /** How long a session is kept without a sign of life, s. */
  persistenceSeconds: number
  /** How long a purchase window is open, s. */
  windowSeconds: number
  /** How long the lead of a match lasts without its leader, ms. */
  leadMs?: number
}

export type NewTurn = { seat: number; userId: string; sessionToken: string }

const answerMs = 2000
const changesChannel = 'queue_changes'
const tokensMax = 1000
const dropMax = 500
/** Whoever makes a match and dies holds it up for so long. */
const makeMs = 2000
const makeAttemptsMax = 50
/** On a Cluster another server may take over while our connections stand. */
const clusterCheckMs = 1000
const draftMax = 1000
/** Numbers of an epoch's steps begin here: no step of another epoch has one of them. */
const epochSteps = 1_000_000_000

type Raw = (string | number | null | Raw)[]

export function openRedisWaitingroom(options: RedisWaitingroomOptions): QueueStore {
  const { redis, subscriber, leadMs = 2000 } = options
  const run = runner(redis)

  const tag = (matchId: string) => (redis.isCluster ? `{${matchId}}` : matchId)
  const keysOf = (matchId: string) =>
    [
      'queue_meta',
      'queue',
      'queue_seats',
      'queue_seen',
      'purchase_windows',
      'queue_left',
      'queue_log',
      'queue_turns',
      'queue_lease',
      'queue_told',
    ].map((name) => `${name}:${tag(matchId)}`)
  const sessionKey = (matchId: string, userId: string) => `queue_session:${userId}:${tag(matchId)}`

  /** @throws QueueAway */
  async function ask<T>(reply: Promise<unknown>): Promise<T> {
    try {
      return (await answered(reply, answerMs)) as T
    } catch (error) {
      throw new QueueAway(error)
    }
  }

  const send = <T>(name: Name, matchId: string, ...args: (string | number)[]) =>
    ask<T>(run(name, keysOf(matchId), [matchId, ...args]))

  /** Matches that are known to be of the server that answers, and until when. */
  const checked = new Map<string, number>()
  redis.on('close', () => checked.clear())

  async function check(matchId: string): Promise<void> {
    if ((checked.get(matchId) ?? 0) > performance.now()) return
    for (let attempt = 1; (await send('check', matchId)) === 'older'; attempt++) {
      await make(matchId, attempt)
    }
    const knownMs = redis.isCluster ? clusterCheckMs : Number.POSITIVE_INFINITY
    checked.set(matchId, performance.now() + knownMs)
  }

  async function call<T = Raw>(name: Name, matchId: string, ...args: (string | number)[]) {
    await check(matchId)
    return await send<T>(name, matchId, ...args)
  }

  /** Once more after the match was made anew, when its keys are gone. */
  async function alive(name: Name, matchId: string, ...args: (string | number)[]): Promise<Raw> {
    for (let attempt = 1; ; attempt++) {
      const answer = await call(name, matchId, ...args)
      if (answer[0] !== 'absent') return answer
      await make(matchId, attempt)
    }
  }

  /** One process makes a match, the others wait for it: each that tried would begin an epoch. */
  async function make(matchId: string, attempt: number): Promise<void> {
    if (attempt > makeAttemptsMax) throw new QueueAway(new Error('its keys are not made'))
    const key = `queue_making:${tag(matchId)}`
    const mine = await ask<string | null>(redis.set(key, '1', 'PX', makeMs, 'NX'))
    if (mine === null) await sleep(makeMs / makeAttemptsMax)
    // Somebody may have made it since we looked.
    else if ((await send('check', matchId)) !== 'here') await create(matchId)
    if (mine !== null) await ask(redis.del(key))
  }

  async function create(matchId: string): Promise<void> {
    const revived = await options.revive(matchId)
    if (revived === undefined) throw new Error(`there is no waiting room ${matchId}`)
    const { state, lastSeat, windows } = revived
    const places = await ask<Record<string, string>>(redis.hgetall(keysOf(matchId)[2]!))
    const taken = await options.taken(matchId, Object.values(places).map(Number))
    const had = Object.entries(places).filter(([, seat]) => taken.has(Number(seat)))
    const fields = {
      ...toMeta(state),
      total_size: 0,
      created_at: new Date().toISOString(),
      seat: lastSeat,
      noted_seat: lastSeat,
      last_us: state.drawnBaseUs + state.lobbySize + 1,
      n: state.epoch * epochSteps,
    }
    const lists = [
      windows.flatMap((window) => [window.userId, windowText(window)]),
      had.flat(),
      Object.entries(fields).flat(),
    ]
    await send('create', matchId, ...lists.flatMap((list) => [list.length, ...list]))
  }

  /** Durable first, then told. */
  const settlePending = async (matchId: string, pending: [string, string[]][]) => {
    const turns = pending.map(([id, fields]) => ({
      id,
      // Field and value in turn, as the script wrote them.
      userId: fields[1]!,
      seat: Number(fields[3]),
      sessionToken: fields[5]!,
    }))
    const recorded = await options.record(matchId, turns)
    const bySeat = new Map(recorded.map((window) => [window.seat, window]))
    const args = turns.flatMap(({ id, seat }) => {
      const window = bySeat.get(seat)
      if (window === undefined) return []
      const event = JSON.stringify({
        event: 'queue.turn_granted',
        user_id: window.userId,
        match_id: matchId,
        session_token: window.sessionToken,
        expires_at: new Date(window.expiresAtMs).toISOString(),
      })
      return [id, window.userId, windowText(window), JSON.stringify(window), event]
    })
    if (args.length > 0) await call<number>('announce', matchId, ...args)
  }

  const listeners: ((matchId: string | undefined) => void)[] = []
  const tell = (matchId: string | undefined) => {
    for (const listener of listeners) listener(matchId)
  }
  subscriber.on('message', (channel, matchId) => {
    if (channel === changesChannel) tell(matchId)
  })
  const subscribe = () => {
    subscriber.subscribe(changesChannel).then(
      () => tell(undefined),
      // A connection that breaks is made again, and is ready again.
      () => {},
    )
  }
  if (subscriber.status === 'ready') subscribe()
  subscriber.on('ready', subscribe)

  return {
    name: 'redis',

    async join(matchId, userId) {
      return toJoined(await alive('join', matchId, userId, 'join'), userId)
    },

    async find(matchId, userId) {
      const answer = await alive('join', matchId, userId, 'find')
      return answer[0] === 'none' ? undefined : toJoined(answer, userId)
    },

    async restore(matchId, userId, seat, score) {
      return toJoined(await alive('restore', matchId, userId, seat, score), userId)
    },

    async leave(matchId, userId) {
      const [gone] = await Promise.all([
        call<number>('leave', matchId, userId),
        ask(redis.del(sessionKey(matchId, userId))),
      ])
      return gone === 1
    },

    async noteSession(matchId, userId, session) {
      const text = JSON.stringify(session)
      await ask(redis.set(sessionKey(matchId, userId), text, 'EX', options.persistenceSeconds))
    },

    async touch(matchId, userIds) {
      if (userIds.length === 0) return
      await Promise.all([
        call('touch', matchId, ...userIds),
        ...userIds.map((userId) =>
          ask(redis.expire(sessionKey(matchId, userId), options.persistenceSeconds)),
        ),
      ])
    },

    async snapshot(matchId) {
      await check(matchId)
      for (let attempt = 1; ; attempt++) {
        const [metaKey, , seatsKey, , windowsKey] = keysOf(matchId) as [string, string, ...string[]]
        // The state first: what changes until the seats are read comes again as a step, and does no harm.
        const [meta, seats, windows] = await Promise.all([
          ask<Record<string, string>>(redis.hgetall(metaKey)),
          ask<string[]>(redis.hvals(seatsKey!)),
          ask<Record<string, string>>(redis.hgetall(windowsKey!)),
        ])
        if (meta.epoch) return toSnapshot(meta, seats, windows)
        await make(matchId, attempt)
      }
    },

    async changes(matchId, n) {
      await check(matchId)
      const log = keysOf(matchId)[6]!
      const entries = await ask<[string, string[]][]>(
        redis.xrange(log, `${n + 1}-0`, '+', 'COUNT', 1000),
      )
      if (entries.length === 0) return []
      const deltas = entries.map(([id, fields]) =>
        toDelta(Number.parseInt(id, 10), fields[1]!, fields[3]!),
      )
      return deltas[0]!.n === n + 1 ? deltas : undefined
    },

    onChange(listener) {
      listeners.push(listener)
    },

    async control(matchId, change) {
      const fields = Object.entries(toMeta(change)).flat()
      // A match that is not there is made from Postgres, which has the change.
      if ((await call<number>('control', matchId, ...fields)) === 0) await make(matchId, 1)
    },

    async seal(matchId) {
      const [lobbySize, drawnBaseUs] = (await alive('seal', matchId)).map(Number)
      return { lobbySize: lobbySize!, drawnBaseUs: drawnBaseUs! }
    },

    async writeDraw(matchId, drawnBaseUs, places) {
      const [, queue, seats] = keysOf(matchId) as [string, string, string, ...string[]]
      let cursor = '0'
      do {
        const [next, flat] = await ask<[string, string[]]>(
          redis.hscan(seats, cursor, 'COUNT', draftMax),
        )
        const scores: (string | number)[] = []
        for (let i = 0; i < flat.length; i += 2) {
          const place = places[Number(flat[i + 1]) - 1]
          if (place !== undefined) scores.push(drawnBaseUs + place, flat[i]!)
        }
        if (scores.length > 0) await ask(redis.zadd(queue, 'XX', ...scores))
        cursor = next
      } while (cursor !== '0')
    },

    async admit(matchId, { leader, want }: AdmitOptions): Promise<Led> {
      const until = new Date(Date.now() + options.windowSeconds * 1000).toISOString()
      const tokens = Array.from({ length: Math.min(want, tokensMax) }, newToken)
      const answer = await alive('tick', matchId, leader, leadMs, want, until, ...tokens)
      if (answer[0] !== 'leader') return { is: 'other' }
      const [, isNew, admitted, waiting, openWindows, lastSeat, pending] = answer
      if ((pending as Raw).length > 0) await settlePending(matchId, pending as [string, string[]][])
      return {
        is: 'leader',
        isNew: isNew === 1,
        admitted: Number(admitted),
        waiting: Number(waiting),
        openWindows: Number(openWindows),
        lastSeat: Number(lastSeat),
      }
    },

    async free(matchId, windows) {
      const args = windows.flatMap(({ userId, sessionToken, seat, reason }) => {
        const event = { event: 'queue.expired', user_id: userId, match_id: matchId, reason }
        const told = reason === 'used' ? '' : JSON.stringify(event)
        return [userId, sessionToken, JSON.stringify({ seat, reason }), told]
      })
      if (args.length > 0) await call('free', matchId, ...args)
    },

    drop: (matchId, seconds) => call<number>('drop', matchId, seconds * 1000, dropMax),

    async quiet(matchId, front, seconds) {
      const found = await call<[string, string, number][]>('quiet', matchId, front, seconds * 1000)
      return found.map(([userId, seat, position]) => ({ userId, seat: Number(seat), position }))
    },

    async noteTold(matchId, seats) {
      if (seats.length > 0) await ask(redis.sadd(keysOf(matchId)[9]!, ...seats))
    },

    async close() {
      subscriber.disconnect()
      await redis.quit().catch(() => redis.disconnect())
    },
  }
}

const all = {
  join: scripts.joinScript,
  restore: scripts.restoreScript,
  leave: scripts.leaveScript,
  touch: scripts.touchScript,
  control: scripts.controlScript,
  seal: scripts.sealScript,
  check: scripts.checkScript,
  create: scripts.createScript,
  tick: scripts.tickScript,
  announce: scripts.announceScript,
  free: scripts.freeScript,
  drop: scripts.dropScript,
  quiet: scripts.quietScript,
} as const
type Name = keyof typeof all

type Command = (...args: (string | number)[]) => Promise<unknown>

function runner(redis: RedisClient) {
  for (const [name, lua] of Object.entries(all)) {
    redis.defineCommand(`queue_${name}`, { lua, numberOfKeys: scripts.keyCount })
  }
  const commands = redis as unknown as Record<string, Command>
  return (name: Name, keys: readonly string[], args: readonly (string | number)[]) =>
    (commands[`queue_${name}`] as Command).call(redis, ...keys, ...args)
}

const newToken = () => randomBytes(16).toString('base64url')

const windowText = ({ seat, sessionToken, expiresAtMs }: PurchaseWindow) =>
  JSON.stringify({
    expires_at: new Date(expiresAtMs).toISOString(),
    session_token: sessionToken,
    seat,
  })

/** Pending: it is not durable yet, and nobody is told of it. */
function readWindow(userId: string, text: string): PurchaseWindow & { pending: boolean } {
  const {
    seat,
    session_token,
    expires_at,
    pending = false,
  } = JSON.parse(text) as {
    seat: number
    session_token: string
    expires_at: string
    pending?: boolean
  }
  return {
    seat,
    userId,
    sessionToken: session_token,
    expiresAtMs: Date.parse(expires_at),
    pending,
  }
}

function toJoined(answer: Raw, userId: string): Joined {
  switch (answer[0]) {
    case 'window': {
      const { pending, ...window } = readWindow(userId, answer[1] as string)
      if (!pending) return { is: 'admitted', window }
      const ticket = { seat: window.seat, joinedUs: 0, epoch: Number(answer[2]) }
      return { is: 'waiting', ticket, position: 0, isNew: false }
    }
    case 'closed':
      return { is: 'closed', reason: answer[1] as string }
    default: {
      const [, seat, score, position, epoch, isNew] = answer.map(Number)
      const ticket = { seat: seat!, joinedUs: score!, epoch: epoch! }
      return { is: 'waiting', ticket, position: position!, isNew: isNew === 1 }
    }
  }
}

/** The fields of queue_meta: those that others may know, then ours. */
const metaNames = {
  status: 'status',
  ratePerMinute: 'processing_rate',
  epoch: 'epoch',
  revivedAtMs: 'revived_at',
  phase: 'phase',
  capacity: 'capacity',
  pacePerMinute: 'pace',
  lobbySize: 'lobby_size',
  drawnBaseUs: 'drawn_base',
  commitment: 'commitment',
  seed: 'seed',
  reason: 'reason',
} as const satisfies Record<keyof QueueState, string>

function toMeta(state: Partial<QueueState>): Record<string, string | number> {
  const entries = Object.entries(metaNames).flatMap(([name, field]) => {
    const value = state[name as keyof QueueState]
    return value === undefined ? [] : [[field, value] as const]
  })
  return Object.fromEntries(entries)
}

const toState = (meta: Record<string, string>): QueueState => ({
  epoch: Number(meta.epoch),
  revivedAtMs: Number(meta.revived_at ?? 0),
  phase: meta.phase as QueueState['phase'],
  status: meta.status as QueueState['status'],
  ratePerMinute: Number(meta.processing_rate),
  capacity: Number(meta.capacity),
  pacePerMinute: Number(meta.pace ?? 0),
  lobbySize: Number(meta.lobby_size),
  drawnBaseUs: Number(meta.drawn_base),
  commitment: meta.commitment ?? '',
  seed: meta.seed,
  reason: meta.reason,
})

function toSnapshot(
  meta: Record<string, string>,
  seats: readonly string[],
  windows: Record<string, string>,
): Snapshot {
  const open = Object.entries(windows).map(([userId, text]) => readWindow(userId, text))
  return {
    n: Number(meta.n),
    lastSeat: Number(meta.noted_seat),
    seats: seats.map(Number),
    called: open.filter((window) => window.pending).map((window) => window.seat),
    windows: open.filter((window) => !window.pending).map(({ pending: _, ...window }) => window),
    state: toState(meta),
  }
}

type RawDelta = Partial<{
  lastSeat: number
  left: number[]
  back: number[]
  granted: PurchaseWindow[]
  over: { seat: number; reason: WindowEnd }[]
  state: Record<string, string>
}>

function toDelta(n: number, text: string, at: string): Delta {
  const {
    lastSeat = 0,
    left = [],
    back = [],
    granted = [],
    over = [],
    state,
  } = JSON.parse(text) as RawDelta
  return {
    n,
    atMs: Number(at),
    lastSeat,
    left,
    back,
    granted,
    over,
    ...(state && { state: toState(state) }),
  }
}
