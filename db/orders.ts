// Confirmed holds: the order, one ticket a place, and the events that tell of them, in the transaction that marks the
// places sold. tickets(event_id, seat_no) is unique: a second sale of a seat fails whatever seats.state says.

import { randomBytes } from 'node:crypto'
import { sql } from 'kysely'
import { v7 as uuidv7 } from 'uuid'
import { AppError } from '../domain/errors.ts'
import type { NewEvent } from '../domain/events.ts'
import { writeEvents } from './outbox.ts'
import { type Reservation, reservationData } from './reservations.ts'
import type { Tx } from './schema.ts'
import { type Change, expired, lockHeld, movePlaces, settle } from './settlements.ts'

export type Ticket = { id: string; seatNo: number | null; seat?: string | undefined; code: string }

export type Order = {
  id: string
  reservation: Reservation
  totalMinor: number
  tickets: Ticket[]
}

/** Makes an order of each held reservation whose time is not over. */
export async function confirmReservations(
  tx: Tx,
  changes: readonly Change[],
): Promise<(Order | AppError)[]> {
  const locked = await lockHeld(tx, changes)
  const held = locked.filter((r): r is Reservation => !(r instanceof AppError))
  if (held.length === 0) return locked as AppError[]
  const settled = await settle(
    tx,
    held.map((r) => r.id),
    'confirmed',
  )
  const orders = new Map(
    held.filter((r) => settled.has(r.id)).map((r) => [r.id, toOrder(r)] as const),
  )
  await movePlaces(
    tx,
    [...orders.values()].map((order) => order.reservation),
    'sold',
  )
  await insertOrders(tx, [...orders.values()])
  await writeEvents(
    tx,
    locked.flatMap((r, i) => {
      const order = r instanceof AppError ? undefined : orders.get(r.id)
      if (order === undefined) return []
      return orderEvents(order, settled.get(order.reservation.id)!.version, changes[i]!)
    }),
  )
  return locked.map((r) => (r instanceof AppError ? r : (orders.get(r.id) ?? expired(r))))
}

function toOrder(reservation: Reservation): Order {
  return {
    id: uuidv7(),
    reservation: { ...reservation, state: 'confirmed' },
    totalMinor: reservation.priceMinor * reservation.quantity,
    tickets: Array.from({ length: reservation.quantity }, (_, i) => ({
      id: uuidv7(),
      seatNo: reservation.seatNos?.[i] ?? null,
      seat: reservation.seats?.[i],
      code: ticketCode(),
    })),
  }
}

/** 80 random bits in Crockford's base 32: what the door scans, not to be guessed. */
function ticketCode(): string {
  const alphabet = '0123456789ABCDEFGHJKMNPQRSTVWXYZ'
  let bits = BigInt(`0x${randomBytes(10).toString('hex')}`)
  let code = ''
  for (let i = 0; i < 16; i++) {
    code = alphabet[Number(bits & 31n)] + code
    bits >>= 5n
  }
  return code
}

async function insertOrders(tx: Tx, orders: readonly Order[]): Promise<void> {
  if (orders.length === 0) return
  const rows = orders.map(({ id, reservation, totalMinor }) => ({
    id,
    reservation_id: reservation.id,
    event_id: reservation.eventId,
    user_id: reservation.userId,
    quantity: reservation.quantity,
    total_minor: totalMinor,
    currency: reservation.currency,
  }))
  const tickets = orders.flatMap((order) =>
    order.tickets.map((ticket) => ({
      id: ticket.id,
      order_id: order.id,
      event_id: order.reservation.eventId,
      section_no: order.reservation.sectionNo,
      seat_no: ticket.seatNo,
      code: ticket.code,
    })),
  )
  await sql`
    insert into orders (id, reservation_id, event_id, user_id, quantity, total_minor, currency)
    select id, reservation_id, event_id, user_id, quantity, total_minor, currency
    from json_to_recordset(${JSON.stringify(rows)}::json) as r (id uuid, reservation_id uuid,
      event_id uuid, user_id text, quantity integer, total_minor bigint, currency text)`.execute(tx)
  await sql`
    insert into tickets (id, order_id, event_id, section_no, seat_no, code)
    select id, order_id, event_id, section_no, seat_no, code
    from json_to_recordset(${JSON.stringify(tickets)}::json) as t (id uuid, order_id uuid,
      event_id uuid, section_no integer, seat_no integer, code text)`.execute(tx)
}

function orderEvents(order: Order, version: number, change: Change): NewEvent[] {
  const { reservation: r } = order
  const { requestId, traceparent } = change
  const data = {
    ...reservationData(r),
    order_id: order.id,
    event_name: r.eventName,
    starts_at: r.startsAt.toISOString(),
    total: { amount_minor: order.totalMinor, currency: r.currency },
  }
  return [
    {
      messageId: uuidv7(),
      type: 'reservation.confirmed',
      subject: r.id,
      sequence: version,
      requestId,
      traceparent,
      data: { ...reservationData(r), order_id: order.id },
    },
    {
      messageId: uuidv7(),
      type: 'order.completed',
      subject: order.id,
      sequence: 1,
      requestId,
      traceparent,
      data,
    },
    {
      messageId: uuidv7(),
      type: 'ticket.generated',
      subject: order.id,
      sequence: 2,
      requestId,
      traceparent,
      data: {
        ...data,
        tickets: order.tickets.map(({ id, seat, code }) => ({
          ticket_id: id,
          ...(seat !== undefined && { seat }),
          code,
        })),
      },
    },
  ]
}
