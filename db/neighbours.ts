// Who is like whom. Each list is the exact top of all others as far as it goes: up to `keptMax`, of which similarMax are
// served. So one that leaves a list makes it shorter and not wrong, and it is made anew only when it has become too
// short. Lists are written in turns, one item's after the other: an item that is written between another one's look and
// its turn is looked at once more in that turn, so that none of two that came together misses the other.

import { sql } from 'kysely'
import { similarMax } from '../domain/items.ts'
import { fromBytes, innerProduct } from '../domain/vectors.ts'
import { type ItemBody, readItems, sendItemJobs } from './items.ts'
import type { Db, Tx } from './schema.ts'
import { sqlState, transaction } from './transaction.ts'

/** In a list: half as many again as are served, to outlast some that leave. */
export const keptMax = 32
/** The nearest by code that are compared exactly. */
export const candidatesMax = 400
/** Those that may have to take it into their own lists, besides. */
const reachedMax = 1000
/** How much farther by code than the farthest of a list one may seem that belongs in it: twice the deviation. */
const reachMargin = 40

export type Subject = {
  spaceId: number
  contentVersion: string
  vector: Float32Array
  /** The turn before the look at the others. */
  since: string
}

/** What an item is compared by; undefined: it is gone, or not embedded. */
export async function readSubject(db: Db, itemId: string): Promise<Subject | undefined> {
  // Before the look: what is written after it is found by its turn.
  const turn = await sql<{ no: string }>`select no from item_turns`.execute(db)
  const { rows } = await sql<{ space_id: number; content_version: string; vector: Buffer }>`
    select space_id, content_version, vector from item_embeddings where item_id = ${itemId}`.execute(
    db,
  )
  const [row] = rows
  if (row === undefined) return undefined
  const { space_id: spaceId, content_version: contentVersion, vector } = row
  return { spaceId, contentVersion, vector: fromBytes(vector), since: turn.rows[0]?.no ?? '0' }
}

export type Scored = { id: string; score: number }
export type Nearest = {
  scored: Scored[]
  /** Every other item of the space is among them. */
  isAll: boolean
}

/**
 * Who may be near, by code (all codes of the space are read: 100,000 are 30 MB), compared exactly: the nearest, and all
 * whose own list it may belong into.
 */
export async function findNearest(db: Db, itemId: string, subject: Subject): Promise<Nearest> {
  const { spaceId } = subject
  // `offset 0`: the bits are counted once a row. One pass over the table, and a heap of the best.
  const { rows } = await sql<{ id: string; distance: number; reached: boolean }>`
    select item_id as id, distance, distance <= reach as reached from (
      select item_id, reach, bit_count(code # (
        select o.code from item_codes o join item_spaces s
          on s.id = o.space_id and s.generation = o.generation
        where o.item_id = ${itemId} and o.space_id = ${spaceId}))::int as distance
      from item_codes
      where space_id = ${spaceId} and item_id <> ${itemId}
        and generation = (select generation from item_spaces where id = ${spaceId})
      offset 0
    ) scanned
    order by distance <= reach desc, distance limit ${candidatesMax + reachedMax}`.execute(db)
  const nearest = rows.toSorted((a, b) => a.distance - b.distance).slice(0, candidatesMax)
  const ids = new Set([...nearest, ...rows.filter(({ reached }) => reached)].map(({ id }) => id))
  return { scored: await scoreAll(db, subject, [...ids]), isAll: rows.length < candidatesMax }
}

/** Vectors read at once: of 1536 dimensions they are 1.2 MB. */
const scoredAtOnce = 200

async function scoreAll(db: Db, subject: Subject, ids: readonly string[]): Promise<Scored[]> {
  const scored: Scored[] = []
  for (let from = 0; from < ids.length; from += scoredAtOnce) {
    const { rows } = await sql<VectorRow>`
      select item_id as id, vector from item_embeddings
      where item_id = any(${ids.slice(from, from + scoredAtOnce)}::uuid[])
        and space_id = ${subject.spaceId}`.execute(db)
    scored.push(...rows.map((row) => score(subject, row)))
  }
  return scored
}

