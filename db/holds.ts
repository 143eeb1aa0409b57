// Holds for one event, a group in one SERIALIZABLE transaction, each with its own answer. A hold that found too few
// places because of somebody's lock is `undecided`, and its caller asks again with `patient`, which waits for the
// locks. Nothing is oversold even if this code is wrong: a seat row has one holder, a standing counter its CHECK.

import { sql } from 'kysely'
import { v7 as uuidv7 } from 'uuid'
import { AppError } from '../domain/errors.ts'
import { findSeat, type Place, seatLabel, type Wish } from '../domain/seats.ts'
import { type Hall, readHall } from './events.ts'
import { writeEvents } from './outbox.ts'
import { allocateLocked, type LockOptions } from './places.ts'
import type { Tx } from './schema.ts'

export type Hold = {
  userId: string
  requestId?: string | undefined
  traceparent?: string | undefined
  /** Name of a section; none: the best that has room. */
  section?: string | undefined
} & ({ quantity: number } | { seats: readonly string[] })

export type Held = {
  reservationId: string
  eventId: string
  section: string
  quantity: number
  /** Labels; undefined in a standing section. */
  seats?: string[] | undefined
  expiresAt: Date
}

export type HoldOutcome = Held | AppError | 'undecided'

export type HoldOptions = LockOptions & {
  ttlSeconds: number
  /** Of somebody who has had his turn in the waiting room, and has paid. */
  isPaid?: boolean
}

/** Takes places for each hold in order and writes their reservations and events. */
export async function holdPlaces(
  tx: Tx,
  holds: readonly Hold[],
  options: HoldOptions,
): Promise<HoldOutcome[]> {
  const hall = await readHall(tx, options.eventId)
  if (hall === undefined) {
    return holds.map(() => new AppError('EVENT_NOT_FOUND', `there is no event ${options.eventId}`))
  }
  const needsTurn = hall.waitingRoom && options.isPaid !== true
  const admitted = needsTurn ? await readWindows(tx, holds, options.eventId) : undefined
  const wishes = holds.map((hold) =>
    admitted && !admitted.has(hold.userId)
      ? new AppError(
          'QUEUE_TOKEN_REQUIRED',
          'this event has a waiting room: join its queue and wait for your turn',
        )
      : toWish(hold, hall),
  )
  const asked = wishes.filter((wish): wish is Wish => !(wish instanceof AppError))
  const places = await allocateLocked(tx, asked, hall, options)
  let next = 0
  const outcomes = wishes.map((wish, i) => {
    const place = wish instanceof AppError ? wish : places[next++]!
    return place === 'taken' ? unavailable(holds[i]!) : place
  })
  return await writeHolds(tx, holds, outcomes, hall, options)
}

function toWish(hold: Hold, hall: Hall): Wish | AppError {
  const named = hall.sections.find(({ name }) => name === hold.section)
  if (hold.section !== undefined && named === undefined) {
    const known = hall.sections.map(({ name }) => name).join(', ')
    return new AppError(
      'SECTION_NOT_FOUND',
      `the event has no section ${JSON.stringify(hold.section)}; it has: ${known}`,
    )
  }
  if ('quantity' in hold) return { sectionNo: named?.sectionNo, quantity: hold.quantity }
  const found = hold.seats.map((label) => findSeat(hall.sections, label))
  const unknown = hold.seats.filter((_, i) => found[i] === undefined)
  if (unknown.length > 0) return noSuchSeats(unknown)
  const sectionNos = new Set(found.map((seat) => seat!.section.sectionNo))
  const [sectionNo] = sectionNos
  if (sectionNos.size > 1 || (named && named.sectionNo !== sectionNo)) {
    return new AppError(
      'VALIDATION_FAILED',
      'the seats of one reservation are all of one section: make one reservation a section',
    )
  }
  return { sectionNo: sectionNo!, seatNos: found.map((seat) => seat!.seatNo) }
}

const noSuchSeats = (seats: string[]) =>
  new AppError('SEATS_UNAVAILABLE', `the event has no such seats: ${seats.join(', ')}`, { seats })

const unavailable = (hold: Hold) =>
  'seats' in hold
    ? new AppError('SEATS_UNAVAILABLE', 'some of these seats are taken')
    : new AppError(
        'SOLD_OUT',
        hold.quantity === 1
          ? 'no place is left'
          : `no ${hold.quantity} places are left in one section`,
      )

