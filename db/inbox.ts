// What a consumer of events has seen: a message is processed once by each consumer, however often it arrives. The mark
// commits with the message's effect, so that neither is there without the other. A library for any consumer whose effect
// is in this database.

import { sql } from 'kysely'
import { processedSeconds } from '../domain/broker.ts'
import type { Db, Tx } from './schema.ts'

/**
 * Marks messages as processed by `consumer` and gives those it had not seen, in their order, each once. Of two
 * transactions with the same message the second waits for the first and sees it then. In READ COMMITTED; a conflict in
 * SERIALIZABLE is retried by transaction().
 */
export async function processOnce<M extends { id: string }>(
  tx: Tx,
  consumer: string,
  messages: readonly M[],
): Promise<M[]> {
  if (messages.length === 0) return []
  // As Postgres writes a uuid: two spellings are one message.
  const byId = new Map(messages.toReversed().map((message) => [keyOf(message), message]))
  // In the order of the ids: two batches with the same messages wait for each other in one direction only.
  const ids = [...byId.keys()].sort()
  const { rows } = await sql<{ message_id: string }>`
    insert into inbox_processed (consumer, message_id)
    select ${consumer}, * from unnest(${ids}::uuid[])
    on conflict do nothing returning message_id`.execute(tx)
  const fresh = new Set(rows.map((row) => row.message_id))
  return messages.filter((message) => {
    const key = keyOf(message)
    return fresh.has(key) && byId.get(key) === message
  })
}

const keyOf = ({ id }: { id: string }): string => id.toLowerCase()

/** Forgets what is older than `processedSeconds`, a batch at a time, by inbox_processed_at. @returns how many went */
export async function pruneInbox(db: Db, batchMax = 5000): Promise<number> {
  const result = await sql`
    delete from inbox_processed where ctid = any(array(
      select ctid from inbox_processed
      where processed_at < (select clock_timestamp() - ${processedSeconds} * interval '1 second')
      limit ${batchMax}))`.execute(db)
  return Number(result.numAffectedRows ?? 0)
}
