// Locks free places of one event and has domain/seats.ts give them out. Seats are locked in seat order through the index
// seats_free, with SKIP LOCKED so that groups of several processes take disjoint seats. A seat that is only locked is
// not sold: a wish that found too few because of somebody's lock is `undecided`.

import { sql } from 'kysely'
import { allocate, type Free, isAdjacent, type Place, type Wish } from '../domain/seats.ts'
import type { Hall } from './events.ts'
import type { Tx } from './schema.ts'

export type LockOptions = {
  eventId: string
  /** Wait for locked seats instead of passing them over. */
  patient: boolean
}

/** Seats locked beyond those asked for, so that neighbours can be found. */
const slack = 64
/** While somebody sits alone, so many times more are locked. */
const growth = 4

/** Gives each wish its place; undecided where others' locks hid what it needs. */
export async function allocateLocked(
  tx: Tx,
  wishes: readonly Wish[],
  hall: Hall,
  options: LockOptions,
): Promise<(Place | 'taken' | 'undecided')[]> {
  const seats = new Set<number>()
  const named = wishes.flatMap((wish) => ('seatNos' in wish ? wish.seatNos : []))
  const hidden = await lockNamed(tx, named, seats, options)
  const windows = openWindows(wishes, hall, named.length)
  const standing = await lockStanding(tx, wishes, hall, options)
  for (;;) {
    for (const window of windows.values()) await widen(tx, window, seats, options)
    const places = allocate(wishes, toFree(hall, seats, standing))
    const settled =
      [...windows.values()].every((window) => window.exhausted) ||
      places.every((place, i) => 'seatNos' in wishes[i]! || isTogether(place, hall))
    if (!settled) continue
    const mayChange = (wish: Wish) =>
      'seatNos' in wish
        ? wish.seatNos.some((seatNo) => hidden.has(seatNo))
        : windows.get(wish.sectionNo)?.hides === true
    return places.map((place, i) => place ?? (mayChange(wishes[i]!) ? 'undecided' : 'taken'))
  }
}

const isTogether = (place: Place | undefined, hall: Hall) =>
  place !== undefined &&
  isAdjacent(place, hall.sections.find((s) => s.sectionNo === place.sectionNo)!)

function toFree(
  hall: Hall,
  seats: ReadonlySet<number>,
  standing: ReadonlyMap<number, number>,
): Free {
  const ascending = [...seats].sort((a, b) => a - b)
  const bySection = new Map<number, number[]>()
  for (const { sectionNo, seating } of hall.sections) {
    if (seating === undefined) continue
    const end = seating.firstSeatNo + seating.rows * seating.seatsPerRow
    bySection.set(
      sectionNo,
      ascending.filter((seatNo) => seatNo >= seating.firstSeatNo && seatNo < end),
    )
  }
  return { sections: hall.sections, seats: bySection, standing: new Map(standing) }
}

/** Locks the named seats that are free into `seats`; gives those that are free but locked by others. */
async function lockNamed(
  tx: Tx,
  named: readonly number[],
  seats: Set<number>,
  options: LockOptions,
): Promise<ReadonlySet<number>> {
  if (named.length === 0) return seats
  const { rows } = await sql<{ seat_no: number }>`
    select seat_no from seats
    where event_id = ${options.eventId} and seat_no = any(${named}) and state = 'free'
    order by seat_no for update ${skipLocked(options)}`.execute(tx)
  for (const row of rows) seats.add(row.seat_no)
  const missed = named.filter((seatNo) => !seats.has(seatNo))
  if (missed.length === 0) return new Set()
  const free = await tx
    .selectFrom('seats')
    .select('seat_no')
    .where('event_id', '=', options.eventId)
    .where('seat_no', 'in', missed)
    .where('state', '=', 'free')
    .execute()
  return new Set(free.map((row) => row.seat_no))
}

const skipLocked = (options: LockOptions) => (options.patient ? sql`` : sql`skip locked`)

/** The best free seats of a section, or of all, locked from the front so far as is needed. */
type Window = {
  after: number
  to: number
  limit: number
  exhausted: boolean
  /** Found exhausted while others' locks hid free seats. */
  hides: boolean
}

/** A window for each section that is asked for without naming seats; undefined: any section. */
function openWindows(wishes: readonly Wish[], hall: Hall, named: number) {
  const windows = new Map<number | undefined, Window>()
  for (const wish of wishes) {
    if ('seatNos' in wish) continue
    const open = windows.get(wish.sectionNo)
    if (open) open.limit += wish.quantity
    else {
      const seatings = hall.sections.flatMap(({ sectionNo, seating }) =>
        seating && (wish.sectionNo ?? sectionNo) === sectionNo ? [seating] : [],
      )
      const [first, last] = [seatings[0], seatings.at(-1)]
      if (first === undefined || last === undefined) continue
      windows.set(wish.sectionNo, {
        after: first.firstSeatNo - 1,
        to: last.firstSeatNo + last.rows * last.seatsPerRow - 1,
        limit: wish.quantity + named + slack,
        exhausted: false,
        hides: false,
      })
    }
  }
  return windows
}

async function widen(tx: Tx, window: Window, seats: Set<number>, options: LockOptions) {
  if (window.exhausted) return
  const { after, to, limit } = window
  const { rows } = await sql<{ seat_no: number }>`
    select seat_no from seats
    where event_id = ${options.eventId} and state = 'free'
      and seat_no > ${after} and seat_no <= ${to}
    order by seat_no limit ${limit} for update ${skipLocked(options)}`.execute(tx)
  for (const row of rows) seats.add(row.seat_no)
  window.exhausted = rows.length < limit
  window.after = rows.at(-1)?.seat_no ?? after
  window.limit = limit * growth
  if (window.exhausted && !options.patient) {
    const { count } = await tx
      .selectFrom('seats')
      .select(({ fn }) => fn.countAll<string>().as('count'))
      .where('event_id', '=', options.eventId)
      .where('state', '=', 'free')
      .where('seat_no', '>', after)
      .where('seat_no', '<=', to)
      .executeTakeFirstOrThrow()
    window.hides = Number(count) > rows.length
  }
}

/** Locks the counters of the standing sections that may be needed; gives what is free in each. */
async function lockStanding(tx: Tx, wishes: readonly Wish[], hall: Hall, options: LockOptions) {
  const wanted = hall.sections.filter(
    ({ sectionNo, seating }) =>
      seating === undefined &&
      wishes.some((wish) => 'quantity' in wish && (wish.sectionNo ?? sectionNo) === sectionNo),
  )
  if (wanted.length === 0) return new Map<number, number>()
  const rows = await tx
    .selectFrom('standing_sections')
    .select(['section_no', sql<number>`capacity - held - sold`.as('free')])
    .where('event_id', '=', options.eventId)
    .where(
      'section_no',
      'in',
      wanted.map(({ sectionNo }) => sectionNo),
    )
    .orderBy('section_no')
    .forUpdate()
    .execute()
  return new Map(rows.map((row) => [row.section_no, row.free]))
}
