// Turns: who was let in, until when, and what came of it. A turn, its purchase window and its event are written in one
// transaction, so that nobody may buy without a turn, and no turn goes untold. A seat has one turn, whatever is repeated.
// READ COMMITTED throughout: holds read purchase_windows under SERIALIZABLE, and must not fail for a turn that is given.

import { sql } from 'kysely'
import { v5 as uuidv5, v7 as uuidv7 } from 'uuid'
import type { NewEvent } from '../domain/events.ts'
import type { PurchaseWindow, WindowEnd } from '../domain/waitingroom.ts'
import { writeEvents } from './outbox.ts'
import type { Db, Tx } from './schema.ts'
import { readByKey, transaction } from './transaction.ts'

export type NewTurn = { seat: number; userId: string; sessionToken: string }

const readCommitted = { isolation: 'read committed' } as const

/**
 * Gives turns that were decided. Those that were given before are given back as they are.
 * @param windowSeconds how long each may buy
 */
export async function recordTurns(
  db: Db,
  matchId: string,
  turns: readonly NewTurn[],
  windowSeconds: number,
): Promise<PurchaseWindow[]> {
  if (turns.length === 0) return []
  return await transaction(
    db,
    (tx) => insertTurns(tx, matchId, turns, windowSeconds),
    readCommitted,
  )
}

type Row = { seat: number; user_id: string; session_token: string; expires_at: Date }

const toWindow = (row: Row): PurchaseWindow => ({
  seat: row.seat,
  userId: row.user_id,
  sessionToken: row.session_token,
  expiresAtMs: row.expires_at.getTime(),
})

/** Rows in the order of the line, so that granted_at tells it, then windows in the order of their users: two writers do not wait for each other. */
export async function insertTurns(
  tx: Tx,
  matchId: string,
  turns: readonly NewTurn[],
  windowSeconds: number,
): Promise<PurchaseWindow[]> {
  const { rows: made } = await sql<Row>`
    insert into turns (match_id, seat, user_id, session_token, expires_at)
    select ${matchId}, t.seat, t.user_id, t.session_token,
      date_trunc('milliseconds', clock_timestamp()) + make_interval(secs => ${windowSeconds})
    from unnest(${turns.map((t) => t.seat)}::integer[], ${turns.map((t) => t.userId)}::text[],
      ${turns.map((t) => t.sessionToken)}::text[])
      with ordinality as t (seat, user_id, session_token, i)
    order by t.i
    on conflict (match_id, seat) do nothing
    returning seat, user_id, session_token, expires_at`.execute(tx)
  await openWindows(tx, matchId, made)
  await writeEvents(
    tx,
    made.map((row) => grantedEvent(matchId, row)),
  )
  if (made.length === turns.length) return made.map(toWindow)
  const { rows: all } = await sql<Row>`
    select seat, user_id, session_token, expires_at from turns
    where match_id = ${matchId} and seat = any(${turns.map((t) => t.seat)}::integer[])`.execute(tx)
  return all.map(toWindow)
}

async function openWindows(tx: Tx, matchId: string, rows: readonly Row[]): Promise<void> {
  if (rows.length === 0) return
  await sql`
    insert into purchase_windows (event_id, user_id, session_token, expires_at)
    select ${matchId}, t.user_id, t.session_token, t.expires_at
    from unnest(${rows.map((r) => r.user_id)}::text[], ${rows.map((r) => r.session_token)}::text[],
      ${rows.map((r) => r.expires_at)}::timestamptz[]) as t (user_id, session_token, expires_at)
    order by t.user_id
    on conflict (event_id, user_id) do update
    set session_token = excluded.session_token, expires_at = excluded.expires_at`.execute(tx)
}

const grantedEvent = (matchId: string, row: Row): NewEvent => ({
  messageId: uuidv7(),
  type: 'queue.turn_granted',
  subject: `${matchId}:${row.seat}`,
  sequence: 1,
  data: { match_id: matchId, user_id: row.user_id, expires_at: row.expires_at.toISOString() },
})

type Settled = Row & { state: WindowEnd }

/**
 * Ends the windows of those who have ordered, and those whose time is over: with a hold, or an order, the turn was used.
 * The batch is of those that end: were it of those that are open, a thousand who do not buy would hold up all behind them.
 * Looks through turns_unfreed, orders_user and reservations_user; whoever is locked is passed over, so any order will do.
 * @returns how many ended
 */
export async function settleTurns(db: Db, matchId: string, batchMax = 1000): Promise<number> {
  return await transaction(
    db,
    async (tx) => {
      await readByKey(tx)
      const { rows } = await sql<Settled>`
        with ended as materialized (
          select t.seat, t.user_id, t.granted_at from turns t
          where t.match_id = ${matchId} and not t.freed and t.state = 'open'
            and (t.expires_at <= clock_timestamp() or exists (
              select from orders r where r.user_id = t.user_id
                and r.event_id = ${matchId} and r.created_at >= t.granted_at))
          limit ${batchMax} for update of t skip locked),
        judged as materialized (
          select e.seat, exists (select from orders r where r.user_id = e.user_id
              and r.event_id = ${matchId} and r.created_at >= e.granted_at)
            or exists (select from reservations r where r.user_id = e.user_id
              and r.event_id = ${matchId} and r.created_at >= e.granted_at) as used
          from ended e)
        update turns t set settled_at = clock_timestamp(),
          state = case when j.used then 'used' else 'window_timeout' end
        from judged j
        where t.match_id = ${matchId} and t.seat = j.seat
        returning t.seat, t.user_id, t.session_token, t.expires_at, t.state`.execute(tx)
      await closeWindows(tx, matchId, rows)
      return rows.length
    },
    readCommitted,
  )
}

