// The waiting room on Postgres alone, for one process: the port of domain/waitingroom.ts on the tables of
// 0013_waitingroom.sql. Every step locks the row of its match first, so that steps of a match follow one another; joins
// that come together are written together. The steps that changed something are told within the process and kept there,
// which is why there can be one process only.

import { randomBytes } from 'node:crypto'
import { sql } from 'kysely'
import {
  type Delta,
  type Joined,
  type Led,
  type PurchaseWindow,
  QueueAway,
  type QueueState,
  type QueueStore,
  type Snapshot,
} from '../domain/waitingroom.ts'
import { createGroup } from './group.ts'
import { insertTurns, readUnfreed } from './queueTurns.ts'
import type { Db, Tx } from './schema.ts'
import { CommitUnknown, isConnectionLost, transaction } from './transaction.ts'
import { readRoom, type WaitingRoom } from './waitingRooms.ts'

export type PostgresWaitingroomOptions = {
  db: Db
  windowSeconds: number
  toState(room: WaitingRoom): QueueState
}

const logMax = 4000
const admitMax = 1000
const dropMax = 500
const readCommitted = { isolation: 'read committed' } as const

type Log = { n: number; deltas: Delta[]; pacePerMinute: number }
type Asked = { matchId: string; userId: string }
type PlaceRow = { user_id: string; seat: number; score: string; position: number }

