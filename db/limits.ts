// The sliding-window rate limit on Postgres: one row a subject and minute, in an unlogged table (lost at a crash,
// when a minute's counts matter least). Concurrent calls go out in groups: a subject is one row to update however
// many asked, so the row of the global limit is written once a group. Postgres's clock decides.

import { sql } from 'kysely'
import {
  bySubject,
  type Limit,
  type RateLimiter,
  share,
  type Taken,
  unlimited,
} from '../domain/limits.ts'
import { createGroup } from './group.ts'
import type { Db } from './schema.ts'
import { sqlState } from './transaction.ts'

export type PostgresLimits = RateLimiter & {
  /** Deletes one batch of counts that no window reaches, and says how many; 0: nothing is left. */
  prune(): Promise<number>
}

const pruneMax = 1000

export function openLimits(db: Db): PostgresLimits {
  const takes = createGroup({
    commit: (limits: Limit[]) => takeAll(db, limits),
    // Class 22: a user id that Postgres cannot store (a NUL byte) is the fault of one member.
    divides: (error) => sqlState(error)?.startsWith('22') === true,
  })
  return {
    take: (limit) => (limit.perMinute === 0 ? Promise.resolve(unlimited) : takes.run(limit)),
    prune: () => prune(db),
  }
}

async function takeAll(db: Db, limits: readonly Limit[]): Promise<Taken[]> {
  const taken: Taken[] = []
  let open = bySubject(limits)
  while (open.length > 0) {
    const counted = await count(db, open)
    for (const subject of open) {
      const row = counted.get(subject.subject)
      if (row === undefined) continue
      const { places, perMinute } = subject
      share(places.length, perMinute, row.current, row.previous, row.now_ms).forEach((one, i) => {
        taken[places[i] as number] = one
      })
    }
    open = open.filter((subject) => !counted.has(subject.subject))
  }
  return taken
}

type Counted = { subject: string; now_ms: number; current: number; previous: number }

/**
 * Counts as many of each subject's requests as `grantable` would grant, by the same arithmetic, and gives the counts
 * from before. A row that others made since our snapshot is in neither `locked` nor `inserted`: its subject is left
 * out of the answer, to be asked again, which happens to a subject's first request in a minute only. Rows are locked
 * and made in the order of subjects, so groups of two processes cannot wait for each other. Primary key only.
 */
async function count(
  db: Db,
  subjects: readonly (Limit & { places: number[] })[],
): Promise<Map<string, Counted>> {
  const { rows } = await sql<Counted>`
    with clock as materialized (
      select floor(extract(epoch from clock_timestamp()) * 1000)::bigint as now_ms),
    asked as materialized (
      select a.subject, a.per_minute, a.want, c.now_ms, c.now_ms / 60000 as minute,
        1 - (c.now_ms % 60000)::float8 / 60000 as covered
      from clock c, unnest(
        ${subjects.map((one) => one.subject)}::text[],
        ${subjects.map((one) => one.perMinute)}::integer[],
        ${subjects.map((one) => one.places.length)}::integer[]
      ) as a (subject, per_minute, want)),
    locked as materialized (
      select r.subject, r.count from rate_limits r
      join asked a on a.subject = r.subject and a.minute = r.minute
      order by r.subject for update of r),
    decided as materialized (
      select a.subject, a.minute, a.now_ms, l.subject is not null as known,
        coalesce(l.count, 0) as current, coalesce(p.count, 0) as previous,
        greatest(0, least(a.want, floor(
          a.per_minute - coalesce(p.count, 0) * a.covered - coalesce(l.count, 0))))::integer as fit
      from asked a
      left join locked l on l.subject = a.subject
      left join rate_limits p on p.subject = a.subject and p.minute = a.minute - 1),
    updated as (
      update rate_limits r set count = r.count + d.fit
      from decided d
      where d.known and d.fit > 0 and r.subject = d.subject and r.minute = d.minute),
    inserted as (
      insert into rate_limits (subject, minute, count)
      select subject, minute, fit from decided where not known and fit > 0 order by subject
      on conflict (subject, minute) do nothing
      returning subject)
    select d.subject, d.now_ms::float8 as now_ms, d.current, d.previous
    from decided d left join inserted i on i.subject = d.subject
    where d.known or d.fit = 0 or i.subject is not null`.execute(db)
  return new Map(rows.map((row) => [row.subject, row]))
}

/** By rate_limits_minute. The minute before this one still counts; one more is kept for clocks that differ. */
async function prune(db: Db): Promise<number> {
  const { numAffectedRows } = await sql`
    delete from rate_limits where (subject, minute) in (
      select subject, minute from rate_limits
      where minute < (select floor(extract(epoch from clock_timestamp()) / 60)::bigint - 2)
      limit ${sql.lit(pruneMax)} for update skip locked)`.execute(db)
  return Number(numAffectedRows)
}
