// What an event sold and what the fleet did about it, counted from the tables: for the demo, the bench, the operator.

import { sql } from 'kysely'
import type { Db } from './schema.ts'

export type Sales = {
  capacity: number
  /** Places. */
  sold: number
  held: number
  /** Reservations. */
  reservations: number
  confirmed: number
  cancelled: number
  expired: number
  /** Seats of reservations that expired or were cancelled, each once, and those of them that were sold after all. */
  given_back: number
  resold: number
}

export async function readSales(db: Db, eventId: string): Promise<Sales> {
  const { rows } = await sql<Sales>`
    with r as (select * from reservations where event_id = ${eventId}),
      back as (select distinct n from r, unnest(seat_nos) as n where state in ('cancelled', 'expired'))
    select (select sum(capacity) from sections where event_id = ${eventId})::int as capacity,
      coalesce(sum(quantity) filter (where state = 'confirmed'), 0)::int as sold,
      coalesce(sum(quantity) filter (where state = 'held'), 0)::int as held,
      count(*)::int as reservations,
      count(*) filter (where state = 'confirmed')::int as confirmed,
      count(*) filter (where state = 'cancelled')::int as cancelled,
      count(*) filter (where state = 'expired')::int as expired,
      (select count(*) from back)::int as given_back,
      (select count(*) from back join seats s on s.event_id = ${eventId} and s.seat_no = back.n
        where s.state = 'sold')::int as resold
    from r`.execute(db)
  return rows[0]!
}

export type Relayed = { written: number; relayed: number }

/** Events in the outbox, and those that the relay has handed on. */
export async function readRelayed(db: Db): Promise<Relayed> {
  const { rows } = await sql<Relayed>`
    select (select count(*) from outbox)::int as written,
      (select sum(relayed) from outbox_cursors)::int as relayed`.execute(db)
  return rows[0]!
}
