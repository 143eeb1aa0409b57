// Addresses that get no mail (email_suppressions), and the webhooks that fill the list. Who sends finds them by
// emailSends.ts. Addresses come here as domain/emails.ts normalises them.

import { sql } from 'kysely'
import type { Suppression } from '../domain/emails.ts'
import type { Db, Tx } from './schema.ts'

export type SuppressionRow = Suppression & { created_at: Date }

/** The first reason stands. @returns whether it is new */
export async function suppress(on: Db | Tx, one: Suppression): Promise<boolean> {
  const { address, reason, source } = one
  const { numAffectedRows } = await sql`
    insert into email_suppressions (address, reason, source)
    values (${address}, ${reason}, ${source}) on conflict do nothing`.execute(on)
  return numAffectedRows === 1n
}

/** @returns whether it was there */
export async function unsuppress(on: Db | Tx, address: string): Promise<boolean> {
  const { numDeletedRows } = await on
    .deleteFrom('email_suppressions')
    .where('address', '=', address)
    .executeTakeFirst()
  return numDeletedRows === 1n
}

/** The youngest first; of one address when it is given. */
export async function listSuppressions(
  db: Db,
  { address, max }: { address?: string | undefined; max: number },
): Promise<SuppressionRow[]> {
  let query = db
    .selectFrom('email_suppressions')
    .select(['address', 'reason', 'source', 'created_at'])
  if (address !== undefined) query = query.where('address', '=', address)
  return await query.orderBy('created_at', 'desc').orderBy('address').limit(max).execute()
}

/**
 * Remembers that a webhook came. @returns false when it came before: then nothing is to be done
 */
export async function takeWebhook(
  tx: Tx,
  webhook: { provider: string; id: string; payload: object },
): Promise<boolean> {
  const { provider, id, payload } = webhook
  const { numAffectedRows } = await sql`
    insert into webhook_events (provider, id, payload)
    values (${provider}, ${id}, ${JSON.stringify(payload)}::jsonb) on conflict do nothing`.execute(
    tx,
  )
  return numAffectedRows === 1n
}

/** Forgets webhooks that nobody can send again, a batch at a time. @returns how many went */
export async function pruneWebhooks(
  db: Db,
  {
    provider,
    keepSeconds,
    batchMax = 1000,
  }: { provider: string; keepSeconds: number; batchMax?: number },
): Promise<number> {
  const { numAffectedRows } = await sql`
    delete from webhook_events where (provider, id) in (
      select provider, id from webhook_events
      where received_at < clock_timestamp() - ${keepSeconds} * interval '1 s'
        and provider = ${provider}
      limit ${batchMax} for update skip locked)`.execute(db)
  return Number(numAffectedRows ?? 0)
}
