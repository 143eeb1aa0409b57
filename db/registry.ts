// Which workers are alive, and the request that all of them stop. A worker writes its row on a beat; one whose row was
// not seen for a while is dead. All times are Postgres's.

import { sql } from 'kysely'
import type { Db, WorkerDoing } from './schema.ts'
import { notifyQueues, stopWord } from './wake.ts'

/** A worker that was not seen for so long is not alive. */
export const aliveSeconds = 15
/** How long the row of a dead worker is kept for people. */
const keptDays = 1

export type WorkerSelf = {
  id: string
  name: string
  host: string
  pid: number
  version: string | null
  /** How long the process has run. */
  upSeconds: number
  doing: WorkerDoing
}

export type WorkerRow = {
  id: string
  name: string
  host: string
  pid: number
  version: string | null
  startedAt: Date
  seenAt: Date
  alive: boolean
  doing: WorkerDoing
}

/** Says that the worker is alive, and how it stands. @returns whether it is asked to stop since it started */
export async function reportWorker(db: Db, worker: WorkerSelf): Promise<boolean> {
  const { id, name, host, pid, version, upSeconds, doing } = worker
  const { rows } = await sql<{ stop: boolean }>`
    with seen as (
      insert into workers (id, name, host, pid, version, started_at, doing)
      values (${id}, ${name}, ${host}, ${pid}, ${version},
        clock_timestamp() - ${upSeconds} * interval '1 second', ${JSON.stringify(doing)})
      on conflict (id) do update set seen_at = clock_timestamp(), doing = excluded.doing
      returning started_at)
    select exists (select from stop_requests r, seen where r.asked_at > seen.started_at) as stop
    from seen`.execute(db)
  return rows[0]?.stop === true
}

/** At the end of a worker. Takes along the rows of those that died long ago. */
export async function removeWorker(db: Db, id: string): Promise<void> {
  await sql`
    delete from workers where id = ${id}
      or seen_at < clock_timestamp() - ${keptDays} * interval '1 day'`.execute(db)
}

/** All that are known, the dead ones of the last day too. */
export async function readWorkers(db: Db): Promise<WorkerRow[]> {
  const { rows } = await sql<WorkerRow>`
    select id, name, host, pid, version, started_at as "startedAt", seen_at as "seenAt",
      seen_at > clock_timestamp() - ${aliveSeconds} * interval '1 second' as alive, doing
    from workers order by name, started_at`.execute(db)
  return rows
}

/** Every worker that runs now finishes what it has in hand and exits. @returns when it was asked */
export async function requestStop(db: Db): Promise<Date> {
  const { rows } = await sql<{ asked_at: Date }>`
    insert into stop_requests (id, asked_at) values (1, clock_timestamp())
    on conflict (id) do update set asked_at = excluded.asked_at returning asked_at`.execute(db)
  await notifyQueues(db, [stopWord])
  return rows[0]?.asked_at as Date
}
