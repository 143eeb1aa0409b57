// Whoever is called over the network and is away, as rows that all instances share (`circuits`): an open circuit lets
// nobody through until probe_at, then one caller at a time. Opening and closing are told once, whoever sees them first: in
// that transaction the flags of the circuit are switched off and on again (db/flags.ts), and people are alerted of it.

import { sql } from 'kysely'
import { redact } from '../domain/redact.ts'
import { sendAlerts } from './alerts.ts'
import { disableFlags, restoreFlags } from './flags.ts'
import type { Db, Tx } from './schema.ts'
import { transaction } from './transaction.ts'

/** Stand in log lines and in `circuit_changes`, for alerts to be made of. */
export const circuitCodes = { opened: 'SASO-INFRA-9110', closed: 'SASO-INFRA-9111' } as const

export type Circuit = {
  name: string
  isOpen: boolean
  why: string
  tries: number
  /** Until somebody may try, ms; 0: now. */
  waitMs: number
}

/** Those that were ever open. */
export async function readCircuits(db: Db, names: readonly string[]): Promise<Circuit[]> {
  const { rows } = await sql<Circuit>`
    select name, is_open as "isOpen", why, tries,
      greatest(0, ceil(extract(epoch from probe_at - clock_timestamp()) * 1000))::float8 as "waitMs"
    from circuits where name = any(${[...names]}) order by name`.execute(db)
  return rows
}

/** For people: every circuit that was ever open, with when it last opened; the open ones first. */
export async function listCircuits(db: Db): Promise<(Circuit & { openedAt: Date })[]> {
  const { rows } = await sql<Circuit & { openedAt: Date }>`
    select name, is_open as "isOpen", why, tries, opened_at as "openedAt",
      greatest(0, ceil(extract(epoch from probe_at - clock_timestamp()) * 1000))::float8 as "waitMs"
    from circuits order by not is_open, name`.execute(db)
  return rows
}

export type Opening = {
  why: string
  /** Nobody is let through for so long, by the number of vain tries before. */
  waitMs(tries: number): number
  /** The caller had taken the probe. Whoever fails beside it says nothing new of an open circuit. */
  wasProbe: boolean
}

/** @returns whether it was closed: then it is the caller's to tell */
export async function openCircuit(
  db: Db,
  name: string,
  { why: said, waitMs, wasProbe }: Opening,
): Promise<boolean> {
  const why = readable(said)
  return await transaction(
    db,
    async (tx) => {
      await sql`
        insert into circuits (name, is_open, why, probe_at)
        values (${name}, false, '', clock_timestamp()) on conflict do nothing`.execute(tx)
      const before = await tx
        .selectFrom('circuits')
        .select(['is_open', 'tries'])
        .where('name', '=', name)
        .forUpdate()
        .executeTakeFirstOrThrow()
      if (before.is_open && !wasProbe) return false
      const tries = before.is_open ? before.tries + 1 : 0
      await sql`
        update circuits set is_open = true, why = ${why}, tries = ${tries},
          opened_at = case when is_open then opened_at else clock_timestamp() end,
          probe_at = clock_timestamp() + ${waitMs(tries)}::float8 * interval '1 ms'
        where name = ${name}`.execute(tx)
      if (!before.is_open) await tellOpened(tx, name, why)
      return !before.is_open
    },
    { isolation: 'read committed' },
  )
}

/** Whether this caller is the one that tries; nobody else does for `holdMs`. */
export async function takeProbe(db: Db, name: string, holdMs: number): Promise<boolean> {
  const { numAffectedRows } = await sql`
    update circuits set probe_at = clock_timestamp() + ${holdMs} * interval '1 ms'
    where name = ${name} and is_open and probe_at <= clock_timestamp()`.execute(db)
  return numAffectedRows === 1n
}

/** @returns for how many seconds it was open, to whoever closed it */
export async function closeCircuit(db: Db, name: string): Promise<number | undefined> {
  return await transaction(
    db,
    async (tx) => {
      const { rows } = await sql<{ seconds: number; why: string }>`
        update circuits set is_open = false, tries = 0, probe_at = clock_timestamp()
        where name = ${name} and is_open
        returning why, extract(epoch from clock_timestamp() - opened_at)::float8 as seconds`.execute(
        tx,
      )
      const [row] = rows
      if (row === undefined) return undefined
      await tellClosed(tx, name, row)
      return row.seconds
    },
    { isolation: 'read committed' },
  )
}

/** Of what a vendor said; an alert is read on a phone. */
const whyMax = 500

/** Without secrets, and without NUL, which Postgres does not take. */
const readable = (text: string): string =>
  redact(text).replaceAll('\0', '').slice(0, whyMax).toWellFormed()

async function tellOpened(tx: Tx, circuit: string, reason: string): Promise<void> {
  const at = await writeChange(tx, circuit, circuitCodes.opened, reason)
  const flags = await disableFlags(tx, circuit, reason)
  const told = { type: 'NotifyFlagAutoDisabled', circuit, reason, at } as const
  await sendAlerts(
    tx,
    flags.map((flag) => ({ ...told, flag })),
  )
}

async function tellClosed(
  tx: Tx,
  circuit: string,
  { why, seconds }: { why: string; seconds: number },
): Promise<void> {
  const at = await writeChange(tx, circuit, circuitCodes.closed, why)
  const flags = await restoreFlags(tx, circuit, 'the vendor is back')
  const told = { type: 'NotifyFlagRecovered', circuit, seconds: Math.round(seconds), at } as const
  await sendAlerts(
    tx,
    flags.map((flag) => ({ ...told, flag })),
  )
}

/** @returns when, ISO 8601 */
async function writeChange(tx: Tx, name: string, code: string, why: string): Promise<string> {
  const { changed_at } = await tx
    .insertInto('circuit_changes')
    .values({ name, code, why })
    .returning('changed_at')
    .executeTakeFirstOrThrow()
  return changed_at.toISOString()
}
