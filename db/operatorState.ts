// What an operator asks of the workers: which queues rest, who is alive, who is to stop.

import { sql } from 'kysely'
import type { Db, WorkerDoing } from './schema.ts'

export type WorkerRow = {
  id: string
  name: string
  host: string
  pid: number
  version: string | null
  startedAt: Date
  seenAt: Date
  doing: WorkerDoing
}

export async function readPaused(db: Db): Promise<Set<string>> {
  const rows = await db.selectFrom('paused_queues').select('queue').execute()
  return new Set(rows.map((row) => row.queue))
}
export async function pauseQueue(db: Db, queue: string): Promise<boolean> {
  const done = await db
    .insertInto('paused_queues')
    .values({ queue })
    .onConflict((c) => c.doNothing())
    .executeTakeFirst()
  return done.numInsertedOrUpdatedRows === 1n
}
export async function resumeQueue(db: Db, queue: string): Promise<boolean> {
  const done = await db.deleteFrom('paused_queues').where('queue', '=', queue).executeTakeFirst()
  return done.numDeletedRows === 1n
}
export async function requestStop(db: Db): Promise<Date> {
  const { rows } = await sql<{ asked_at: Date }>`
    insert into stop_requests (id, asked_at) values (1, clock_timestamp())
    on conflict (id) do update set asked_at = excluded.asked_at returning asked_at`.execute(db)
  return rows[0]?.asked_at as Date
}
export async function readWorkers(db: Db): Promise<WorkerRow[]> {
  const { rows } =
    await sql<WorkerRow>`select id, name, host, pid, version, started_at as "startedAt", seen_at as "seenAt", doing
    from workers where seen_at > clock_timestamp() - interval '30 s' order by name, started_at`.execute(
      db,
    )
  return rows
}
