// Idempotency on Postgres alone: who may work on a key, and what was answered under it before. Concurrent calls go
// out in groups, two round trips each. Takes and frees locks and deletes what is too old; a record is only ever
// written by db/receipts.ts, in the transaction of the effect.
//
// Each statement is a transaction of its own at READ COMMITTED: the order of two statements is what makes `begin`
// right, and SERIALIZABLE would add conflicts between neighbours on one index page. Locks live in an unlogged table,
// so no commit here waits for the disk (Postgres flushes no WAL for a transaction that wrote none).

import { randomUUID } from 'node:crypto'
import { sql } from 'kysely'
import {
  type Begun,
  type FoundRecord,
  type IdempotencyStore,
  lockSeconds,
  recordSeconds,
  runningRetryMs,
} from '../domain/idempotency.ts'
import { createGroup } from './group.ts'
import type { Db } from './schema.ts'
import { sqlState } from './transaction.ts'

export type PostgresIdempotency = IdempotencyStore & {
  /** The record alone, for a store that keeps its locks elsewhere. Deletes one that is too old. */
  find(key: string): Promise<FoundRecord | undefined>
  /** Deletes one batch of old records and dead locks, and says how many; 0: nothing is left. */
  prune(): Promise<number>
}

type Asked = { key: string; fingerprint: string; token: string }
type Held = { key: string; token: string }
type Seen = { record?: FoundRecord; lock?: { fingerprint: string; leftMs: number } }

const pruneMax = 1000
/** A SELECT of its own: Postgres takes no volatile function for the bound of an index. */
const oldest = sql`(select clock_timestamp() - make_interval(secs => ${sql.lit(recordSeconds)}))`

/** Class 22: text that Postgres cannot store (a NUL byte) is the fault of one member. */
const divides = (error: unknown): boolean => sqlState(error)?.startsWith('22') === true

export function openIdempotency(db: Db): PostgresIdempotency {
  const begins = createGroup({ commit: (asked: Asked[]) => beginAll(db, asked), divides })
  const finds = createGroup({ commit: (keys: string[]) => findAll(db, keys), divides })
  const frees = createGroup({ commit: (held: Held[]) => freeAll(db, held), divides })
  return {
    begin: (key, fingerprint) => begins.run({ key, fingerprint, token: randomUUID() }),
    finish: (key, _fingerprint, token) => frees.run({ key, token }),
    release: (key, token) => frees.run({ key, token }),
    find: (key) => finds.run(key),
    prune: () => prune(db),
  }
}

/**
 * Takes first, looks second. Whoever held a lock before us committed its record before it freed the lock, thus before
 * we took it, and the second statement's snapshot is younger than our taking: a record cannot be missed. (In one
 * statement it could: INSERT … ON CONFLICT meets rows that the statement's own snapshot does not show.)
 */
async function beginAll(db: Db, asked: readonly Asked[]): Promise<Begun[]> {
  // One key several times in a group: the first caller takes for all, the others find it taken.
  const first = new Map<string, Asked>()
  for (const one of asked) if (!first.has(one.key)) first.set(one.key, one)
  const taken = await take(db, [...first.values()])
  const seen = await look(db, [...first.keys()])

  const needless = [...first.values()].filter(
    ({ key }) => taken.has(key) && seen.get(key)?.record !== undefined,
  )
  if (needless.length > 0) await freeAll(db, needless)
  return asked.map((one) =>
    answer(one, taken.has(one.key) && first.get(one.key) === one, seen.get(one.key)),
  )
}

/** Another request under the key is told before the state of the first one. */
function answer({ fingerprint, token }: Asked, mine: boolean, seen: Seen | undefined): Begun {
  const known = (seen?.record ?? seen?.lock)?.fingerprint
  if (!mine && known !== undefined && known !== fingerprint) return { is: 'reused' }
  if (seen?.record !== undefined) {
    return known === fingerprint ? { is: 'done', response: seen.record.response } : { is: 'reused' }
  }
  if (mine) return { is: 'mine', token }
  const leftMs = seen?.lock?.leftMs ?? runningRetryMs
  return { is: 'running', retryAfterMs: Math.min(leftMs, runningRetryMs) }
}

