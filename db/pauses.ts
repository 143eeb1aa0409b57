// Queues that rest: nothing is claimed from them from the commit on (claim_jobs asks), what is in hand finishes. Jobs can
// be sent all the same.

import { sql } from 'kysely'
import type { Db, Tx } from './schema.ts'
import { notifyQueues } from './wake.ts'

/** @returns whether it was not paused already */
export async function pauseQueue(db: Db | Tx, queue: string): Promise<boolean> {
  const made = await sql`insert into paused_queues (queue) values (${queue})
    on conflict do nothing`.execute(db)
  return made.numAffectedRows === 1n
}

/** @returns whether it was paused */
export async function resumeQueue(db: Db | Tx, queue: string): Promise<boolean> {
  const gone = await sql`delete from paused_queues where queue = ${queue}`.execute(db)
  await notifyQueues(db, [queue])
  return gone.numAffectedRows === 1n
}

/** The queues that rest, and since when. */
export async function readPaused(db: Db | Tx): Promise<Map<string, Date>> {
  const rows = await db.selectFrom('paused_queues').select(['queue', 'paused_at']).execute()
  return new Map(rows.map((row) => [row.queue, row.paused_at]))
}
