// Events that the broker refused, and behind each the later events of its subject: an aggregate waits in its order while
// the others flow. The first of a subject is tried again by the schedule of background jobs; when that is used up it goes
// to the dead letter queue of `outbox`, with its history and its audit row, and the next of its subject moves on.

import { sql } from 'kysely'
import type { CloudEvent } from '../domain/events.ts'
import { type QueueName, queueOf } from '../domain/queues.ts'
import { jobRetryDelayMs, jobSchedules } from '../domain/retries.ts'
import { type Audit, writeAttempt } from './attempts.ts'
import { buryNew } from './bury.ts'
import type { Db, Tx } from './schema.ts'
import { transaction } from './transaction.ts'

/** `error`: why it was refused just now. Without one it waits for an earlier event of its subject. */
export type Aside = {
  slot: number
  subject: string
  txid: string
  id: string
  messageId: string
  /** The CloudEvent, as JSON. */
  body: string
  error?: string
}

/** The first of its subject, due to be tried again. */
export type DueAside = Omit<Aside, 'error' | 'messageId'> & { attempts: number; event: CloudEvent }

const queue: QueueName & 'outbox' = 'outbox'
const schedule = jobSchedules[queueOf(queue)?.retry ?? 'background']
const readCommitted = { isolation: 'read committed' } as const

/** In the transaction that moves the cursors past them. */
export async function putAside(tx: Tx, asides: readonly Aside[]): Promise<void> {
  const delays = asides.map(({ error }) => (error === undefined ? null : (schedule[0] as number)))
  await sql`
    insert into outbox_aside (slot, subject, txid, id, event, attempts, next_at)
    select a.slot, a.subject, a.txid, a.id, a.event, (a.delay_ms is not null)::int,
      clock_timestamp() + a.delay_ms * interval '1 ms'
    from unnest(${asides.map(({ slot }) => slot)}::int[], ${asides.map(({ subject }) => subject)}::text[],
      ${asides.map(({ txid }) => txid)}::xid8[], ${asides.map(({ id }) => id)}::bigint[],
      ${asides.map(({ body }) => body)}::jsonb[], ${delays}::float8[])
      as a (slot, subject, txid, id, event, delay_ms)
    on conflict do nothing`.execute(tx)
  await makeFirstDue(tx, asides)
  for (const { messageId, error } of asides) {
    if (error === undefined) continue
    await writeAttempt(tx, { jobId: messageId, queue, attempt: 1 }, 'failed', new Error(error))
  }
}

/** The subjects of these slots that have events aside. */
export async function readAsideSubjects(
  db: Db,
  slots: readonly number[],
): Promise<{ slot: number; subject: string }[]> {
  const { rows } = await sql<{ slot: number; subject: string }>`
    select distinct slot, subject from outbox_aside where slot = any(${[...slots]}::int[])`.execute(
    db,
  )
  return rows
}

/**
 * What is due in any order, one of each type `probed`, none of those `waiting`. Type by type along outbox_aside_next: what
 * waits of one, however much, is not read to come to the others.
 */
export async function readDueAsides(
  db: Db,
  slots: readonly number[],
  batchMax: number,
  { probed = [], waiting = [] }: { probed?: string[]; waiting?: string[] } = {},
): Promise<DueAside[]> {
  const { rows } = await sql<DueAside>`
    with recursive types as (
      (select type from outbox_aside where next_at is not null order by type limit 1)
      union all
      select (select a.type from outbox_aside a where a.next_at is not null and a.type > t.type
        order by a.type limit 1)
      from types t where t.type is not null
    )
    select d.* from types t cross join lateral (
      select a.slot, a.subject, a.txid, a.id, a.event, a.event::text as body, a.attempts
      from outbox_aside a
      where a.type = t.type and a.slot = any(${[...slots]}::int[])
        and a.next_at <= (select clock_timestamp())
      limit case when t.type = any(${probed}::text[]) then 1 else ${batchMax}::int end
    ) d
    where t.type <> all(${waiting}::text[]) limit ${batchMax}`.execute(db)
  return rows
}

export type AsideOutcome = {
  /** The event is here no more: the broker has it, or the dead letter queue. */
  gone: boolean
  /** Nothing of its subject is left. */
  last: boolean
  audit?: Audit
}

/** @param refused why, once more, and whether that spends an attempt; undefined: the broker took it */
export async function settleAside(
  db: Db,
  relay: string,
  leaseNo: string,
  due: DueAside,
  refused: { why: string; spend: boolean } | undefined,
): Promise<AsideOutcome | 'lost'> {
  return await transaction(
    db,
    async (tx) => {
      const { rows } = await sql`
        select from outbox_cursors
        where slot = ${due.slot} and leased_by = ${relay} and lease_no = ${leaseNo}
        for update`.execute(tx)
      if (rows.length === 0) return 'lost'
      if (refused === undefined) return { gone: true, last: await removeAside(tx, due) }
      if (!refused.spend) {
        await putOff(tx, due, due.attempts, schedule.at(-1) ?? 0)
        return { gone: false, last: false }
      }
      const error = new Error(refused.why)
      const attempt = due.attempts + 1
      const key = { jobId: due.event.id, queue, attempt }
      const delayMs = jobRetryDelayMs(schedule, attempt)
      if (delayMs === null) {
        const audit = await buryNew(tx, { ...key, data: due.event }, error)
        return { gone: true, last: await removeAside(tx, due), ...(audit && { audit }) }
      }
      await writeAttempt(tx, key, 'failed', error)
      await putOff(tx, due, attempt, delayMs)
      return { gone: false, last: false }
    },
    readCommitted,
  )
}

async function putOff(tx: Tx, due: DueAside, attempts: number, delayMs: number): Promise<void> {
  await sql`
    update outbox_aside set attempts = ${attempts},
      next_at = clock_timestamp() + ${delayMs} * interval '1 ms'
    where ${isThis(due)}`.execute(tx)
}

const isThis = ({ slot, subject, txid, id }: DueAside) => sql<boolean>`
  slot = ${slot} and subject = ${subject} and txid = ${txid}::xid8 and id = ${id}`

/** The next of the subject is due at once. @returns whether there is none */
async function removeAside(tx: Tx, due: DueAside): Promise<boolean> {
  await sql`delete from outbox_aside where ${isThis(due)}`.execute(tx)
  return (await makeFirstDue(tx, [due])) === 0
}

/**
 * The first event of each subject, which may have waited for one that is gone, is due now. The cursor's row is locked:
 * none comes or goes meanwhile.
 */
async function makeFirstDue(tx: Tx, of: readonly { slot: number; subject: string }[]) {
  const made = await sql`
    update outbox_aside a set next_at = coalesce(a.next_at, clock_timestamp())
    from unnest(${of.map(({ slot }) => slot)}::int[], ${of.map(({ subject }) => subject)}::text[])
      as s (slot, subject)
    where (a.slot, a.subject, a.txid, a.id) = (
      select f.slot, f.subject, f.txid, f.id from outbox_aside f
      where f.slot = s.slot and f.subject = s.subject order by f.txid, f.id limit 1)`.execute(tx)
  return Number(made.numAffectedRows ?? 0)
}

export async function countAsides(db: Db): Promise<number> {
  const { rows } = await sql<{ n: number }>`select count(*)::int as n from outbox_aside`.execute(db)
  return rows[0]?.n ?? 0
}
