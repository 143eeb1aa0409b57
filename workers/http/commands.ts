// Carries out the writes of the API: each in one SERIALIZABLE transaction with its events and its receipt, holds of one
// event and changes of reservations in groups. It answers with what was decided; what was not decided (a conflict that
// would not end, a lost connection) is thrown as an AppError, and nothing is stored.

import { analyzeSeats, createEvent, type NewEvent } from '../../db/events.ts'
import { createGroup, createLanes } from '../../db/group.ts'
import { type Held, type Hold, holdPlaces } from '../../db/holds.ts'
import { createItem, type ItemContent, putItem } from '../../db/items.ts'
import { confirmReservations, type Order } from '../../db/orders.ts'
import { createQuota, type NewQuota } from '../../db/quotas.ts'
import { type Receipt, ReceiptTaken, readReceipt, saveReceipts } from '../../db/receipts.ts'
import { type Reservation, type ReservationBody, toBody } from '../../db/reservations.ts'
import type { Db, Tx } from '../../db/schema.ts'
import { readDelayMs, sendInTransaction } from '../../db/sends.ts'
import { type Change, cancelReservations } from '../../db/settlements.ts'
import { CommitUnknown, isConnectionLost, transaction } from '../../db/transaction.ts'
import { isStanding, standingEventsOf, takeTurns } from '../../db/turns.ts'
import { type PutUser, putUser } from '../../db/users.ts'
import { AppError } from '../../domain/errors.ts'
import type { StoredResponse } from '../../domain/idempotency.ts'
import type { QueueName } from '../../domain/queues.ts'
import { json, problem } from '../problem.ts'
import { withSpan } from '../trace.ts'

type AskedJob = {
  id: string
  data: object
  priority: number
  /** ISO 8601; left out: now. */
  startAfter?: string
}

type Requested = { requestId?: string | undefined; traceparent?: string | undefined }

export type Command =
  | ({ name: 'createReservation'; eventId: string } & Hold)
  | ({ name: 'confirmReservation' | 'cancelReservation' } & Change)
  | ({ name: 'createEvent'; event: NewEvent } & Requested)
  | ({ name: 'createQuota'; quota: NewQuota } & Requested)
  | ({ name: 'putUser' } & PutUser & Requested)
  | ({ name: 'createItem'; item: ItemContent } & Requested)
  | ({ name: 'putItem'; itemId: string; item: ItemContent } & Requested)
  | ({ name: 'enqueueJob'; queue: QueueName; job: AskedJob } & Requested)

export type Commands = {
  /**
   * Runs a command once. Its receipt commits with its effect, so that a second run gives the first one's answer.
   * @throws AppError OVERLOADED, LOCK_TIMEOUT, OUTCOME_UNKNOWN: nothing was decided, or nobody knows yet
   */
  run(command: Command, receipt: Receipt): Promise<StoredResponse>
}

export type CommandOptions = {
  db: Db
  /** RESERVATION_TTL, seconds. */
  ttlSeconds: number
  /** Commands of one transaction at most. */
  groupMax?: number
  /** Told of every group that was carried out, well or not. */
  onGroup?(command: Command['name'], size: number, seconds: number): void
}

type Task<C> = { command: C; receipt: Receipt }