type VectorRow = { id: string; vector: Buffer }
const score = ({ vector }: Subject, row: VectorRow): Scored => ({
  id: row.id,
  score: innerProduct(vector, fromBytes(row.vector)),
})

/**
 * Writes the item's list, and its place in those of others.
 * @returns how many lists it came into and left, or stale: it is another by now, and has another job
 */
export async function writeNeighbours(
  db: Db,
  itemId: string,
  subject: Subject,
  { scored, isAll }: Nearest,
): Promise<{ entered: number; left: number } | 'stale'> {
  return await inTurn(db, async (tx, no) => {
    const { rows } = await sql`
      select from item_embeddings where item_id = ${itemId} and space_id = ${subject.spaceId}
        and content_version = ${subject.contentVersion} for share`.execute(tx)
    if (rows.length === 0) return 'stale'
    const all = await withLate(tx, itemId, subject, scored)
    const kept = all
      .toSorted((a, b) => b.score - a.score || (a.id < b.id ? -1 : 1))
      .slice(0, keptMax)
    await sql`delete from item_neighbours where item_id = ${itemId}`.execute(tx)
    await sql`
      insert into item_neighbours (item_id, other_id, score)
      select ${itemId}, id, score from unnest(${kept.map(({ id }) => id)}::uuid[],
        ${kept.map(({ score }) => score)}::real[]) as k (id, score)`.execute(tx)
    await sql`
      update item_embeddings set applied_no = ${no}, whole = ${isAll && all.length <= keptMax}
      where item_id = ${itemId}`.execute(tx)
    const left = await sink(tx, itemId, all)
    const { entered, trimmed } = await enter(tx, itemId, all)
    await setReach(tx, [itemId, ...trimmed])
    await refill(
      tx,
      left.filter((id) => !entered.includes(id)),
    )
    return { entered: entered.length, left: left.length }
  })
}

/** Takes a deleted item out of the lists of others. @returns how many */
export async function removeNeighbour(db: Db, itemId: string): Promise<number> {
  return await inTurn(db, async (tx) => {
    const left = await leave(tx, itemId)
    await refill(tx, left)
    return left.length
  })
}

const triesMax = 5

/** One at a time over all instances. READ COMMITTED: what is read after the wait is what the one before has written. */
async function inTurn<T>(db: Db, fn: (tx: Tx, no: string) => Promise<T>): Promise<T> {
  for (let tries = 1; ; tries++) {
    try {
      return await transaction(
        db,
        async (tx) => {
          const { rows } = await sql<{ no: string }>`
            update item_turns set no = no + 1 returning no`.execute(tx)
          return await fn(tx, rows[0]?.no as string)
        },
        { isolation: 'read committed' },
      )
    } catch (error) {
      // An item that was read was deleted before its list was written.
      if (sqlState(error) !== '23503' || tries === triesMax) throw error
    }
  }
}

/** Those that are still there, and those that were written since the look, as they are now. */
async function withLate(
  tx: Tx,
  itemId: string,
  subject: Subject,
  scored: readonly Scored[],
): Promise<Scored[]> {
  const late = await sql<VectorRow>`
    select item_id as id, vector from item_embeddings
    where applied_no > ${subject.since} and space_id = ${subject.spaceId}
      and item_id <> ${itemId}`.execute(tx)
  const there = await sql<{ id: string }>`
    select item_id as id from item_embeddings
    where item_id = any(${scored.map(({ id }) => id)}::uuid[]) and space_id = ${subject.spaceId}`.execute(
    tx,
  )
  const all = new Map(scored.map((one) => [one.id, one]))
  const alive = new Map(there.rows.flatMap(({ id }) => [[id, all.get(id) as Scored] as const]))
  for (const row of late.rows) alive.set(row.id, score(subject, row))
  return [...alive.values()]
}

async function leave(tx: Tx, itemId: string): Promise<string[]> {
  const { rows } = await sql<{ id: string }>`
    delete from item_neighbours where other_id = ${itemId} returning item_id as id`.execute(tx)
  return rows.map(({ id }) => id)
}

