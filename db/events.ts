// Events with their sections and seats: made once, read often, never changed. Seats are numbered through the event,
// the best section's first, so that a lower number is always the better seat.

import { sql } from 'kysely'
import { v7 as uuidv7 } from 'uuid'
import type { Section } from '../domain/seats.ts'
import type { Db, Tx } from './schema.ts'

export type NewSection = {
  name: string
  price_minor: number
  currency: string
} & ({ rows: number; seats_per_row: number } | { capacity: number })

export type NewEvent = {
  name: string
  starts_at: string
  waiting_room: boolean
  /** Best first; names differ. */
  sections: readonly NewSection[]
}

/** Inserts the event with every seat, all free. Gives its id. */
export async function createEvent(tx: Tx, event: NewEvent): Promise<string> {
  const id = uuidv7()
  await tx
    .insertInto('events')
    .values({
      id,
      name: event.name,
      starts_at: new Date(event.starts_at),
      waiting_room: event.waiting_room,
    })
    .execute()
  let nextSeatNo = 1
  const sections = event.sections.map((section, i) => {
    const seated = 'rows' in section
    const capacity = seated ? section.rows * section.seats_per_row : section.capacity
    const row = {
      event_id: id,
      section_no: i + 1,
      name: section.name,
      row_count: seated ? section.rows : null,
      seats_per_row: seated ? section.seats_per_row : null,
      first_seat_no: seated ? nextSeatNo : null,
      capacity,
      price_minor: section.price_minor,
      currency: section.currency,
    }
    if (seated) nextSeatNo += capacity
    return row
  })
  await tx.insertInto('sections').values(sections).execute()
  await sql`
    insert into seats (event_id, seat_no, section_no, label)
    select event_id, first_seat_no + i, section_no,
      name || '-' || (i / seats_per_row + 1) || '-' || (i % seats_per_row + 1)
    from sections, generate_series(0, capacity - 1) as i
    where event_id = ${id} and row_count is not null`.execute(tx)
  await sql`
    insert into standing_sections (event_id, section_no, capacity)
    select event_id, section_no, capacity from sections
    where event_id = ${id} and row_count is null`.execute(tx)
  return id
}

/**
 * Thousands of new seats mislead the planner until their table is analyzed: worth it after a large event. Waits for
 * nobody: a table that a VACUUM has locked is left to autovacuum.
 */
export async function analyzeSeats(db: Db): Promise<void> {
  await sql`analyze (skip_locked) seats, sections, standing_sections`.execute(db)
}

export type EventBody = {
  event_id: string
  name: string
  starts_at: string
  waiting_room: boolean
  sections: { name: string; capacity: number; available: number }[]
}

/** The event as `GET /events/{id}` shows it. `available` counts what is neither held nor sold. */
export async function readEvent(db: Db, id: string): Promise<EventBody | undefined> {
  const event = await db
    .selectFrom('events')
    .select(['id', 'name', 'starts_at', 'waiting_room'])
    .where('id', '=', id)
    .executeTakeFirst()
  if (event === undefined) return undefined
  const { rows } = await sql<{ name: string; capacity: number; available: number }>`
    select s.name, s.capacity,
      coalesce(st.capacity - st.held - st.sold, f.free, 0)::int as available
    from sections s
    left join standing_sections st using (event_id, section_no)
    left join (
      select section_no, count(*) as free from seats
      where event_id = ${id} and state = 'free' group by section_no
    ) f using (section_no)
    where s.event_id = ${id}
    order by s.section_no`.execute(db)
  return {
    event_id: event.id,
    name: event.name,
    starts_at: event.starts_at.toISOString(),
    waiting_room: event.waiting_room,
    sections: rows,
  }
}

export type Hall = {
  waitingRoom: boolean
  sections: Section[]
}

/** What a hold needs to know of an event. */
export async function readHall(tx: Tx, id: string): Promise<Hall | undefined> {
  const rows = await tx
    .selectFrom('events as e')
    .innerJoin('sections as s', 's.event_id', 'e.id')
    .select([
      'e.waiting_room',
      's.section_no',
      's.name',
      's.row_count',
      's.seats_per_row',
      's.first_seat_no',
    ])
    .where('e.id', '=', id)
    .orderBy('s.section_no')
    .execute()
  if (rows[0] === undefined) return undefined
  return {
    waitingRoom: rows[0].waiting_room,
    sections: rows.map((row) => ({
      sectionNo: row.section_no,
      name: row.name,
      seating:
        row.row_count === null
          ? undefined
          : {
              rows: row.row_count,
              seatsPerRow: row.seats_per_row!,
              firstSeatNo: row.first_seat_no!,
            },
    })),
  }
}
