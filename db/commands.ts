// Writes asked for with Prefer: respond-async. A row, its job and the receipt of the 202 come to be in one transaction;
// the answer is written into the row by db/receipts.ts, in the transaction of the effect. A row is never run twice: it
// is done once it has a status.

import { sql } from 'kysely'
import { recordSeconds, type StoredResponse } from '../domain/idempotency.ts'
import { deadLetterOf } from '../domain/queues.ts'
import type { Jobs } from './jobs.ts'
import { type Receipt, saveReceipts } from './receipts.ts'
import type { Db, Tx } from './schema.ts'
import { transaction } from './transaction.ts'

export type NewCommand = {
  id: string
  /** Who asked and may see the outcome; undefined: an internal program. */
  userId: string | undefined
  method: string
  path: string
  /** What the runner is handed back: plain JSON. */
  command: object
  requestId: string
  traceparent?: string | undefined
}

/** The data of a job in the queue `commands`. */
export type CommandJob = { command_id: string; traceparent?: string }

/**
 * Makes a durable job of a command, and `accepted` the answer under its idempotency key.
 * @throws ReceiptTaken when the request was answered before
 */
export async function enqueueCommand(
  db: Db,
  jobs: Jobs,
  command: NewCommand,
  receipt: Receipt,
  accepted: StoredResponse,
): Promise<void> {
  await transaction(db, async (tx) => {
    await tx
      .insertInto('commands')
      .values({
        id: command.id,
        user_id: command.userId ?? null,
        method: command.method,
        path: command.path,
        body: JSON.stringify(command.command),
        request_id: command.requestId,
      })
      .execute()
    const { id, traceparent } = command
    const data: CommandJob = { command_id: id, ...(traceparent && { traceparent }) }
    await jobs.send(tx, 'commands', [{ id: command.id, data }])
    await saveReceipts(tx, [{ receipt, response: accepted }])
  })
}

/** The command to run, or undefined when there is none or it is done. */
export async function readPending(db: Db, id: string): Promise<unknown> {
  const row = await db
    .selectFrom('commands')
    .select('body')
    .where('id', '=', id)
    .where('status', 'is', null)
    .executeTakeFirst()
  return row?.body ?? undefined
}

/** The answer of a command that ended without an effect. One that was answered meanwhile keeps its answer. */
export async function closeCommand(
  on: Db | Tx,
  id: string,
  response: StoredResponse,
): Promise<void> {
  await on
    .updateTable('commands')
    .set((eb) => ({
      status: response.status,
      headers: JSON.stringify(response.headers),
      response: response.body,
      finished_at: eb.fn<Date>('clock_timestamp'),
    }))
    .where('id', '=', id)
    .where('status', 'is', null)
    .execute()
}

/** The same by the data of its job, which may be anything: anybody may have sent the job. */
export async function closeCommandOf(
  on: Db | Tx,
  data: unknown,
  response: StoredResponse,
): Promise<void> {
  const id = (data as Partial<CommandJob> | null)?.command_id
  if (new RegExp(uuidPattern).test(String(id))) await closeCommand(on, String(id), response)
}

export type CommandOutcome = { userId: string | undefined; response: StoredResponse | undefined }

/** Whose a command is and what it was answered; no response: still pending. */
export async function readOutcome(db: Db, id: string): Promise<CommandOutcome | undefined> {
  const row = await db
    .selectFrom('commands')
    .select(['user_id', 'status', 'headers', 'response'])
    .where('id', '=', id)
    .executeTakeFirst()
  if (row === undefined) return undefined
  const { user_id, status, headers, response } = row
  return {
    userId: user_id ?? undefined,
    response:
      status === null ? undefined : { status, headers: headers ?? {}, body: response ?? '' },
  }
}

const batchMax = 1000
const uuidPattern = '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$'

/**
 * Answers commands whose job lies in the dead letter queue without an answer of theirs: their worker died each time.
 * One that is answered later than its job died keeps that answer. @param deadIds only these of that queue
 * @returns how many were answered
 */
export async function closeDeadCommands(
  on: Db | Tx,
  response: StoredResponse,
  deadIds?: readonly string[],
): Promise<number> {
  const named = deadIds ? sql`and id = any(${[...deadIds]}::uuid[])` : sql``
  // By the primary key; what is no id (anybody may have sent the job) is not cast to one.
  const { numAffectedRows } = await sql`
    update commands c
    set status = ${response.status}, headers = ${JSON.stringify(response.headers)}::jsonb,
      response = ${response.body}, finished_at = clock_timestamp()
    from (
      select case when data->>'command_id' ~ ${uuidPattern}
        then (data->>'command_id')::uuid end as id
      from pgboss.job where name = ${deadLetterOf('commands')} ${named}
    ) dead
    where c.id = dead.id and c.status is null`.execute(on)
  return Number(numAffectedRows)
}

/**
 * Deletes a batch of commands that ended longer ago than their idempotency records last. By the primary key: an id is a
 * UUID v7, which begins with the ms of its making, and nothing ends before it is made. @returns how many
 */
export async function pruneCommands(db: Db): Promise<number> {
  const { numAffectedRows } = await sql`
    delete from commands where id in (
      select id from commands
      where finished_at < clock_timestamp() - make_interval(secs => ${recordSeconds})
        and id < (select rpad(lpad(to_hex(floor(1000 * extract(epoch from
          clock_timestamp() - make_interval(secs => ${recordSeconds})))::bigint), 12, '0'),
          32, '0')::uuid)
      limit ${batchMax} for update skip locked)`.execute(db)
  return Number(numAffectedRows)
}
