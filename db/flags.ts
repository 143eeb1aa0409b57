// Feature flags as rows that all instances share. A circuit switches its flags off and on again (db/circuits.ts), a person
// any of them; what a person switched off no circuit switches on. Every change is kept in flag_changes, with who and why.

import { sql } from 'kysely'
import { type FlagName, flags, flagsOf } from '../domain/flags.ts'
import type { Db, Tx } from './schema.ts'
import { transaction } from './transaction.ts'

export type FlagRow = {
  name: FlagName
  enabled: boolean
  circuit: string
  purpose: string
  /** The present state is its circuit's doing. */
  is_auto: boolean
  /** Null, as the next two: nobody ever changed it. */
  changed_by: string | null
  reason: string | null
  changed_at: Date | null
  /** Whether its vendor is away just now. */
  circuit_open: boolean
}

/** All of the catalogue, in its order. */
export async function readFlags(db: Db | Tx): Promise<FlagRow[]> {
  const { rows } = await sql<FlagRow>`
    select c.name, c.circuit, c.purpose, coalesce(f.enabled, true) as enabled,
      coalesce(f.is_auto, false) as is_auto, f.changed_by, f.reason, f.changed_at,
      coalesce(o.is_open, false) as circuit_open
    from unnest(${flags.map(({ name }) => name)}::text[], ${flags.map(({ circuit }) => circuit)}::text[],
      ${flags.map(({ purpose }) => purpose)}::text[]) with ordinality as c (name, circuit, purpose, place)
    left join flags f on f.name = c.name and f.changed_by <> '' left join circuits o on o.name = c.circuit
    order by c.place`.execute(db)
  return rows
}

/** By the primary key: cheap enough to ask before each batch. */
export async function isEnabled(db: Db | Tx, name: FlagName): Promise<boolean> {
  const row = await db
    .selectFrom('flags')
    .select('enabled')
    .where('name', '=', name)
    .executeTakeFirst()
  return row?.enabled ?? true
}

/** Of these circuits those of which a person has switched a flag off: nobody is to call there, not even to try. */
export async function circuitsSwitchedOff(
  db: Db,
  circuits: readonly string[],
): Promise<Set<string>> {
  const named = circuits.flatMap((circuit) => flagsOf(circuit))
  if (named.length === 0) return new Set()
  const rows = await db
    .selectFrom('flags')
    .select('name')
    .where(
      'name',
      'in',
      named.map(({ name }) => name),
    )
    .where('enabled', '=', false)
    .where('is_auto', '=', false)
    .execute()
  const off = new Set(rows.map(({ name }) => name))
  return new Set(named.filter(({ name }) => off.has(name)).map(({ circuit }) => circuit))
}

export type FlagChange = { reason: string; by: string }

/**
 * A person's word: it stands until a person says otherwise, also where it is what the circuit had done already.
 * @returns whether anything changed
 */
export async function setFlag(
  db: Db,
  name: FlagName,
  enabled: boolean,
  { reason, by }: FlagChange,
): Promise<boolean> {
  return await transaction(
    db,
    async (tx) => {
      const before = await lockFlag(tx, name)
      if (before.enabled === enabled && !before.is_auto) return false
      await writeFlag(tx, { name, enabled, is_auto: false, changed_by: by, reason })
      return true
    },
    { isolation: 'read committed' },
  )
}

/** In the transaction that opens the circuit. @returns the flags that were on until now */
export async function disableFlags(tx: Tx, circuit: string, reason: string): Promise<FlagName[]> {
  return await change(tx, circuit, reason, false, ({ enabled }) => enabled)
}

/** In the transaction that closes the circuit. @returns the flags that the circuit had switched off */
export async function restoreFlags(tx: Tx, circuit: string, reason: string): Promise<FlagName[]> {
  return await change(tx, circuit, reason, true, ({ enabled, is_auto }) => !enabled && is_auto)
}

type State = { enabled: boolean; is_auto: boolean }

/** Locks in the order of the catalogue, after the circuit. */
async function change(
  tx: Tx,
  circuit: string,
  reason: string,
  enabled: boolean,
  isMeant: (before: State) => boolean,
): Promise<FlagName[]> {
  const changed: FlagName[] = []
  for (const { name } of flagsOf(circuit)) {
    if (!isMeant(await lockFlag(tx, name))) continue
    const changed_by = `circuit ${circuit}`
    await writeFlag(tx, { name, enabled, is_auto: true, changed_by, reason })
    changed.push(name)
  }
  return changed
}

/** A flag that nobody changed yet gets a row to lock, changed by '': of two first words the second is seen to be one. */
async function lockFlag(tx: Tx, name: FlagName): Promise<State> {
  await sql`
    insert into flags (name, enabled, is_auto, changed_by, reason)
    values (${name}, true, false, '', '') on conflict do nothing`.execute(tx)
  return await tx
    .selectFrom('flags')
    .select(['enabled', 'is_auto'])
    .where('name', '=', name)
    .forUpdate()
    .executeTakeFirstOrThrow()
}

type Written = State & { name: FlagName; changed_by: string; reason: string }

async function writeFlag(tx: Tx, { name, ...state }: Written): Promise<void> {
  const changed_at = sql<Date>`clock_timestamp()`
  await tx
    .updateTable('flags')
    .set({ ...state, changed_at })
    .where('name', '=', name)
    .execute()
  await tx
    .insertInto('flag_changes')
    .values({ name, ...state })
    .execute()
}

export type FlagChangeRow = {
  name: string
  enabled: boolean
  is_auto: boolean
  changed_by: string
  reason: string
  changed_at: Date
}

/** The latest first. */
export async function readFlagChanges(db: Db, max: number): Promise<FlagChangeRow[]> {
  return await db
    .selectFrom('flag_changes')
    .select(['name', 'enabled', 'is_auto', 'changed_by', 'reason', 'changed_at'])
    .orderBy('id', 'desc')
    .limit(max)
    .execute()
}
