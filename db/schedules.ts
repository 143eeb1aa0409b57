// What fires when, over all processes: a row a schedule, and whoever moves its next_at on fires it, nobody else. Only
// Postgres's clock counts. What was missed while nobody was there fires once, however often it was missed. A schedule
// that nobody claims any more stays silent.

import { sql } from 'kysely'
import { firingAfter, type Schedule } from '../domain/schedules.ts'
import type { Db, Tx } from './schema.ts'

export type Claim = {
  /** Ours to do: the time it was due at. */
  scheduledAt: Date | undefined
  /** Until the next firing, ms. */
  waitMs: number
}

type Row = {
  now: Date
  next_at: Date | null
  was: string | null
  due: boolean
  fired_at: Date | null
}

/**
 * Fires if it is time and nobody else did. Inside a transaction the firing is undone with it. A schedule seen for the
 * first time fires at its next time; one whose interval or cron was changed goes by the new one at once.
 */
export async function claimFiring(on: Db | Tx, name: string, schedule: Schedule): Promise<Claim> {
  const row = await look(on, name)
  const next = firingAfter(schedule, row.now, row.fired_at)
  const waitMs = next.getTime() - row.now.getTime()
  if (row.next_at === null) {
    await sql`insert into schedules (name, next_at) values (${name}, ${next})
      on conflict do nothing`.execute(on)
  } else if (row.due || row.next_at.getTime() !== next.getTime()) {
    const moved = await sql`
      update schedules set next_at = ${next},
        fired_at = case when ${row.due} then clock_timestamp() else fired_at end
      where name = ${name} and next_at = ${row.was}::timestamptz`.execute(on)
    const isOurs = row.due && moved.numAffectedRows === 1n
    return { scheduledAt: isOurs ? row.next_at : undefined, waitMs }
  }
  return { scheduledAt: undefined, waitMs }
}

/** was: next_at to the microsecond, which a Date does not hold. */
async function look(on: Db | Tx, name: string): Promise<Row> {
  const { rows } = await sql<Row>`
    select clock.now, next_at, next_at::text as was, coalesce(next_at <= clock.now, false) as due,
      fired_at
    from (select clock_timestamp() as now offset 0) clock
    left join schedules on name = ${name}`.execute(on)
  return rows[0]!
}