export function openPostgresWaitingroom(options: PostgresWaitingroomOptions): QueueStore {
  const { db, windowSeconds } = options
  const logs = new Map<string, Log>()
  const listeners: ((matchId: string | undefined) => void)[] = []

  const logOf = (matchId: string): Log => {
    const log = logs.get(matchId) ?? { n: 0, deltas: [], pacePerMinute: 0 }
    logs.set(matchId, log)
    return log
  }
  const stateOf = (room: WaitingRoom): QueueState => ({
    ...options.toState(room),
    pacePerMinute: logOf(room.matchId).pacePerMinute,
  })

  function note(matchId: string, lastSeat: number, step: Partial<Delta>): void {
    const log = logOf(matchId)
    const empty = { left: [], back: [], granted: [], over: [] }
    log.deltas.push({ n: ++log.n, atMs: Date.now(), lastSeat, ...empty, ...step })
    if (log.deltas.length > logMax) log.deltas.splice(0, logMax / 2)
    for (const listener of listeners) listener(matchId)
  }

  /** @throws QueueAway when Postgres is */
  async function kept<T>(work: () => Promise<T>): Promise<T> {
    try {
      return await work()
    } catch (error) {
      const isAway = error instanceof CommitUnknown || isConnectionLost(error)
      throw isAway ? new QueueAway(error) : error
    }
  }

  /** Nobody knows whether the step was taken: it counts as one that is not kept, and the queue is read as it stands. */
  function loseStep(matchId: string): void {
    const log = logOf(matchId)
    log.n++
    log.deltas = []
  }

  /** One step of a match, its room locked. */
  const step = <T>(matchId: string, work: (tx: Tx, room: WaitingRoom) => Promise<T>) =>
    kept(() =>
      transaction(
        db,
        async (tx) => {
          await sql`select from waiting_rooms where match_id = ${matchId} for update`.execute(tx)
          const room = await readRoom(tx, matchId)
          if (room === undefined) throw new Error(`there is no waiting room ${matchId}`)
          return await work(tx, room)
        },
        readCommitted,
      ).catch((error) => {
        if (error instanceof CommitUnknown) loseStep(matchId)
        throw error
      }),
    )

  const joins = createGroup<Asked, Joined>({
    async commit(asked) {
      const joined = new Map<Asked, Joined>()
      for (const [matchId, group] of Map.groupBy(asked, (one) => one.matchId)) {
        const answers = await joinAll(
          matchId,
          group.map((one) => one.userId),
        )
        group.forEach((one, i) => {
          joined.set(one, answers[i]!)
        })
      }
      return asked.map((one) => joined.get(one)!)
    },
    divides: (error) => !isConnectionLost(error) && !(error instanceof QueueAway),
  })

  async function joinAll(matchId: string, userIds: readonly string[]): Promise<Joined[]> {
    const { answers, lastSeat, grew } = await step(matchId, async (tx, room) => {
      const before = await readStanding(tx, room, userIds)
      const fresh = [...new Set(userIds)].filter((userId) => !before.has(userId))
      if (room.status !== 'closed' && fresh.length > 0) await insertPlaces(tx, room, fresh)
      const after = fresh.length > 0 ? await readStanding(tx, room, userIds) : before
      return {
        answers: userIds.map((userId): Joined => {
          const found = after.get(userId) ?? { is: 'closed', reason: room.reason ?? '' }
          return found.is === 'waiting' ? { ...found, isNew: !before.has(userId) } : found
        }),
        lastSeat: room.lastSeat + fresh.length,
        grew: room.status !== 'closed' && fresh.length > 0,
      }
    })
    if (grew) note(matchId, lastSeat, {})
    return answers
  }

  return {
    name: 'postgres',

    join: (matchId, userId) => kept(() => joins.run({ matchId, userId })),

    find: (matchId, userId) =>
      kept(async () => {
        const room = await readRoom(db, matchId)
        if (room === undefined) return undefined
        const found = (await readStanding(db, room, [userId])).get(userId)
        if (found === undefined && room.status === 'closed') {
          return { is: 'closed', reason: room.reason ?? '' }
        }
        return found
      }),

    // Nothing is ever lost here but what was dropped: a place of an older epoch comes from a Redis that was given up.
    async restore(matchId, userId, seat, score) {
      const { joined, lastSeat, made } = await step(matchId, async (tx, room) => {
        const made =
          room.status !== 'closed' && !(await readStanding(tx, room, [userId])).has(userId)
        if (made) {
          await tx
            .insertInto('waiting_places')
            .values({ match_id: matchId, user_id: userId, seat, score })
            .execute()
        }
        const found = (await readStanding(tx, room, [userId])).get(userId)
        const joined: Joined = found ?? { is: 'closed', reason: room.reason ?? '' }
        return { joined, lastSeat: room.lastSeat, made }
      })
      if (made) note(matchId, lastSeat, { back: [seat] })
      return joined
    },

    async leave(matchId, userId) {
      const { gone, lastSeat } = await step(matchId, async (tx, room) => ({
        gone: await deletePlaces(tx, matchId, [userId]),
        lastSeat: room.lastSeat,
      }))
      if (gone.length > 0) note(matchId, lastSeat, { left: gone })
      return gone.length > 0
    },

    noteSession: (matchId, userId, session) =>
      kept(async () => {
        await sql`
          update waiting_places set session = ${JSON.stringify(session)}, seen_at = clock_timestamp()
          where match_id = ${matchId} and user_id = ${userId}`.execute(db)
      }),

    touch: (matchId, userIds) =>
      kept(async () => {
        if (userIds.length === 0) return
        await sql`
          update waiting_places p set seen_at = clock_timestamp() from (
            select user_id from waiting_places
            where match_id = ${matchId} and user_id = any(${[...userIds]}::text[])
            order by user_id for update skip locked) l
          where p.match_id = ${matchId} and p.user_id = l.user_id`.execute(db)
      }),

    async snapshot(matchId): Promise<Snapshot> {
      return await step(matchId, async (tx, room) => {
        const { rows } = await sql<{ seat: number }>`
          select seat from waiting_places where match_id = ${matchId}`.execute(tx)
        // What is told after this lock was let go has a later number.
        return {
          n: logOf(matchId).n,
          lastSeat: room.lastSeat,
          seats: rows.map((row) => row.seat),
          called: [],
          windows: await readUnfreed(tx, matchId),
          state: stateOf(room),
        }
      })
    },

    async changes(matchId, n) {
      const { deltas, n: last } = logOf(matchId)
      if (n === last) return []
      const found = deltas.filter((delta) => delta.n > n)
      return found[0]?.n === n + 1 ? found : undefined
    },

    onChange(listener) {
      listeners.push(listener)
    },

    async control(matchId, change) {
      if (change.pacePerMinute !== undefined) logOf(matchId).pacePerMinute = change.pacePerMinute
      const room = await step(matchId, async (tx, room) => {
        if (room.status === 'closed') await deletePlaces(tx, matchId, undefined)
        return room
      })
      note(matchId, room.lastSeat, { state: stateOf(room) })
    },

    async seal(matchId) {
      const { sealed, room, did } = await step(matchId, async (tx, room) => {
        const { lobbySize, drawnBaseUs } = room
        if (room.phase !== 'lobby') return { sealed: { lobbySize, drawnBaseUs }, room, did: false }
        const made = {
          lobbySize: room.lastSeat,
          drawnBaseUs: Math.max(Date.now() * 1000, room.lastUs),
        }
        await tx
          .updateTable('waiting_rooms')
          .set({
            phase: 'drawing',
            lobby_size: made.lobbySize,
            drawn_base_us: made.drawnBaseUs,
            last_us: made.drawnBaseUs + made.lobbySize + 1,
          })
          .where('match_id', '=', matchId)
          .execute()
        return { sealed: made, room: { ...room, ...made, phase: 'drawing' as const }, did: true }
      })
      if (did) note(matchId, room.lastSeat, { state: stateOf(room) })
      return sealed
    },

    async writeDraw(matchId, drawnBaseUs, places) {
      await step(matchId, async (tx) => {
        await sql`
          update waiting_places p set score = ${drawnBaseUs}::bigint + t.place
          from unnest(${[...places]}::integer[]) with ordinality as t (place, seat)
          where p.match_id = ${matchId} and p.seat = t.seat`.execute(tx)
      })
    },

    async admit(matchId, { want }): Promise<Led> {
      const { led, granted } = await step(matchId, async (tx, room) => {
        const unfreed = await readUnfreed(tx, matchId)
        const runs = room.status === 'active' && room.phase === 'open'
        const room_ = Math.max(0, room.capacity - unfreed.length)
        const count = runs ? Math.min(want, room_, admitMax) : 0
        const granted = count > 0 ? await letIn(tx, matchId, count, windowSeconds) : []
        const { rows } = await sql<{ n: number }>`
          select count(*)::int as n from waiting_places where match_id = ${matchId}`.execute(tx)
        const led: Led = {
          is: 'leader',
          isNew: !logs.has(matchId),
          admitted: granted.length,
          waiting: rows[0]!.n,
          openWindows: unfreed.length + granted.length,
          lastSeat: room.lastSeat,
        }
        return { led, granted }
      })
      const left = granted.map((window) => window.seat)
      if (led.is === 'leader' && left.length > 0) note(matchId, led.lastSeat, { left, granted })
      return led
    },

    async free(matchId, windows) {
      const over = windows.map(({ seat, reason }) => ({ seat, reason }))
      if (over.length > 0) note(matchId, 0, { over })
    },

    async drop(matchId, seconds) {
      const { gone, lastSeat } = await step(matchId, async (tx, room) => {
        const { rows } = await sql<{ user_id: string }>`
          select user_id from waiting_places where match_id = ${matchId}
            and seen_at < (select clock_timestamp()) - make_interval(secs => ${seconds})
          order by seen_at limit ${dropMax}`.execute(tx)
        const users = rows.map((row) => row.user_id)
        return { gone: await deletePlaces(tx, matchId, users), lastSeat: room.lastSeat }
      })
      if (gone.length > 0) note(matchId, lastSeat, { left: gone })
      return gone.length
    },

    quiet: (matchId, front, seconds) =>
      kept(async () => {
        const { rows } = await sql<{ user_id: string; seat: number; position: number }>`
          select user_id, seat, position::int from (
            select user_id, seat, seen_at, told, row_number() over (order by score) as position
            from waiting_places where match_id = ${matchId} order by score limit ${front}) f
          where not told and seen_at < clock_timestamp() - make_interval(secs => ${seconds})
          order by position`.execute(db)
        return rows.map(({ user_id, seat, position }) => ({ userId: user_id, seat, position }))
      }),

    noteTold: (matchId, seats) =>
      kept(async () => {
        await sql`update waiting_places set told = true
          where match_id = ${matchId} and seat = any(${[...seats]}::integer[])`.execute(db)
      }),

    async close() {},
  }
}

