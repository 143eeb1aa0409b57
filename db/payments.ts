// What becomes of a payment: money that was taken has an order or is due back, exactly one of them, decided once, in one
// SERIALIZABLE transaction with the order or the event payment.refund_due. Webhooks come twice, late and in any order: the
// payment's row says what was decided. Lock order: the payment, then as db/settlements.ts.

import { sql } from 'kysely'
import { v7 as uuidv7 } from 'uuid'
import { AppError } from '../domain/errors.ts'
import type { Money, RefundReason } from '../domain/events.ts'
import type { PaymentJob } from '../domain/payments.ts'
import { holdPlaces } from './holds.ts'
import { confirmReservations } from './orders.ts'
import { writeEvents } from './outbox.ts'
import { type Reservation, readReservations } from './reservations.ts'
import type { Db, Tx } from './schema.ts'
import { cancelReservations, expireReservation } from './settlements.ts'
import { transaction } from './transaction.ts'
import { standingEventsOf, takeTurns } from './turns.ts'

export type PaymentOutcome =
  /** late: its hold was over, and places were taken again. */
  | { is: 'confirmed'; orderId: string; late: boolean }
  | { is: 'refund_due'; reason: RefundReason }
  /** cancelled: that gave the places back. */
  | { is: 'failed'; cancelled: boolean }
  /** It was decided before. */
  | { is: 'known' }

type Decided = Exclude<PaymentOutcome, { is: 'known' }>

/**
 * Settles all in one transaction: by reservation, so that two who settle, or confirm, do not wait for each other in a
 * ring, and those of one reservation in the order given. The outcomes stand as the payments do.
 * @throws AppError LOCK_TIMEOUT: nothing was decided
 */
export async function settlePayments(
  db: Db,
  payments: readonly PaymentJob[],
): Promise<PaymentOutcome[]> {
  const ids = payments.flatMap(({ reservation_id: id }) => (isUuid(id) ? [id] : []))
  const standing = await standingEventsOf(db, ids)
  return await transaction(db, async (tx) => {
    await takeTurns(tx, standing)
    const outcomes: PaymentOutcome[] = []
    for (const i of byReservation(payments)) outcomes[i] = await settlePayment(tx, payments[i]!)
    return outcomes
  })
}

/** Where they stand, sorted; of equals the first first. */
function byReservation(payments: readonly PaymentJob[]): number[] {
  const ids = payments.map(({ reservation_id: id }) => id.toLowerCase())
  return [...ids.keys()].sort((a, b) => (ids[a]! < ids[b]! ? -1 : ids[a]! > ids[b]! ? 1 : a - b))
}

const isUuid = (text: string): boolean =>
  /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/i.test(text)

async function settlePayment(tx: Tx, payment: PaymentJob): Promise<PaymentOutcome> {
  const { provider, payment_id } = payment
  const before = await tx
    .selectFrom('payments')
    .select('state')
    .where('provider', '=', provider)
    .where('id', '=', payment_id)
    .forUpdate()
    .executeTakeFirst()
  // What was taken stays taken. One that failed may be paid after all, by another card.
  if (before !== undefined && (before.state !== 'failed' || payment.outcome === 'failed')) {
    return { is: 'known' }
  }
  const reservation = await lockReservation(tx, payment.reservation_id)
  const outcome =
    payment.outcome === 'failed'
      ? await giveBack(tx, payment, reservation)
      : await settlePaid(tx, payment, reservation)
  await writePayment(tx, payment, outcome)
  return outcome
}

async function lockReservation(tx: Tx, id: string): Promise<Reservation | undefined> {
  return isUuid(id) ? (await readReservations(tx, [id], true))[0] : undefined
}

async function giveBack(
  tx: Tx,
  payment: PaymentJob,
  reservation: Reservation | undefined,
): Promise<Decided> {
  if (reservation === undefined) return { is: 'failed', cancelled: false }
  const [cancelled] = await cancelReservations(tx, [changeOf(payment, reservation)])
  return { is: 'failed', cancelled: !(cancelled instanceof AppError) }
}

async function settlePaid(
  tx: Tx,
  payment: PaymentJob,
  reservation: Reservation | undefined,
): Promise<Decided> {
  const refund = async (reason: RefundReason): Promise<Decided> => {
    await writeRefund(tx, payment, reason)
    return { is: 'refund_due', reason }
  }
  if (reservation === undefined) return await refund('unknown_reservation')
  const { priceMinor, quantity, currency } = reservation
  const { amount_minor, currency: paidIn } = totalOf(payment)
  if (amount_minor !== priceMinor * quantity || paidIn !== currency) {
    return await refund('wrong_amount')
  }
  const others = await readOthers(tx, payment)
  if (others.paid) return await refund('paid_already')
  if (reservation.state === 'confirmed') {
    // Confirmed without a payment: this is the one.
    const orderId = await readOrder(tx, reservation.id)
    return { is: 'confirmed', orderId, late: false }
  }
  const orderId = await confirmInTime(tx, payment, reservation)
  if (orderId !== undefined) return { is: 'confirmed', orderId, late: false }
  // Given back by whoever held it, and not because this or another payment of it had failed.
  if (reservation.state === 'cancelled' && !others.cancelled) return await refund('cancelled')
  const late = await takeAgain(tx, payment, reservation)
  return late === undefined
    ? await refund('places_gone')
    : { is: 'confirmed', orderId: late, late: true }
}

