// The dead letter queues a page at a time, however much lies in them: each queue's index job_i15 (name, created_on) is
// read from where the last page ended, and no further than a page needs. A search for words looks at so many rows and
// then says how far it came. Payloads are not read.

import { type RawBuilder, type SqlBool, sql } from 'kysely'
import { deadLetterOf, type QueueName } from '../domain/queues.ts'
import type { Db, Tx } from './schema.ts'
import { readByKey, transaction } from './transaction.ts'

/** Failures of these queues whose error's message or class has these words, in either case. */
export type FailedFilter = { queues: readonly QueueName[]; text?: string | undefined }

/** Where one lies: when it died, µs since 1970, and its id in the dead letter queue. */
export type FailedPlace = { us: string; id: string }

export type Look = {
  /** The page begins behind this one; undefined: at the end of the direction. */
  from?: FailedPlace | undefined
  direction: 'older' | 'newer'
  /** Nothing that died after this, µs since 1970. */
  until?: string | undefined
  /** Rows looked at. */
  lookMax: number
  /** Rows found. */
  max: number
}

export type Looked = {
  /** In the order of the direction. */
  found: FailedPlace[]
  looked: number
  /** The last one looked at. Undefined: there was none. */
  last: FailedPlace | undefined
}

const lookMaxMs = 10_000

/** @throws when it takes longer than 10 s */
export async function lookFailed(db: Db, filter: FailedFilter, look: Look): Promise<Looked> {
  return await transaction(
    db,
    async (tx) => {
      await planLook(tx)
      const { rows } = await lookQuery(filter, look).execute(tx)
      const [first] = rows
      if (first === undefined || first.looked === 0)
        return { found: [], looked: 0, last: undefined }
      return {
        found: rows.flatMap(({ us, id }) => (us !== null && id !== null ? [{ us, id }] : [])),
        looked: first.looked,
        last: { us: first.last_us as string, id: first.last_id as string },
      }
    },
    { isolation: 'read committed', maxAttempts: 1 },
  )
}

/** What the transaction of `lookQuery` begins with. */
export async function planLook(tx: Tx): Promise<void> {
  await readByKey(tx)
  await sql`set local statement_timeout = ${sql.lit(`${lookMaxMs}ms`)}`.execute(tx)
}

type Row = {
  us: string | null
  id: string | null
  looked: number
  last_us: string | null
  last_id: string | null
}

/** A sort of a few, per queue those that died in the same microsecond, then what the queues gave together. */
export function lookQuery(
  { queues, text }: FailedFilter,
  { from, direction, until, lookMax, max }: Look,
): RawBuilder<Row> {
  const way = direction === 'older' ? sql`desc` : sql`asc`
  const back = direction === 'older' ? sql`asc` : sql`desc`
  return sql<Row>`
    with looked as materialized (
      select l.id, l.created_on, ${fits(text)} as fits
      from unnest(${queues.map(deadLetterOf)}::text[]) as n (name)
      cross join lateral (
        select j.id, j.created_on, coalesce(j.source_output, j.output) as output
        from pgboss.job j
        where j.name = n.name and j.state < 'active' and ${behind(from, direction)}
          and ${until === undefined ? sql<SqlBool>`true` : sql<SqlBool>`j.created_on <= ${moment(until)}`}
        order by j.created_on ${way}, j.id ${way} limit ${lookMax}) as l
      order by l.created_on ${way}, l.id ${way} limit ${lookMax}),
    found as (
      select ${micros} as us, id, created_on from looked where fits
      order by created_on ${way}, id ${way} limit ${max}),
    last as (
      select ${micros} as last_us, id as last_id, (select count(*)::int from looked) as looked
      from looked order by created_on ${back}, id ${back} limit 1)
    select found.us, found.id, last.looked, last.last_us, last.last_id
    from last left join found on true
    order by found.created_on ${way}, found.id ${way}`
}

const micros = sql`(extract(epoch from created_on) * 1000000)::bigint::text`

const moment = (us: string) => sql`(timestamptz 'epoch' + ${us}::float8 * interval '1 microsecond')`

/** The first half is for the index. */
function behind(from: FailedPlace | undefined, direction: Look['direction']) {
  if (from === undefined) return sql<SqlBool>`true`
  const at = moment(from.us)
  return direction === 'older'
    ? sql<SqlBool>`j.created_on <= ${at} and (j.created_on, j.id) < (${at}, ${from.id}::uuid)`
    : sql<SqlBool>`j.created_on >= ${at} and (j.created_on, j.id) > (${at}, ${from.id}::uuid)`
}

/** A stack begins with the class of its error. */
function fits(text: string | undefined) {
  if (text === undefined || text === '') return sql<SqlBool>`true`
  const has = (where: RawBuilder<unknown>) =>
    sql<SqlBool>`strpos(lower(${where}), lower(${text})) > 0`
  return sql<SqlBool>`coalesce(${has(said)} or ${has(sql`split_part(l.output->>'stack', e'\\n', 1)`)}, false)`
}

const said = sql`coalesce(l.output->>'message', l.output->>'value', l.output#>>'{}')`

/** Of the database: what dies later is not meant. */
export async function readMoment(db: Db): Promise<string> {
  const { rows } = await sql<{ us: string }>`
    select (extract(epoch from clock_timestamp()) * 1000000)::bigint::text as us`.execute(db)
  return rows[0]?.us as string
}

export type ErrorGroup = { begins: string; count: number }

/**
 * How the errors of the latest failures begin, up to the first digit or quotation mark (from there on they differ from
 * job to job), the most frequent first.
 */
export async function readErrorGroups(
  db: Db,
  queues: readonly QueueName[],
  { lookMax, max }: { lookMax: number; max: number },
): Promise<ErrorGroup[]> {
  return await transaction(
    db,
    async (tx) => {
      await planLook(tx)
      const { rows } = await sql<ErrorGroup>`
        select begins, count(*)::int as count from (
          select coalesce(nullif(trim(substring(left(${said}, 200) from '^[^0-9"''“‘«]{4,60}')), ''),
            left(${said}, 60)) as begins
          from unnest(${queues.map(deadLetterOf)}::text[]) as n (name)
          cross join lateral (
            select j.created_on, coalesce(j.source_output, j.output) as output
            from pgboss.job j where j.name = n.name and j.state < 'active'
            order by j.created_on desc limit ${lookMax}) as l
          order by l.created_on desc limit ${lookMax}) as latest
        where begins <> '' group by begins order by count desc, begins limit ${max}`.execute(tx)
      return rows
    },
    { isolation: 'read committed', maxAttempts: 1 },
  )
}

export type HourCount = { at: Date; count: number }

/** How many of those that still lie there died in each of the last `hours`; counts stop at 10,000 an hour and queue. */
export async function readFailedHours(
  db: Db,
  queues: readonly QueueName[],
  hours: number,
): Promise<HourCount[]> {
  const { rows } = await sql<HourCount>`
    select h.at, sum(c.n)::int as count
    from generate_series(date_trunc('hour', now()) - ${hours - 1} * interval '1 hour',
      date_trunc('hour', now()), interval '1 hour') as h (at)
    cross join unnest(${queues.map(deadLetterOf)}::text[]) as n (name)
    cross join lateral (
      select count(*) as n from (
        select from pgboss.job j
        where j.name = n.name and j.created_on >= h.at and j.created_on < h.at + interval '1 hour'
        limit 10000) as one) as c
    group by h.at order by h.at`.execute(db)
  return rows
}