/** The windows go, and who did not use theirs is told. */
async function closeWindows(tx: Tx, matchId: string, rows: readonly Settled[]): Promise<void> {
  if (rows.length === 0) return
  await sql`
    delete from purchase_windows w
    using unnest(${rows.map((r) => r.user_id)}::text[], ${rows.map((r) => r.session_token)}::text[])
      as t (user_id, session_token)
    where w.event_id = ${matchId} and w.user_id = t.user_id
      and w.session_token = t.session_token`.execute(tx)
  const unused = rows.filter((row) => row.state !== 'used')
  await writeEvents(
    tx,
    unused.map((row) => ({
      messageId: uuidv7(),
      type: 'queue.expired',
      subject: `${matchId}:${row.seat}`,
      sequence: 2,
      data: { match_id: matchId, user_id: row.user_id, reason: row.state },
    })),
  )
}

/** The user gives the turn back. @returns whether there was one */
export async function leaveTurn(db: Db, matchId: string, userId: string): Promise<boolean> {
  return await transaction(
    db,
    async (tx) => {
      const { rows } = await sql<Settled>`
        update turns set state = 'left', settled_at = clock_timestamp()
        where match_id = ${matchId} and user_id = ${userId} and state = 'open' and not freed
        returning seat, user_id, session_token, expires_at, state`.execute(tx)
      await closeWindows(tx, matchId, rows)
      return rows.length > 0
    },
    readCommitted,
  )
}

export type EndedWindow = PurchaseWindow & { reason: WindowEnd }

/** Windows that are over and still take room in the store. */
export async function readEndedTurns(db: Db, matchId: string, max = 1000): Promise<EndedWindow[]> {
  const { rows } = await sql<Settled>`
    select seat, user_id, session_token, expires_at, state from turns
    where match_id = ${matchId} and not freed and state <> 'open'
    order by seat limit ${max}`.execute(db)
  return rows.map((row) => ({ ...toWindow(row), reason: row.state }))
}

export async function noteFreed(db: Db, matchId: string, seats: readonly number[]): Promise<void> {
  await sql`
    update turns set freed = true
    where match_id = ${matchId} and seat = any(${[...seats]}::integer[])`.execute(db)
}

/** Windows that take room: open, or over and not freed yet. */
export async function readUnfreed(on: Db | Tx, matchId: string): Promise<PurchaseWindow[]> {
  const { rows } = await sql<Row>`
    select seat, user_id, session_token, expires_at from turns
    where match_id = ${matchId} and not freed order by seat`.execute(on)
  return rows.map(toWindow)
}

/** The user's own open window. */
export async function findWindow(
  db: Db,
  matchId: string,
  userId: string,
): Promise<PurchaseWindow | undefined> {
  const { rows } = await sql<Row>`
    select seat, user_id, session_token, expires_at from turns
    where match_id = ${matchId} and user_id = ${userId} and not freed and state = 'open'`.execute(
    db,
  )
  return rows[0] && toWindow(rows[0])
}

/** Those of the seats that ever had their turn. */
export async function readTaken(
  db: Db,
  matchId: string,
  seats: readonly number[],
): Promise<Set<number>> {
  const { rows } = await sql<{ seat: number }>`
    select seat from turns
    where match_id = ${matchId} and seat = any(${[...seats]}::integer[])`.execute(db)
  return new Set(rows.map((row) => row.seat))
}

/** What came of the last turns that ended within half an hour: what the no-show rate is made of. */
export async function countEnds(
  db: Db,
  matchId: string,
): Promise<{ used: number; unused: number }> {
  const { rows } = await sql<{ used: number; unused: number }>`
    select count(*) filter (where state = 'used')::int as used,
      count(*) filter (where state <> 'used')::int as unused
    from (
      select state from turns
      where match_id = ${matchId} and settled_at > (select clock_timestamp()) - interval '30 minutes'
      order by settled_at desc limit 1000) s`.execute(db)
  return rows[0]!
}

export type NearTurn = { userId: string; seat: number; position: number; minutes: number }

/** Events for those who come near the front and are not connected. Repeated, they have the same ids. */
export async function tellNear(db: Db, matchId: string, near: readonly NearTurn[]): Promise<void> {
  await transaction(
    db,
    (tx) =>
      writeEvents(
        tx,
        near.map(({ userId, seat, position, minutes }) => {
          const subject = `${matchId}:${seat}:position`
          return {
            messageId: uuidv5(subject, matchId),
            type: 'queue.position_update' as const,
            subject,
            sequence: 1,
            data: {
              match_id: matchId,
              user_id: userId,
              position,
              estimated_wait_minutes: minutes,
            },
          }
        }),
      ),
    readCommitted,
  )
}
