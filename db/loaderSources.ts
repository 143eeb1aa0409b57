// The sources of the event loader as people and its instances see them: descriptions in the table, what every instance
// has in its list, and how each stands. Pausing, resetting and removing go through the fence, so that a page that is under
// way when they happen is not stored.

import { sql } from 'kysely'
import type { Db, Tx } from './schema.ts'
import { transaction } from './transaction.ts'

const readCommitted = { isolation: 'read committed' } as const

/** Descriptions that stand in the table, by name. */
export async function readDefinitions(db: Db): Promise<Map<string, object>> {
  const { rows } = await sql<{ name: string; definition: object }>`
    select name, definition from loader_sources where definition is not null order by name`.execute(
    db,
  )
  return new Map(rows.map(({ name, definition }) => [name, definition]))
}

/**
 * Shows that these are in somebody's list; makes the rows of those that are new.
 * @returns those that nobody ever asked
 */
export async function noteSources(db: Db, names: readonly string[]): Promise<Set<string>> {
  const { rows } = await sql<{ name: string }>`
    with noted as materialized (
      select name from loader_sources
      where name = any(${[...names]}) and owner is null order by name),
    seen as (
      update loader_sources set seen_at = clock_timestamp() where name = any(array(
        select name from loader_sources
        where name = any(${[...names]})
          and (seen_at is null or seen_at < clock_timestamp() - interval '5 seconds')
        order by name for update skip locked))),
    made as (
      insert into loader_sources (name, seen_at)
      select name, clock_timestamp() from unnest(${[...names]}::text[]) as name
      where name not in (select name from loader_sources) order by name
      on conflict do nothing returning name)
    select name from noted union all select name from made`.execute(db)
  return new Set(rows.map(({ name }) => name))
}

/** @returns whether it is new; it keeps its cursor when it is not */
export async function addSource(db: Db, name: string, definition: object): Promise<boolean> {
  const { rows } = await sql<{ isNew: boolean }>`
    insert into loader_sources (name, definition) values (${name}, ${JSON.stringify(definition)})
    on conflict (name) do update set definition = excluded.definition
    returning xmax = 0 as "isNew"`.execute(db)
  return rows[0]?.isNew ?? false
}

/** Its events and its cursor stay. @returns whether it stood in the table */
export async function removeSource(db: Db, name: string): Promise<boolean> {
  const { numAffectedRows } = await sql`
    update loader_sources set definition = null, seen_at = null
    where name = ${name} and definition is not null`.execute(db)
  return numAffectedRows === 1n
}

/** @returns whether it was not paused already; undefined: there is no such source */
export async function pauseSource(db: Db, name: string): Promise<boolean | undefined> {
  return await change(db, name, async (tx, wasPaused) => {
    await sql`update loader_sources set paused_at = coalesce(paused_at, clock_timestamp()),
      fence = fence + 1, owner = 'paused' where name = ${name}`.execute(tx)
    return !wasPaused
  })
}

/** @returns whether it was paused; undefined: there is no such source */
export async function resumeSource(db: Db, name: string): Promise<boolean | undefined> {
  return await change(db, name, async (tx, wasPaused) => {
    await sql`update loader_sources set paused_at = null where name = ${name}`.execute(tx)
    return wasPaused
  })
}

/**
 * Sets the cursor. What was loaded above it is deleted, so that each event is there once when it comes again; ids below
 * it that were not loaded are passed over. Its backoff ends.
 * @returns how many events were deleted; undefined: there is no such source
 */
export async function resetSource(db: Db, name: string, toId: bigint): Promise<number | undefined> {
  return await change(db, name, async (tx) => {
    await sql`update loader_sources set last_id = ${toId}, scan_id = null, fence = fence + 1,
      owner = 'reset', failures = 0, last_error = null where name = ${name}`.execute(tx)
    await sql`delete from loader_seen where source = ${name}`.execute(tx)
    const { numAffectedRows } = await sql`
      delete from loaded_events where source = ${name} and id > ${toId}`.execute(tx)
    return Number(numAffectedRows ?? 0)
  })
}

async function change<T>(
  db: Db,
  name: string,
  run: (tx: Tx, wasPaused: boolean) => Promise<T>,
): Promise<T | undefined> {
  return await transaction(
    db,
    async (tx) => {
      const { rows } = await sql<{ paused: boolean }>`
        select paused_at is not null as paused from loader_sources where name = ${name} for update`.execute(
        tx,
      )
      const [row] = rows
      return row && (await run(tx, row.paused))
    },
    readCommitted,
  )
}

/** For a reset: how many events it would delete. */
export async function countAbove(db: Db, name: string, id: bigint): Promise<number> {
  const { rows } = await sql<{ n: number }>`
    select count(*)::int as n from loaded_events where source = ${name} and id > ${id}`.execute(db)
  return rows[0]?.n ?? 0
}

/**
 * paused; failing; ok; new: never asked; silent: no success for a minute, though nothing failed (does a loader run?);
 * gone: in nobody's list any more.
 */
export type SourceState = 'paused' | 'failing' | 'ok' | 'new' | 'silent' | 'gone'

export type SourceStatus = {
  source: string
  state: SourceState
  last_id: string
  /** The newest id that the source tells of. */
  newest_id: string | null
  /** newest_id less last_id: events, where the source leaves no gaps. */
  lag_events: number | null
  /** Since its last success. */
  lag_seconds: number | null
  /** Since the last event that was new. */
  event_seconds: number | null
  loaded: string
  rate_per_second: number
  failures: number
  last_error: string | null
  failed_at: Date | null
  owner: string | null
  from: 'table' | 'file'
}

/** `names`: only these; undefined: all. By name. */
export async function readSourceStatus(db: Db, names?: readonly string[]): Promise<SourceStatus[]> {
  const since = (at: string) => sql`extract(epoch from clock.now - ${sql.ref(at)})::float8`
  const { rows } = await sql<SourceStatus>`
    select name as source,
      case when paused_at is not null then 'paused'
        when definition is null and coalesce(seen_at < clock.now - interval '1 minute', true) then 'gone'
        when failures > 0 then 'failing'
        when ok_at is null then 'new'
        when ok_at < clock.now - interval '1 minute' then 'silent'
        else 'ok' end as state,
      last_id::text, newest_id::text,
      greatest(0, newest_id - last_id)::float8 as lag_events,
      ${since('ok_at')} as lag_seconds, ${since('event_at')} as event_seconds,
      loaded::text,
      coalesce(rate * exp(-least(700, ${since('event_at')} / 60)) / 60, 0)::float8 as rate_per_second,
      failures, last_error, failed_at,
      case when owner in ('paused', 'reset') then null else owner end as owner,
      case when definition is null then 'file' else 'table' end as "from"
    from loader_sources cross join (select clock_timestamp() as now offset 0) clock
    where ${names === undefined} or name = any(${[...(names ?? [])]})
    order by name`.execute(db)
  return rows
}
