// Whose turn a source is, on Postgres: its lock, a lease of some seconds, and its gate, the time before which nobody asks
// it. One unlogged row a source, by Postgres's clock. Calls that come together go out together. What a crash took away
// counts as closed for a lease.

import { sql } from 'kysely'
import { v7 as uuidv7 } from 'uuid'
import type { Lock, LockFactory, SourceGate } from '../domain/loader.ts'
import { createGroup } from './group.ts'
import type { Db } from './schema.ts'

const divides = () => false

type Asked = { source: string; leaseMs: number; token: string }
type Held = { source: string; token: string }
type Look = { source: string; unknownMs: number }
type Closing = { source: string; restMs: number }

export function openLoaderTurns(db: Db): { locks: LockFactory; gate: SourceGate } {
  const takes = createGroup({ commit: (asked: Asked[]) => take(db, asked), divides })
  const releases = createGroup({ commit: (held: Held[]) => release(db, held), divides })
  const looks = createGroup({ commit: (asked: Look[]) => look(db, asked), divides })
  const closings = createGroup({ commit: (all: Closing[]) => close(db, all), divides })
  /** Gates of the sources we have locked, by performance.now(): nobody but us closes them meanwhile. */
  const openAt = new Map<string, number>()

  const locks: LockFactory = {
    async tryLock(source, leaseMs): Promise<Lock | undefined> {
      const token = uuidv7()
      const until = performance.now() + leaseMs
      const waitMs = await takes.run({ source, leaseMs, token })
      if (waitMs === undefined) return undefined
      openAt.set(source, performance.now() + waitMs)
      return {
        until,
        async release() {
          openAt.delete(source)
          await releases.run({ source, token })
        },
      }
    },
  }
  const gate: SourceGate = {
    async waitMs(source, unknownMs) {
      const at = openAt.get(source)
      // Once: should the lock be lost, or never be given back, it is asked for again.
      openAt.delete(source)
      if (at !== undefined) return Math.max(0, at - performance.now())
      return await looks.run({ source, unknownMs })
    },
    async close(source, restMs) {
      openAt.delete(source)
      await closings.run({ source, restMs })
    },
  }
  return { locks, gate }
}

const ms = (value: ReturnType<typeof sql>) => sql`${value} * interval '1 millisecond'`

const waitMs = sql`
  greatest(0, 1000 * extract(epoch from next_at - clock_timestamp()))::float8 as wait_ms`

/** Of two that try at once the second skips the row. @returns how long the gate is closed; undefined: not ours */
async function take(db: Db, asked: Asked[]): Promise<(number | undefined)[]> {
  const { rows } = await sql<{ token: string; wait_ms: number }>`
    with asked as materialized (
      select * from unnest(${asked.map(({ source }) => source)}::text[],
        ${asked.map(({ leaseMs }) => leaseMs)}::float8[],
        ${asked.map(({ token }) => token)}::uuid[]) as a (source, lease_ms, token)),
    free as materialized (
      select source from loader_turns
      where source in (select source from asked)
        and (leased_until is null or leased_until < clock_timestamp())
      order by source for update skip locked)
    update loader_turns t set token = a.token,
      leased_until = clock_timestamp() + ${ms(sql`a.lease_ms`)}
    from asked a where t.source = a.source and t.source in (select source from free)
    returning t.token, ${waitMs}`.execute(db)
  const taken = new Map(rows.map((row) => [row.token, row.wait_ms]))
  return asked.map(({ token }) => taken.get(token))
}

async function release(db: Db, held: Held[]): Promise<undefined[]> {
  await sql`
    with held as materialized (
      select t.source from unnest(${held.map(({ source }) => source)}::text[],
        ${held.map(({ token }) => token)}::uuid[]) as h (source, token)
      join loader_turns t on t.source = h.source and t.token = h.token
      order by t.source for update of t)
    update loader_turns set leased_until = null, token = null
    where source in (select source from held)`.execute(db)
  return held.map(() => undefined)
}

async function look(db: Db, asked: Look[]): Promise<number[]> {
  const { rows } = await sql<{ source: string; wait_ms: number }>`
    select source, ${waitMs}
    from loader_turns where source = any(${asked.map(({ source }) => source)})`.execute(db)
  const known = new Map(rows.map((row) => [row.source, row.wait_ms]))
  const unknown = asked.filter(({ source }) => !known.has(source))
  if (unknown.length > 0) await make(db, unknown)
  return asked.map(({ source, unknownMs }) => known.get(source) ?? unknownMs)
}

async function make(db: Db, unknown: Look[]): Promise<void> {
  await sql`
    insert into loader_turns (source, next_at)
    select source, clock_timestamp() + ${ms(sql`unknown_ms`)}
    from unnest(${unknown.map(({ source }) => source)}::text[],
      ${unknown.map(({ unknownMs }) => unknownMs)}::float8[]) as u (source, unknown_ms)
    order by source on conflict do nothing`.execute(db)
}

/** clock_timestamp() after the row is ours: a wait for it makes the rest no shorter. */
async function close(db: Db, all: Closing[]): Promise<undefined[]> {
  await sql`
    with closing as materialized (
      select t.source, c.rest_ms from unnest(${all.map(({ source }) => source)}::text[],
        ${all.map(({ restMs }) => restMs)}::float8[]) as c (source, rest_ms)
      join loader_turns t on t.source = c.source
      order by t.source for update of t)
    update loader_turns t set next_at = clock_timestamp() + ${ms(sql`c.rest_ms`)}
    from closing c where t.source = c.source`.execute(db)
  return all.map(() => undefined)
}
