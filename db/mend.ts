// An outbox whose transaction ids are not this server's: that of a logical dump restored into a new cluster, which counts
// from its own beginning. Its cursors stand ahead of everything that will ever be written, and so do its rows. What was
// not relayed, or may not have been, is set to the very beginning, in its order; the rest is let go; the cursors start anew.

import { sql } from 'kysely'
import type { Db, Tx } from './schema.ts'
import { transaction } from './transaction.ts'

/** Looks, and mends if need be. Safe to call at every start. */
export async function mendOutbox(db: Db, tell: (line: string) => void): Promise<void> {
  if (!(await isForeign(db))) return
  const moved = await transaction(
    db,
    async (tx) => {
      await sql`lock table outbox, outbox_cursors in exclusive mode`.execute(tx)
      // Another relay may have mended it meanwhile.
      return (await isForeign(tx)) ? await startAnew(tx) : undefined
    },
    { isolation: 'read committed' },
  )
  if (moved === undefined) return
  tell(
    `the outbox was written on another server, as by a dump that was restored here: ${moved} events not relayed yet keep ` +
      'their order, and the cursors start anew',
  )
}

/** One look at each slot's end, by the primary key. */
async function isForeign(on: Db | Tx): Promise<boolean> {
  const { rows } = await sql<{ foreign: boolean }>`
    select coalesce(bool_or(greatest(c.txid::text::numeric, last.txid::text::numeric)
      >= pg_snapshot_xmax(pg_current_snapshot())::text::numeric), false) as foreign
    from outbox_cursors c left join lateral (
      select o.txid from outbox o where o.slot = c.slot order by o.txid desc, o.id desc limit 1
    ) last on true`.execute(on)
  return rows[0]?.foreign ?? false
}

/**
 * Let go is what was relayed and was surely written elsewhere. A row with an id of ours may have been written here since
 * the restore, behind a cursor that says nothing of it: it is kept, and relayed, at worst once more.
 *
 * All in one early transaction, by id: among the events of one aggregate that is the order of their commits as well, since
 * each of its writers begins after the one before has committed.
 */
async function startAnew(tx: Tx): Promise<number> {
  await sql`
    delete from outbox o using outbox_cursors c
    where c.slot = o.slot and (o.txid, o.id) <= (c.txid, c.id)
      and o.txid >= pg_snapshot_xmax(pg_current_snapshot())`.execute(tx)
  const { numAffectedRows } = await sql`update outbox set txid = '1'`.execute(tx)
  await sql`update outbox_aside set txid = '0'`.execute(tx)
  await sql`
    update outbox_cursors set txid = '0', id = 0, leased_by = null, leased_until = null,
      lease_no = lease_no + 1`.execute(tx)
  return Number(numAffectedRows ?? 0)
}