/** Those of the users who have a place or an open window. */
async function readStanding(
  on: Db | Tx,
  { matchId, epoch }: WaitingRoom,
  userIds: readonly string[],
): Promise<Map<string, Joined>> {
  const ids = [...new Set(userIds)]
  const { rows } = await sql<PlaceRow>`
    select p.user_id, p.seat, p.score, (select count(*)::int from waiting_places q
      where q.match_id = p.match_id and q.score <= p.score) as position
    from waiting_places p
    where p.match_id = ${matchId} and p.user_id = any(${ids}::text[])`.execute(on)
  const standing = new Map<string, Joined>()
  for (const { user_id, seat, score, position } of rows) {
    const ticket = { seat, joinedUs: Number(score), epoch }
    standing.set(user_id, { is: 'waiting', ticket, position, isNew: false })
  }
  const asked = new Set(ids)
  const unfreed = await readUnfreed(on, matchId)
  for (const window of unfreed) {
    if (asked.has(window.userId)) standing.set(window.userId, { is: 'admitted', window })
  }
  return standing
}

/** The last of the line; each a microsecond after the one before, in the order given. */
async function insertPlaces(tx: Tx, room: WaitingRoom, userIds: readonly string[]): Promise<void> {
  const firstUs = Math.max(Date.now() * 1000, room.lastUs + 1)
  await sql`
    insert into waiting_places (match_id, user_id, seat, score)
    select ${room.matchId}, t.user_id, ${room.lastSeat}::integer + t.i, ${firstUs}::bigint + t.i - 1
    from unnest(${[...userIds]}::text[]) with ordinality as t (user_id, i)`.execute(tx)
  await tx
    .updateTable('waiting_rooms')
    .set({ last_seat: room.lastSeat + userIds.length, last_us: firstUs + userIds.length - 1 })
    .where('match_id', '=', room.matchId)
    .execute()
}