async function readWindows(tx: Tx, holds: readonly Hold[], eventId: string) {
  const rows = await tx
    .selectFrom('purchase_windows')
    .select('user_id')
    .where('event_id', '=', eventId)
    .where('user_id', 'in', [...new Set(holds.map((hold) => hold.userId))])
    .where(sql<boolean>`expires_at > clock_timestamp()`)
    .execute()
  return new Set(rows.map((row) => row.user_id))
}

/** Writes the places that were given: seats or counters, reservations, events. */
async function writeHolds(
  tx: Tx,
  holds: readonly Hold[],
  places: readonly (Place | AppError | 'undecided')[],
  hall: Hall,
  { eventId, ttlSeconds }: HoldOptions,
): Promise<HoldOutcome[]> {
  const given = places.flatMap((place, i) =>
    place instanceof AppError || place === 'undecided'
      ? []
      : [{ place, hold: holds[i]!, id: uuidv7() }],
  )
  if (given.length === 0) return places as (AppError | 'undecided')[]
  const rows = given.map(({ place, hold, id }) => ({
    id,
    user_id: hold.userId,
    section_no: place.sectionNo,
    quantity: place.quantity,
    seat_nos: place.seatNos ? `{${place.seatNos.join(',')}}` : null,
  }))
  const taken = given.flatMap(({ place, id }) =>
    (place.seatNos ?? []).map((seatNo) => ({ seatNo, id })),
  )
  const expiresAt = await insertReservations(tx, rows, eventId, ttlSeconds)
  await markSeats(tx, taken, eventId)
  await countStanding(tx, given, eventId)
  const held = given.map(({ place, id }): Held => {
    const section = hall.sections.find((s) => s.sectionNo === place.sectionNo)!
    const seats = place.seatNos?.map((seatNo) => seatLabel(section, seatNo))
    return {
      reservationId: id,
      eventId,
      section: section.name,
      quantity: place.quantity,
      seats,
      expiresAt,
    }
  })
  await writeEvents(
    tx,
    held.map((h, i) => ({
      messageId: uuidv7(),
      type: 'reservation.held',
      subject: h.reservationId,
      sequence: 1,
      requestId: given[i]!.hold.requestId,
      traceparent: given[i]!.hold.traceparent,
      data: {
        reservation_id: h.reservationId,
        event_id: eventId,
        user_id: given[i]!.hold.userId,
        section: h.section,
        quantity: h.quantity,
        ...(h.seats && { seats: h.seats }),
        expires_at: h.expiresAt.toISOString(),
      },
    })),
  )
  let next = 0
  return places.map((place) =>
    place instanceof AppError || place === 'undecided' ? place : held[next++]!,
  )
}

/** One time for the group, in whole ms so that what the buyer is told is what is stored. */
async function insertReservations(tx: Tx, rows: object[], eventId: string, ttlSeconds: number) {
  const { rows: inserted } = await sql<{ expires_at: Date }>`
    insert into reservations
      (id, event_id, user_id, section_no, quantity, seat_nos, created_at, expires_at)
    select r.id, ${eventId}, r.user_id, r.section_no, r.quantity, r.seat_nos::integer[],
      t.now, t.now + make_interval(secs => ${ttlSeconds})
    from json_to_recordset(${JSON.stringify(rows)}::json) as r
        (id uuid, user_id text, section_no integer, quantity integer, seat_nos text),
      (select date_trunc('milliseconds', clock_timestamp()) as now offset 0) as t
    returning expires_at`.execute(tx)
  return inserted[0]!.expires_at
}

async function markSeats(tx: Tx, taken: { seatNo: number; id: string }[], eventId: string) {
  if (taken.length === 0) return
  const { numAffectedRows } = await sql`
    update seats set state = 'held', reservation_id = t.id
    from unnest(${taken.map((t) => t.seatNo)}::integer[], ${taken.map((t) => t.id)}::uuid[])
      as t (seat_no, id)
    where seats.event_id = ${eventId} and seats.seat_no = t.seat_no and seats.state = 'free'`.execute(
    tx,
  )
  if (numAffectedRows !== BigInt(taken.length)) throw new Error('a locked free seat was not free')
}

async function countStanding(tx: Tx, given: readonly { place: Place }[], eventId: string) {
  const held = new Map<number, number>()
  for (const { place } of given) {
    if (place.seatNos) continue
    held.set(place.sectionNo, (held.get(place.sectionNo) ?? 0) + place.quantity)
  }
  for (const [sectionNo, quantity] of held) {
    await tx
      .updateTable('standing_sections')
      .set({ held: sql`held + ${quantity}` })
      .where('event_id', '=', eventId)
      .where('section_no', '=', sectionNo)
      .execute()
  }
}
