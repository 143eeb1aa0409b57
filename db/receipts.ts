// The answer to a write, committed with its effect: as the record of an idempotency key, or as the result of an
// asynchronous command. Its primary key lets exactly one of two transactions for one request commit, whatever became
// of their locks; the other is rolled back with ReceiptTaken and replays what is here.

import { sql } from 'kysely'
import { isStored, recordSeconds, type StoredResponse } from '../domain/idempotency.ts'
import type { Db, Tx } from './schema.ts'
import { sqlState } from './transaction.ts'

export type Receipt =
  | { kind: 'key'; key: string; fingerprint: string }
  | { kind: 'command'; id: string }

/** Another transaction has answered the same request: read its receipt. */
export class ReceiptTaken extends Error {
  constructor() {
    super('the request was answered by another transaction')
    this.name = 'ReceiptTaken'
  }
}

/**
 * Saves answers in the transaction of their effects. Of a key's only decisions are kept (isStored); a command keeps
 * whatever it was told.
 * @throws ReceiptTaken when any of them was saved before
 */
export async function saveReceipts(
  tx: Tx,
  entries: readonly { receipt: Receipt; response: StoredResponse }[],
): Promise<void> {
  const keys: object[] = []
  const commands: object[] = []
  for (const { receipt, response } of entries) {
    if (receipt.kind === 'command') commands.push({ id: receipt.id, ...response })
    else if (isStored(response.status)) {
      keys.push({ key: receipt.key, fingerprint: receipt.fingerprint, ...response })
    }
  }
  if (keys.length > 0) {
    // No ON CONFLICT: the transaction is to fail, and speculative insertion costs a third more.
    await sql`
      insert into idempotency_records (key, fingerprint, status, headers, body)
      select key, fingerprint, status, headers, body
      from json_to_recordset(${JSON.stringify(keys)}::json)
        as r (key text, fingerprint text, status integer, headers jsonb, body text)`
      .execute(tx)
      .catch((error) => {
        throw sqlState(error) === '23505' ? new ReceiptTaken() : error
      })
  }
  if (commands.length > 0) {
    const { numAffectedRows } = await sql`
      update commands c
      set status = r.status, headers = r.headers, response = r.body, finished_at = clock_timestamp()
      from json_to_recordset(${JSON.stringify(commands)}::json)
        as r (id uuid, status integer, headers jsonb, body text)
      where c.id = r.id and c.status is null`.execute(tx)
    if (numAffectedRows !== BigInt(commands.length)) throw new ReceiptTaken()
  }
}

/** The answer that was committed for this request, if any; `reused` when the key answered another request. */
export async function readReceipt(
  db: Db,
  receipt: Receipt,
): Promise<StoredResponse | 'reused' | undefined> {
  if (receipt.kind === 'key') {
    const row = await db
      .selectFrom('idempotency_records')
      .select(['fingerprint', 'status', 'headers', 'body'])
      .where('key', '=', receipt.key)
      .where(sql<boolean>`created_at > clock_timestamp() - make_interval(secs => ${recordSeconds})`)
      .executeTakeFirst()
    if (row === undefined) return undefined
    if (row.fingerprint !== receipt.fingerprint) return 'reused'
    return { status: row.status, headers: row.headers, body: row.body }
  }
  const row = await db
    .selectFrom('commands')
    .select(['status', 'headers', 'response'])
    .where('id', '=', receipt.id)
    .executeTakeFirst()
  if (row?.status == null) return undefined
  return { status: row.status, headers: row.headers ?? {}, body: row.response ?? '' }
}