/** @param userIds undefined: all. @returns their seats */
async function deletePlaces(
  tx: Tx,
  matchId: string,
  userIds: readonly string[] | undefined,
): Promise<number[]> {
  const { rows } = await sql<{ seat: number }>`
    delete from waiting_places where match_id = ${matchId}
      and (${userIds === undefined} or user_id = any(${[...(userIds ?? [])]}::text[]))
    returning seat`.execute(tx)
  return rows.map((row) => row.seat)
}

/** The first of the line leave it and may buy. */
async function letIn(
  tx: Tx,
  matchId: string,
  count: number,
  windowSeconds: number,
): Promise<PurchaseWindow[]> {
  const { rows } = await sql<{ user_id: string; seat: number; score: string }>`
    delete from waiting_places p using (
      select user_id from waiting_places where match_id = ${matchId} order by score limit ${count}
    ) f
    where p.match_id = ${matchId} and p.user_id = f.user_id
    returning p.user_id, p.seat, p.score`.execute(tx)
  // What a DELETE returns is in no order.
  const inOrder = rows.toSorted((a, b) => Number(a.score) - Number(b.score))
  const turns = inOrder.map(({ user_id, seat }) => ({
    seat,
    userId: user_id,
    sessionToken: randomBytes(16).toString('base64url'),
  }))
  return await insertTurns(tx, matchId, turns, windowSeconds)
}