export function createCommands(options: CommandOptions): Commands {
  const { db, ttlSeconds, groupMax = 256, onGroup } = options

  /** One transaction for a group, timed, in its turn at the counters of the events that `standing` names. */
  async function together<T>(
    name: Command['name'],
    size: number,
    standing: () => Promise<readonly string[]>,
    fn: (tx: Tx) => Promise<T>,
  ): Promise<T> {
    const begunAt = performance.now()
    try {
      const counted = await standing()
      return await transaction(db, async (tx) => {
        await takeTurns(tx, counted)
        return await fn(tx)
      })
    } finally {
      onGroup?.(name, size, (performance.now() - begunAt) / 1000)
    }
  }

  const holdLanes = (patient: boolean) =>
    createLanes<Task<Hold & { eventId: string }>, StoredResponse | 'undecided'>({
      groupMax,
      divides,
      commit(tasks) {
        const { eventId } = tasks[0]!.command
        const standing = async () => ((await isStanding(db, eventId)) ? [eventId] : [])
        return together('createReservation', tasks.length, standing, async (tx) => {
          const holds = tasks.map((task) => task.command)
          const outcomes = await holdPlaces(tx, holds, { eventId, ttlSeconds, patient })
          const answers = outcomes.map((outcome) =>
            outcome === 'undecided' ? outcome : respond(outcome, heldBody, 201),
          )
          await saveAnswers(tx, tasks, answers)
          return answers
        })
      },
    })
  const changes = <T>(
    name: Command['name'],
    change: (tx: Tx, changes: Change[]) => Promise<(T | AppError)[]>,
    body: (outcome: T) => object,
  ) =>
    createGroup<Task<Change>, StoredResponse>({
      groupMax,
      divides,
      commit(tasks) {
        const commands = tasks.map((task) => task.command)
        const ids = commands.map(({ reservationId }) => reservationId)
        const standing = () => standingEventsOf(db, ids)
        return together(name, tasks.length, standing, async (tx) => {
          const outcomes = await change(tx, commands)
          const answers = outcomes.map((outcome) => respond(outcome, body, 200))
          await saveAnswers(tx, tasks, answers)
          return answers
        })
      },
    })
  const quick = holdLanes(false)
  const patient = holdLanes(true)
  const confirms = changes('confirmReservation', confirmReservations, orderBody)
  const cancels = changes('cancelReservation', cancelReservations, toBody)

  async function hold(task: Task<Hold & { eventId: string }>): Promise<StoredResponse> {
    const { eventId } = task.command
    const answer = await quick.run(eventId, task)
    if (answer !== 'undecided') return answer
    const second = await patient.run(eventId, task)
    if (second !== 'undecided') return second
    throw new AppError('LOCK_TIMEOUT', 'the last places are being bought by others just now', {
      retryAfterMs: 1000,
    })
  }

  /** A command that is not hot: its own transaction. */
  function single<T>(
    task: Task<Command>,
    effect: (tx: Tx) => Promise<T | AppError>,
    body: (made: T) => object,
    location?: string,
  ) {
    return transaction(db, async (tx) => {
      const made = await effect(tx)
      const decided = respond(made, body, statusOf[task.command.name] ?? 201)
      const answer = location ? { ...decided, headers: { ...decided.headers, location } } : decided
      await saveAnswers(tx, [task], [answer])
      return answer
    })
  }

  async function dispatch(command: Command, receipt: Receipt): Promise<StoredResponse> {
    switch (command.name) {
      case 'createReservation':
        return await hold({ command, receipt })
      case 'confirmReservation':
        return await confirms.run({ command, receipt })
      case 'cancelReservation':
        return await cancels.run({ command, receipt })
      case 'createEvent': {
        const answer = await single(
          { command, receipt },
          (tx) => createEvent(tx, command.event),
          (id) => ({ event_id: id }),
        )
        // The event is there: whatever becomes of the statistics, that is the answer.
        await analyzeSeats(db).catch(() => {})
        return answer
      }
      case 'createQuota':
        return await single(
          { command, receipt },
          (tx) => createQuota(tx, command.quota, command),
          (id) => ({ quota_id: id }),
        )
      case 'putUser':
        return await single(
          { command, receipt },
          (tx) => putUser(tx, command),
          (user) => user,
        )
      case 'createItem':
        return await single(
          { command, receipt },
          (tx) => createItem(tx, command.item, command),
          (item) => item,
        )
      case 'putItem':
        return await single(
          { command, receipt },
          (tx) => putItem(tx, command.itemId, command.item, command),
          (item) => item,
        )
      case 'enqueueJob': {
        const { queue, job } = command
        return await single(
          { command, receipt },
          (tx) => enqueueJob(tx, queue, job),
          () => ({ job_id: job.id, queue }),
          `/api/v1/jobs/${queue}/${job.id}`,
        )
      }
    }
  }

  async function runOnce(command: Command, receipt: Receipt): Promise<StoredResponse> {
    try {
      return await dispatch(command, receipt)
    } catch (error) {
      if (error instanceof ReceiptTaken || error instanceof CommitUnknown) {
        return await settleByReceipt(db, receipt, error)
      }
      throw error
    }
  }

  return {
    run: (command, receipt) =>
      withSpan(command.name, { kind: 'internal', parent: command.traceparent }, (span) =>
        runOnce({ ...command, traceparent: span.traceparent }, receipt),
      ),
  }
}

const statusOf: Partial<Record<Command['name'], number>> = {
  putUser: 200,
  putItem: 200,
  enqueueJob: 202,
}

async function enqueueJob(tx: Tx, queue: QueueName, job: AskedJob): Promise<void> {
  const { id, data, priority, startAfter } = job
  const delayMs = startAfter === undefined ? 0 : await readDelayMs(tx, startAfter)
  await sendInTransaction(tx, queue, [{ id, data, priority, delayMs }])
}

/** Another transaction answered this request, or ours did and the connection broke: the receipt knows. */
export async function settleByReceipt(
  db: Db,
  receipt: Receipt,
  cause: Error,
): Promise<StoredResponse> {
  const found = await readReceipt(db, receipt).catch(() => undefined)
  if (found === 'reused') {
    throw new AppError(
      'IDEMPOTENCY_KEY_REUSED',
      'this Idempotency-Key was used for another request: make a new one for each',
    )
  }
  if (found === undefined) {
    throw new AppError(
      'OUTCOME_UNKNOWN',
      'whether the write took place is not known yet: repeat it with the same Idempotency-Key',
      { retryAfterMs: 2000 },
      { cause },
    )
  }
  const replayed = cause instanceof ReceiptTaken
  return replayed
    ? { ...found, headers: { ...found.headers, 'idempotent-replayed': 'true' } }
    : found
}

/** What may be one member's fault: neither contention, nor a full line, nor the connection. */
const divides = (error: unknown) =>
  !(error instanceof AppError) && !(error instanceof CommitUnknown) && !isConnectionLost(error)

async function saveAnswers(
  tx: Tx,
  tasks: readonly { receipt: Receipt }[],
  answers: readonly (StoredResponse | 'undecided')[],
): Promise<void> {
  await saveReceipts(
    tx,
    tasks.flatMap(({ receipt }, i) => {
      const response = answers[i]!
      return response === 'undecided' ? [] : [{ receipt, response }]
    }),
  )
}

const respond = <T>(outcome: T | AppError, body: (outcome: T) => object, status: number) =>
  outcome instanceof AppError ? problem(outcome) : json(status, body(outcome))

const heldBody = (held: Held): ReservationBody => ({
  reservation_id: held.reservationId,
  event_id: held.eventId,
  status: 'held',
  section: held.section,
  quantity: held.quantity,
  ...(held.seats && { seats: held.seats }),
  expires_at: held.expiresAt.toISOString(),
})

const orderBody = ({ id, reservation, totalMinor, tickets }: Order) => ({
  ...toBody(reservation as Reservation),
  order_id: id,
  total: { amount_minor: totalMinor, currency: reservation.currency },
  tickets: tickets.map((ticket) => ({
    ticket_id: ticket.id,
    ...(ticket.seat !== undefined && { seat: ticket.seat }),
    code: ticket.code,
  })),
})