/** Undefined: it is not held any more. One whose time is over is expired then, and its places free. */
async function confirmInTime(
  tx: Tx,
  payment: PaymentJob,
  reservation: Reservation,
): Promise<string | undefined> {
  if (reservation.state !== 'held') return undefined
  const [order] = await confirmReservations(tx, [changeOf(payment, reservation)])
  if (order !== undefined && !(order instanceof AppError)) return order.id
  await expireReservation(tx, reservation)
  return undefined
}

/** Enough to be confirmed in this transaction. */
const againSeconds = 600

/** The same places if they are free, else others of the section, which cost the same. Undefined: there are none. */
async function takeAgain(
  tx: Tx,
  payment: PaymentJob,
  { id, userId, eventId, section, seats, quantity }: Reservation,
): Promise<string | undefined> {
  const { request_id: requestId, traceparent } = payment
  const options = { eventId, ttlSeconds: againSeconds, patient: true, isPaid: true }
  for (const wish of [...(seats ? [{ seats }] : []), { quantity }]) {
    const [held] = await holdPlaces(
      tx,
      [{ userId, section, requestId, traceparent, ...wish }],
      options,
    )
    if (held === 'undecided') {
      throw new AppError('LOCK_TIMEOUT', `the places of ${id} are being bought just now`)
    }
    if (held === undefined || held instanceof AppError) continue
    const again = { reservationId: held.reservationId, userId, requestId, traceparent }
    const [order] = await confirmReservations(tx, [again])
    if (order === undefined || order instanceof AppError) {
      throw new Error('places that were just held cannot be confirmed', { cause: order })
    }
    return order.id
  }
  return undefined
}

const changeOf = (payment: PaymentJob, { id, userId }: Reservation) => ({
  reservationId: id,
  userId,
  requestId: payment.request_id,
  traceparent: payment.traceparent,
})

function totalOf({ total }: PaymentJob): Money {
  if (total === undefined) throw new Error('a payment that was made has a total')
  return total
}

/** What other payments, and failures of this one, have done to its reservation. */
async function readOthers(
  tx: Tx,
  { reservation_id }: PaymentJob,
): Promise<{ paid: boolean; cancelled: boolean }> {
  const { rows } = await sql<{ paid: boolean; cancelled: boolean }>`
    select coalesce(bool_or(state = 'confirmed'), false) as paid,
      coalesce(bool_or(cancelled), false) as cancelled
    from payments where reservation_id = ${reservation_id.toLowerCase()}`.execute(tx)
  return rows[0] as { paid: boolean; cancelled: boolean }
}

async function readOrder(tx: Tx, reservationId: string): Promise<string> {
  const { id } = await tx
    .selectFrom('orders')
    .select('id')
    .where('reservation_id', '=', reservationId)
    .executeTakeFirstOrThrow()
  return id
}

async function writeRefund(tx: Tx, payment: PaymentJob, reason: RefundReason): Promise<void> {
  const { provider, payment_id, reservation_id, request_id, traceparent } = payment
  await writeEvents(tx, [
    {
      messageId: uuidv7(),
      type: 'payment.refund_due',
      subject: payment_id,
      sequence: 1,
      requestId: request_id,
      traceparent,
      data: { provider, payment_id, reservation_id, total: totalOf(payment), reason },
    },
  ])
}

/** Over one that had failed, never over one that was decided: then the transaction is run again, and sees it. */
async function writePayment(
  tx: Tx,
  { provider, payment_id: id, reservation_id, total }: PaymentJob,
  outcome: Decided,
): Promise<void> {
  const values = {
    state: outcome.is,
    reservation_id: reservation_id.toLowerCase(),
    amount_minor: total?.amount_minor ?? null,
    currency: total?.currency ?? null,
    order_id: outcome.is === 'confirmed' ? outcome.orderId : null,
    reason: outcome.is === 'refund_due' ? outcome.reason : null,
    settled_at: sql<Date>`clock_timestamp()`,
  }
  await tx
    .insertInto('payments')
    .values({ provider, id, ...values, cancelled: outcome.is === 'failed' && outcome.cancelled })
    .onConflict((conflict) => conflict.columns(['provider', 'id']).doUpdateSet(values))
    .execute()
}