/**
 * The keys now locked for us: those without a record whose lock nobody holds or outlived its 30 s. Rows are locked in
 * the order of keys, here and in freeAll, or two groups could wait for each other. Primary keys only.
 */
async function take(db: Db, asked: readonly Asked[]): Promise<Set<string>> {
  const { rows } = await sql<{ key: string }>`
    insert into idempotency_locks as l (key, fingerprint, token, locked_until)
    select a.key, a.fingerprint, a.token,
      clock_timestamp() + make_interval(secs => ${sql.lit(lockSeconds)})
    from unnest(
      ${asked.map((one) => one.key)}::text[],
      ${asked.map((one) => one.fingerprint)}::text[],
      ${asked.map((one) => one.token)}::uuid[]
    ) as a (key, fingerprint, token)
    where not exists (
      select from idempotency_records r where r.key = a.key and r.created_at > ${oldest})
    order by a.key
    on conflict (key) do update
      set fingerprint = excluded.fingerprint, token = excluded.token,
        locked_until = excluded.locked_until
      where l.locked_until <= clock_timestamp()
    returning l.key`.execute(db)
  return new Set(rows.map((row) => row.key))
}

/**
 * What stands under each key. A record older than 48 h answers nothing, but its primary key would refuse the next
 * one: it goes. One that is locked is being deleted already, and an insert waits for that by itself.
 */
async function look(db: Db, keys: readonly string[]): Promise<Map<string, Seen>> {
  const { rows } = await sql<{
    key: string
    answered: string | null
    status: number
    headers: Record<string, string>
    body: string
    left_seconds: number
    working: string | null
    left_ms: number
  }>`
    with asked as (select key from unnest(${keys}::text[]) as a (key)),
    expired as (
      delete from idempotency_records where key in (
        select r.key from idempotency_records r join asked using (key)
        where r.created_at <= ${oldest} for update of r skip locked))
    select a.key, r.fingerprint as answered, r.status, r.headers, r.body,
      ceil(extract(epoch from r.created_at - ${oldest}))::float8 as left_seconds,
      l.fingerprint as working,
      ceil(extract(epoch from l.locked_until - clock_timestamp()) * 1000)::float8 as left_ms
    from asked a
    left join idempotency_records r on r.key = a.key and r.created_at > ${oldest}
    left join idempotency_locks l on l.key = a.key`.execute(db)
  return new Map(
    rows.map((row): [string, Seen] => [
      row.key,
      {
        ...(row.answered !== null && {
          record: {
            fingerprint: row.answered,
            response: { status: row.status, headers: row.headers, body: row.body },
            leftSeconds: Math.max(1, row.left_seconds),
          },
        }),
        ...(row.working !== null && {
          lock: { fingerprint: row.working, leftMs: Math.max(1, row.left_ms) },
        }),
      },
    ]),
  )
}

async function findAll(db: Db, keys: readonly string[]): Promise<(FoundRecord | undefined)[]> {
  const seen = await look(db, [...new Set(keys)])
  return keys.map((key) => seen.get(key)?.record)
}

/** A lock that passed to another holder has another token and stays. */
async function freeAll(db: Db, held: readonly Held[]): Promise<undefined[]> {
  await sql`
    with due as (
      select l.key from idempotency_locks l
      join unnest(
        ${held.map((one) => one.key)}::text[], ${held.map((one) => one.token)}::uuid[]
      ) as h (key, token) on h.key = l.key and h.token = l.token
      order by l.key for update of l)
    delete from idempotency_locks l using due where l.key = due.key`.execute(db)
  return held.map(() => undefined)
}

/** Oldest pages first by idempotency_records_created; rows that others work on are left for the next batch. */
async function prune(db: Db): Promise<number> {
  const records = await sql`
    delete from idempotency_records where key in (
      select key from idempotency_records where created_at <= ${oldest}
      limit ${sql.lit(pruneMax)} for update skip locked)`.execute(db)
  const locks = await sql`
    delete from idempotency_locks where key in (
      select key from idempotency_locks where locked_until <= clock_timestamp() - interval '1 minute'
      limit ${sql.lit(pruneMax)} for update skip locked)`.execute(db)
  return Number(records.numAffectedRows) + Number(locks.numAffectedRows)
}
