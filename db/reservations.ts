// A reservation as it stands: read with what its event and section say of it, and as its user, and its events, are
// shown it. Changes nothing; db/settlements.ts does.

import { sql } from 'kysely'
import type { Money } from '../domain/events.ts'
import { seatLabel } from '../domain/seats.ts'
import type { Db, ReservationState, Tx } from './schema.ts'

/** A reservation with what its events and answers need of its event and section. */
export type Reservation = {
  id: string
  eventId: string
  eventName: string
  startsAt: Date
  userId: string
  section: string
  sectionNo: number
  quantity: number
  seatNos: number[] | null
  /** Labels; undefined in a standing section. */
  seats?: string[] | undefined
  state: ReservationState
  /** Held, but its time is over: only the sweep has not come by. */
  over: boolean
  version: number
  expiresAt: Date
  priceMinor: number
  currency: string
}

/** Reads reservations, locked against every other change of state when `lock` is set. */
export async function readReservations(
  on: Db | Tx,
  ids: readonly string[],
  lock: boolean,
): Promise<Reservation[]> {
  let query = on
    .selectFrom('reservations as r')
    .innerJoin('sections as s', (join) =>
      join.onRef('s.event_id', '=', 'r.event_id').onRef('s.section_no', '=', 'r.section_no'),
    )
    .innerJoin('events as e', 'e.id', 'r.event_id')
    .select([
      'r.id',
      'r.event_id',
      'e.name as event_name',
      'e.starts_at',
      'r.user_id',
      's.name as section',
      'r.section_no',
      'r.quantity',
      'r.seat_nos',
      'r.state',
      sql<boolean>`r.state = 'held' and r.expires_at <= clock_timestamp()`.as('over'),
      'r.version',
      'r.expires_at',
      's.price_minor',
      's.currency',
      's.row_count',
      's.seats_per_row',
      's.first_seat_no',
    ])
    .where(sql<boolean>`r.id = any(${[...ids]}::uuid[])`)
    .orderBy('r.id')
  if (lock) query = query.forUpdate('r')
  return (await query.execute()).map((row) => ({
    id: row.id,
    eventId: row.event_id,
    eventName: row.event_name,
    startsAt: row.starts_at,
    userId: row.user_id,
    section: row.section,
    sectionNo: row.section_no,
    quantity: row.quantity,
    seatNos: row.seat_nos,
    seats: row.seat_nos?.map((seatNo) =>
      seatLabel(
        {
          sectionNo: row.section_no,
          name: row.section,
          seating: {
            rows: row.row_count!,
            seatsPerRow: row.seats_per_row!,
            firstSeatNo: row.first_seat_no!,
          },
        },
        seatNo,
      ),
    ),
    state: row.state,
    over: row.over,
    version: row.version,
    expiresAt: row.expires_at,
    priceMinor: Number(row.price_minor),
    currency: row.currency,
  }))
}

/** What every event of a reservation says. */
export const reservationData = (r: Reservation) => ({
  reservation_id: r.id,
  event_id: r.eventId,
  user_id: r.userId,
  section: r.section,
  quantity: r.quantity,
  ...(r.seats && { seats: r.seats }),
})

export type ReservationBody = {
  reservation_id: string
  event_id: string
  status: ReservationState
  section: string
  quantity: number
  seats?: string[]
  expires_at: string
  order_id?: string
  total?: Money
  tickets?: { ticket_id: string; seat?: string; code: string }[]
}

/** The reservation as `GET /reservations/{id}` shows it to its owner; undefined to anybody else. */
export async function readReservation(
  db: Db,
  id: string,
  userId: string,
): Promise<ReservationBody | undefined> {
  const [found] = await readReservations(db, [id], false)
  if (found === undefined || found.userId !== userId) return undefined
  const body = toBody(found)
  if (found.state !== 'confirmed') return body
  const tickets = await db
    .selectFrom('orders as o')
    .innerJoin('tickets as t', 't.order_id', 'o.id')
    .leftJoin('seats as s', (join) =>
      join.onRef('s.event_id', '=', 't.event_id').onRef('s.seat_no', '=', 't.seat_no'),
    )
    .select(['o.id as order_id', 'o.total_minor', 'o.currency', 't.id', 's.label', 't.code'])
    .where('o.reservation_id', '=', id)
    .orderBy('t.seat_no')
    .orderBy('t.id')
    .execute()
  // A confirmed reservation has its order, and that at least one ticket, since one transaction.
  const order = tickets[0]!
  return {
    ...body,
    order_id: order.order_id,
    total: { amount_minor: Number(order.total_minor), currency: order.currency },
    tickets: tickets.map((t) => ({
      ticket_id: t.id,
      ...(t.label !== null && { seat: t.label }),
      code: t.code,
    })),
  }
}

export const toBody = (r: Reservation): ReservationBody => ({
  reservation_id: r.id,
  event_id: r.eventId,
  status: r.over ? 'expired' : r.state,
  section: r.section,
  quantity: r.quantity,
  ...(r.seats && { seats: r.seats }),
  expires_at: r.expiresAt.toISOString(),
})
