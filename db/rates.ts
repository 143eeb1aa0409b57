// Rates shared by all instances, on Postgres: a bucket, or the next slot, is a row, and its time is Postgres's. The row's
// lock makes takers wait for each other.

import { sql } from 'kysely'
import {
  type Rate,
  type Rates,
  type SlotRates,
  type Slots,
  slotsAheadMs,
  type Tokens,
} from '../domain/rates.ts'
import type { Db } from './schema.ts'

export const openRates = (db: Db): Rates & SlotRates => ({
  take: (rate, want) => takeTokens(db, rate, want),
  count: (rate) => countTokens(db, rate),
  reserve: (rate, want) => reserveSlots(db, rate, want),
})

async function takeTokens(db: Db, rate: Rate, want: number): Promise<Tokens> {
  const { name, perSecond, burst } = rate
  // filled_at is read after the refill was counted: the instants between are lost, never counted twice.
  const { rows } = await sql<{ granted: number; left: number }>`
    with full_bucket as (
      insert into rate_buckets (name, tokens, filled_at)
      select ${name}, ${burst}::float8, clock_timestamp()
      where not exists (select from rate_buckets where name = ${name})
      on conflict do nothing
    ), filled as materialized (
      select name, ${filledTokens(rate)} as tokens from rate_buckets where name = ${name} for update
    ), taken as (
      select name, tokens, least(${want}::int, floor(tokens))::int as granted from filled
    )
    update rate_buckets b set tokens = t.tokens - t.granted, filled_at = clock_timestamp()
    from taken t where b.name = t.name
    returning t.granted, b.tokens as left`.execute(db)
  const [row] = rows
  // The row was made just now, by us or by another: it is seen from the next statement on.
  if (row === undefined) return await takeTokens(db, rate, want)
  const missing = Math.max(0, 1 - row.left)
  return { granted: row.granted, waitMs: Math.ceil((missing / perSecond) * 1000) }
}

async function countTokens(db: Db, rate: Rate): Promise<Tokens> {
  const { rows } = await sql<{ tokens: number }>`
    select ${filledTokens(rate)} as tokens from rate_buckets where name = ${rate.name}`.execute(db)
  const tokens = rows[0]?.tokens ?? rate.burst
  const missing = Math.max(0, 1 - tokens)
  return { granted: Math.floor(tokens), waitMs: Math.ceil((missing / rate.perSecond) * 1000) }
}

const filledTokens = ({ perSecond, burst }: Rate) => sql<number>`
  least(${burst}::float8, tokens + ${perSecond}::float8
    * greatest(0, extract(epoch from clock_timestamp() - filled_at)::float8))`

async function reserveSlots(
  db: Db,
  { name, perSecond }: Pick<Rate, 'name' | 'perSecond'>,
  want: number,
): Promise<Slots> {
  const { rows } = await sql<Slots>`
    select granted, wait_ms as "waitMs"
    from reserve_slots(${name}, ${perSecond}::float8, ${want}::int, ${slotsAheadMs}::float8)`.execute(
    db,
  )
  return rows[0] as Slots
}