/** Out of the lists in which it comes farther down than it was: what comes before it there is not known. */
async function sink(tx: Tx, itemId: string, all: readonly Scored[]): Promise<string[]> {
  const { rows } = await sql<{ id: string }>`
    delete from item_neighbours n where n.other_id = ${itemId} and not exists (
      select from unnest(${all.map(({ id }) => id)}::uuid[], ${all.map(({ score }) => score)}::real[])
        as g (id, score)
      where g.id = n.item_id and g.score >= n.score - 1e-6)
    returning n.item_id as id`.execute(tx)
  return rows.map(({ id }) => id)
}

/** Into the lists that have it, go down to its score or hold everybody; those become shorter again that are too long by it. */
async function enter(tx: Tx, itemId: string, all: readonly Scored[]) {
  const { rows } = await sql<{ id: string }>`
    insert into item_neighbours (item_id, other_id, score)
    select g.id, ${itemId}, g.score
    from unnest(${all.map(({ id }) => id)}::uuid[], ${all.map(({ score }) => score)}::real[])
      as g (id, score)
    join item_embeddings e on e.item_id = g.id and e.applied_no is not null
    where e.whole
      or exists (
        select from item_neighbours n where n.item_id = g.id and n.other_id = ${itemId})
      or g.score > (select min(n.score) from item_neighbours n where n.item_id = g.id)
    on conflict (item_id, other_id) do update set score = excluded.score
    returning item_id as id`.execute(tx)
  const entered = rows.map(({ id }) => id)
  const cut = await sql<{ id: string }>`
    delete from item_neighbours n using (
      select item_id, other_id,
        row_number() over (partition by item_id order by score desc, other_id) as place
      from item_neighbours where item_id = any(${entered}::uuid[])
    ) ranked
    where n.item_id = ranked.item_id and n.other_id = ranked.other_id
      and ranked.place > ${keptMax} returning n.item_id as id`.execute(tx)
  const short = await sql<{ id: string }>`
    update item_embeddings set whole = false
    where item_id = any(${cut.rows.map(({ id }) => id)}::uuid[]) and whole
    returning item_id as id`.execute(tx)
  return { entered, trimmed: short.rows.map(({ id }) => id) }
}

/** How far by code one may be that belongs into these lists. */
export async function setReach(on: Db | Tx, ids: readonly string[]): Promise<void> {
  await sql`
    update item_codes k set reach = case when e.whole then 2048 else coalesce((
        select max(bit_count(k.code # o.code))::int + ${reachMargin}::int
        from item_neighbours n join item_codes o on o.space_id = k.space_id
          and o.generation = k.generation and o.item_id = n.other_id
        where n.item_id = k.item_id), -1) end
    from item_embeddings e
    where k.item_id = any(${[...ids]}::uuid[]) and e.item_id = k.item_id
      and e.applied_no is not null`.execute(on)
}

/** Lists that do not hold what is served of them are made anew, by jobs. */
async function refill(tx: Tx, ids: readonly string[]): Promise<void> {
  if (ids.length === 0) return
  const { rows } = await sql<{ id: string; version: string }>`
    select i.id, i.version from items i join item_embeddings e on e.item_id = i.id
    where i.id = any(${[...ids]}::uuid[]) and not e.whole
      and (select count(*) from item_neighbours n where n.item_id = i.id) < ${similarMax}`.execute(
    tx,
  )
  await sendItemJobs(tx, ['RecomputeSimilar'], rows)
}

export type SimilarItem = ItemBody & { score: number }

/** The likest first. */
export async function readSimilar(db: Db, itemId: string, limit: number): Promise<SimilarItem[]> {
  const { rows } = await sql<Scored>`
    select n.other_id as id, n.score from item_neighbours n
    where n.item_id = ${itemId} and exists (select from items i where i.id = n.other_id)
    order by n.score desc, n.other_id limit ${limit}`.execute(db)
  return await withItems(db, rows)
}

/** What of it is still there, with its scores. */
export async function withItems(db: Db, found: readonly Scored[]): Promise<SimilarItem[]> {
  const scores = new Map(found.map(({ id, score }) => [id, score]))
  const items = await readItems(db, [...scores.keys()])
  return items.map((item) => ({ ...item, score: rounded(scores.get(item.item_id) ?? 0) }))
}

const rounded = (score: number): number => Math.round(score * 1e6) / 1e6
