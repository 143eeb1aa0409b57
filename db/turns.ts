// Turns at the counters of standing sections. Two SERIALIZABLE transactions that write one row fail one another however
// they wait for its lock: the snapshot of the one that waited is older than the other's commit (measured: under 170 holds
// and confirms a second on one event four writes of a hundred gave up after six attempts). LOCK TABLE alone is granted
// before a snapshot is taken, so that whoever waited sees what was committed meanwhile. An event has one of 32 tables by
// its id; two that share one wait for each other, and no more. Seats do without: those are locked with SKIP LOCKED.

import { sql } from 'kysely'
import type { Db, Tx } from './schema.ts'

const tables = 32

/** As the first thing in a transaction, before its snapshot: waits until no other writes the counters of these events. */
export async function takeTurns(tx: Tx, eventIds: Iterable<string>): Promise<void> {
  const names = [...new Set([...eventIds].map(tableOf))].sort()
  if (names.length === 0) return
  // In one order, so that nobody waits for somebody who waits for him.
  await sql`lock table ${sql.join(names.map((name) => sql.table(name)))} in exclusive mode`.execute(
    tx,
  )
}

/** By the last of its random bits. */
const tableOf = (eventId: string): string =>
  `turn_${String(Number.parseInt(eventId.slice(-2), 16) % tables).padStart(2, '0')}`

/** Whether an event has standing sections; they are made with it and stay. An unknown event has none, for now. */
export async function isStanding(db: Db, eventId: string): Promise<boolean> {
  const known = standing.get(eventId)
  if (known !== undefined) return known
  const { rows } = await sql<{ known: boolean; standing: boolean }>`
    select exists (select from events where id = ${eventId}) as known,
      exists (select from standing_sections where event_id = ${eventId}) as standing`.execute(db)
  const is = rows[0]?.standing === true
  if (rows[0]?.known) {
    if (standing.size >= knownMax) standing.clear()
    standing.set(eventId, is)
  }
  return is
}

const standing = new Map<string, boolean>()
const knownMax = 10_000

/** The events in whose standing sections these reservations are. */
export async function standingEventsOf(
  db: Db,
  reservationIds: readonly string[],
): Promise<string[]> {
  const { rows } = await sql<{ event_id: string }>`
    select distinct event_id from reservations
    where id = any(${[...new Set(reservationIds)]}::uuid[]) and seat_nos is null`.execute(db)
  return rows.map((row) => row.event_id)
}
