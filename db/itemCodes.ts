// The codes of a space made anew around the centre of its vectors, while items come and go and are looked for: the new
// codes grow beside the old ones, whoever stores a vector writes both, and then they change places in one statement. What
// was begun and not ended is gone on with.

import { sql } from 'kysely'
import { centreOf, codeOf, fromBytes, toBytes } from '../domain/vectors.ts'
import { setReach } from './neighbours.ts'
import type { Db } from './schema.ts'
import { transaction } from './transaction.ts'

/** Enough for a mean. */
const sampleMax = 1000
/** Vectors at once: of 1536 dimensions 1.2 MB. */
const batchMax = 200
/** Fewer are compared with each other all of them. */
const worthFrom = 1000
/** How much a space grows until its centre is worth finding again. */
const growth = 4

export type Rebuild = { spaceId: number; generation: number; centre: Buffer; total: number }

/** A space whose codes were begun anew, or that has grown so much that they should be. `force`: any, one by one. */
export async function dueSpaces(db: Db, isForced: boolean): Promise<number[]> {
  const { rows } = await sql<{ id: number }>`
    select s.id from item_spaces s cross join lateral (
      select count(*) as n from item_embeddings e where e.space_id = s.id) counted
    where ${isForced} or s.next_generation is not null
      or (counted.n >= ${worthFrom} and counted.n >= ${growth} * s.centred_on)
    order by s.id`.execute(db)
  return rows.map(({ id }) => id)
}

/** Finds the centre, and from now on has every new vector coded by it too. */
async function beginCodes(db: Db, spaceId: number): Promise<Rebuild> {
  const { rows } = await sql<{ n: number }>`
    select count(*)::int as n from item_embeddings where space_id = ${spaceId}`.execute(db)
  const total = rows[0]?.n ?? 0
  const centre = await sampleCentre(db, spaceId, total)
  return await transaction(
    db,
    async (tx) => {
      const { rows: spaces } = await sql<{
        generation: number
        dimensions: number
        next_generation: number | null
        next_centre: Buffer | null
      }>`
        select generation, dimensions, next_generation, next_centre
        from item_spaces where id = ${spaceId} for update`.execute(tx)
      const space = spaces[0]
      if (space === undefined) throw new Error(`there is no space ${spaceId}`)
      const begun = { spaceId, total }
      if (space.next_generation !== null && space.next_centre !== null) {
        return { ...begun, generation: space.next_generation, centre: space.next_centre }
      }
      const found = toBytes(centre ?? new Float32Array(space.dimensions))
      const generation = space.generation + 1
      await sql`
        update item_spaces set next_generation = ${generation}, next_centre = ${found}
        where id = ${spaceId}`.execute(tx)
      return { ...begun, generation, centre: found }
    },
    { isolation: 'read committed' },
  )
}

async function sampleCentre(db: Db, spaceId: number, total: number) {
  const percent = Math.min(100, (150 * sampleMax) / Math.max(1, total))
  const { rows: ids } = await sql<{ id: string }>`
    select item_id as id from item_embeddings tablesample bernoulli (${percent})
    where space_id = ${spaceId} limit ${sampleMax}`.execute(db)
  const parts: Float32Array[] = []
  const weights: number[] = []
  for (let from = 0; from < ids.length; from += batchMax) {
    const some = ids.slice(from, from + batchMax).map(({ id }) => id)
    const { rows } = await sql<{ vector: Buffer }>`
      select vector from item_embeddings where item_id = any(${some}::uuid[])`.execute(db)
    const centre = centreOf(rows.map(({ vector }) => fromBytes(vector)))
    if (centre === undefined) continue
    parts.push(centre.map((value) => value * rows.length))
    weights.push(rows.length)
  }
  const sum = weights.reduce((all, one) => all + one, 0)
  return centreOf(parts)?.map((value) => (value * parts.length) / sum)
}

