// What becomes of a hold: confirmed (with db/orders.ts), cancelled or expired, exactly one of them. The row lock on the
// reservation and the state check in the UPDATE settle who wins; the time is Postgres's. Lock order everywhere:
// reservations by id, then seats, then standing counters by (event, section).

import { type RawBuilder, sql } from 'kysely'
import { v7 as uuidv7 } from 'uuid'
import { AppError } from '../domain/errors.ts'
import { writeEvents } from './outbox.ts'
import { type Reservation, readReservations, reservationData } from './reservations.ts'
import type { Db, ReservationState, Tx } from './schema.ts'
import { transaction } from './transaction.ts'
import { standingEventsOf, takeTurns } from './turns.ts'

export type Change = {
  reservationId: string
  userId: string
  requestId?: string | undefined
  traceparent?: string | undefined
}

type Settled = { id: string; version: number }

/** Locks what the changes name, and says of each why it may not go on, or the reservation that may. */
export async function lockHeld(
  tx: Tx,
  changes: readonly Change[],
): Promise<(Reservation | AppError)[]> {
  const locked = await readReservations(tx, [...new Set(changes.map((c) => c.reservationId))], true)
  const byId = new Map(locked.map((reservation) => [reservation.id, reservation]))
  const spoken = new Set<string>()
  return changes.map(({ reservationId, userId }) => {
    const found = byId.get(reservationId)
    if (found === undefined || found.userId !== userId) {
      return new AppError('RESERVATION_NOT_FOUND', `there is no reservation ${reservationId}`)
    }
    if (found.state === 'expired' || found.over) return expired(found)
    if (found.state !== 'held' || spoken.has(found.id)) {
      const state = found.state === 'held' ? 'being settled' : found.state
      return new AppError('NOT_HELD', `the reservation is ${state}, no longer held`)
    }
    spoken.add(found.id)
    return found
  })
}

export const expired = (reservation: Reservation) =>
  new AppError(
    'RESERVATION_EXPIRED',
    `the hold ended at ${reservation.expiresAt.toISOString()}: its places are free for others`,
  )

/** Moves held reservations on; those whose time ended meanwhile are not in what it gives. */
export async function settle(
  tx: Tx,
  ids: readonly string[],
  state: Exclude<ReservationState, 'held'>,
): Promise<Map<string, Settled>> {
  const inTime =
    state === 'expired' ? sql`expires_at <= clock_timestamp()` : sql`expires_at > clock_timestamp()`
  const { rows } = await sql<Settled>`
    update reservations
    set state = ${state}, version = version + 1, settled_at = clock_timestamp()
    where id = any(${[...ids]}::uuid[]) and state = 'held' and ${inTime}
    returning id, version`.execute(tx)
  return new Map(rows.map((row) => [row.id, row]))
}

/** Gives the places of reservations back: to nobody (free), or to their holder for good (sold). */
export async function movePlaces(
  tx: Tx,
  reservations: readonly Reservation[],
  to: 'free' | 'sold',
): Promise<void> {
  const seats = reservations.flatMap((r) =>
    (r.seatNos ?? []).map((seatNo) => ({ eventId: r.eventId, seatNo, id: r.id })),
  )
  if (seats.length > 0) {
    const { numAffectedRows } = await sql`
      update seats
      set state = ${to}, reservation_id = ${to === 'free' ? null : sql`t.id`}
      from unnest(${seats.map((s) => s.eventId)}::uuid[], ${seats.map((s) => s.seatNo)}::integer[],
        ${seats.map((s) => s.id)}::uuid[]) as t (event_id, seat_no, id)
      where seats.event_id = t.event_id and seats.seat_no = t.seat_no
        and seats.reservation_id = t.id and seats.state = 'held'`.execute(tx)
    if (numAffectedRows !== BigInt(seats.length)) throw new Error('a held seat had another holder')
  }
  const counters = new Map<string, { eventId: string; sectionNo: number; quantity: number }>()
  for (const { eventId, sectionNo, quantity, seatNos } of reservations) {
    if (seatNos !== null) continue
    const counter = counters.get(`${eventId} ${sectionNo}`)
    if (counter) counter.quantity += quantity
    else counters.set(`${eventId} ${sectionNo}`, { eventId, sectionNo, quantity })
  }
  // As numbers: in the order of texts the tenth would come before the second.
  const inOrder = [...counters.values()].sort((a, b) =>
    a.eventId < b.eventId ? -1 : a.eventId > b.eventId ? 1 : a.sectionNo - b.sectionNo,
  )
  for (const { eventId, sectionNo, quantity } of inOrder) {
    await tx
      .updateTable('standing_sections')
      .set({
        held: sql`held - ${quantity}`,
        ...(to === 'sold' && { sold: sql`sold + ${quantity}` }),
      })
      .where('event_id', '=', eventId)
      .where('section_no', '=', sectionNo)
      .execute()
  }
}

/** Frees the places of each held reservation that the user gives back. */
export async function cancelReservations(
  tx: Tx,
  changes: readonly Change[],
): Promise<(Reservation | AppError)[]> {
  const locked = await lockHeld(tx, changes)
  return await free(tx, locked, 'cancelled', changes)
}

/** Frees the places of a locked reservation whose time is over, and that the sweep has not come by. */
export async function expireReservation(tx: Tx, reservation: Reservation): Promise<void> {
  await free(tx, [reservation], 'expired')
}

async function free(
  tx: Tx,
  locked: (Reservation | AppError)[],
  state: 'cancelled' | 'expired',
  changes: readonly Change[] = [],
): Promise<(Reservation | AppError)[]> {
  const held = locked.filter((r): r is Reservation => !(r instanceof AppError))
  if (held.length === 0) return locked
  const settled = await settle(
    tx,
    held.map((r) => r.id),
    state,
  )
  const freed = held.filter((r) => settled.has(r.id))
  await movePlaces(tx, freed, 'free')
  await writeEvents(
    tx,
    freed.map((r) => {
      const change = changes[locked.indexOf(r)]
      return {
        messageId: uuidv7(),
        type: `reservation.${state}` as const,
        subject: r.id,
        sequence: settled.get(r.id)!.version,
        requestId: change?.requestId,
        traceparent: change?.traceparent,
        data: reservationData(r),
      }
    }),
  )
  return locked.map((r) => {
    if (r instanceof AppError) return r
    return settled.has(r.id) ? { ...r, state } : expired(r)
  })
}

/**
 * Frees up to `batchMax` holds whose time is over, the longest over first, each in one transaction with its event.
 * Holds that somebody is confirming now are passed over. Claims through the index due_holds_at: the time stands in a
 * SELECT of its own, as Postgres takes no volatile function for a bound and would read every hold there is.
 * @returns how many were freed
 */
export async function expireReservations(db: Db, batchMax: number): Promise<number> {
  const due = (lock: RawBuilder<unknown>) => sql<{ id: string }>`
    select r.id from due_holds d join reservations r on r.id = d.reservation_id
    where d.expires_at <= (select clock_timestamp()) and r.state = 'held'
    order by d.expires_at limit ${batchMax} ${lock}`
  const soon = (await due(sql``).execute(db)).rows.map(({ id }) => id)
  if (soon.length === 0) return 0
  const events = await standingEventsOf(db, soon)
  return await transaction(db, async (tx) => {
    await takeTurns(tx, events)
    const { rows } = await due(sql`for update of r skip locked`).execute(tx)
    if (rows.length === 0) return 0
    const locked = await readReservations(
      tx,
      rows.map((row) => row.id),
      false,
    )
    await free(tx, locked, 'expired')
    return locked.length
  })
}