/** The next codes. @returns the last id, null: there are no more */
async function moreCodes(
  db: Db,
  rebuild: Rebuild,
  after: string | null,
): Promise<{ made: number; last: string | null }> {
  const rows = await batchOf(db, rebuild.spaceId, after, true)
  const centre = fromBytes(rebuild.centre)
  const codes = rows.map(({ vector }) => codeOf(fromBytes(vector as Buffer), centre))
  // One that was embedded again meanwhile wrote its own; one that is gone is left out.
  await sql`
    insert into item_codes (space_id, generation, item_id, code)
    select ${rebuild.spaceId}, ${rebuild.generation}, e.item_id, ('x' || c.code)::bit(2048)
    from unnest(${rows.map(({ id }) => id)}::uuid[], ${codes}::text[], ${rows.map(({ content_version }) => content_version)}::bigint[])
      as c (id, code, content_version)
    join item_embeddings e on e.item_id = c.id and e.content_version = c.content_version
      and e.space_id = ${rebuild.spaceId}
    on conflict do nothing`.execute(db)
  return { made: rows.length, last: rows.length < batchMax ? null : (rows.at(-1)?.id ?? null) }
}

/** How far the lists reach by the new codes, once all are there. */
async function moreReach(db: Db, { spaceId }: Rebuild, after: string | null) {
  const rows = await batchOf(db, spaceId, after, false)
  await setReach(
    db,
    rows.map(({ id }) => id),
  )
  return { made: rows.length, last: rows.length < batchMax ? null : (rows.at(-1)?.id ?? null) }
}

async function batchOf(db: Db, spaceId: number, after: string | null, withVectors: boolean) {
  const from = after ?? '00000000-0000-0000-0000-000000000000'
  const { rows } = await sql<{ id: string; content_version: string; vector: Buffer | null }>`
    select item_id as id, content_version, case when ${withVectors} then vector end as vector
    from item_embeddings where space_id = ${spaceId} and item_id > ${from}::uuid
    order by item_id limit ${batchMax}`.execute(db)
  return rows
}

/** From now on the new codes are compared. */
async function finishCodes(db: Db, rebuild: Rebuild): Promise<void> {
  const { spaceId, generation, total } = rebuild
  await sql`
    update item_spaces set generation = ${generation}, centre = next_centre, centred_on = ${total},
      next_generation = null, next_centre = null
    where id = ${spaceId} and next_generation = ${generation}`.execute(db)
}

/** Some of the old codes. @returns how many */
async function dropOldCodes(db: Db, { spaceId, generation }: Rebuild): Promise<number> {
  const { numAffectedRows } = await sql`
    delete from item_codes where ctid = any(array(
      select ctid from item_codes where space_id = ${spaceId} and generation < ${generation}
      limit 2000))`.execute(db)
  return Number(numAffectedRows)
}

export type CodesRebuild = {
  /** Of the vectors there were at the start. */
  total(): number
  /** How many have their new codes. */
  done(): number
  /** A bounded piece. @returns false: it was the last one */
  more(): Promise<boolean>
}

/** All of it, piece by piece. */
export function rebuildCodes(db: Db, spaceId: number): CodesRebuild {
  let rebuild: Rebuild | undefined
  let after: string | null = null
  let done = 0
  let phase: 'begin' | 'codes' | 'reach' | 'finish' | 'drop' | 'end' = 'begin'

  return {
    total: () => Math.max(rebuild?.total ?? 0, done),
    done: () => done,
    async more() {
      if (phase === 'begin' || rebuild === undefined) {
        rebuild = await beginCodes(db, spaceId)
        phase = 'codes'
      } else if (phase === 'codes' || phase === 'reach') {
        const { made, last } = await (phase === 'codes' ? moreCodes : moreReach)(db, rebuild, after)
        if (phase === 'codes') done += made
        after = last
        if (last === null) phase = phase === 'codes' ? 'reach' : 'finish'
      } else if (phase === 'finish') {
        await finishCodes(db, rebuild)
        phase = 'drop'
      } else if ((await dropOldCodes(db, rebuild)) === 0) phase = 'end'
      return phase !== 'end'
    },
  }
}
