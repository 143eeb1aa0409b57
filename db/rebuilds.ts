// Who builds a search index anew, and how far it is: one at a time for each target. Whoever shows no sign of life for
// half a minute has lost it, and the next one goes on where it stopped.

import { sql } from 'kysely'
import type { Db } from './schema.ts'

export type RebuildRow = {
  indexName: string
  /** All items up to this one are in it. */
  after: string | null
  done: number
  total: number
}

const silentSeconds = 30

/** @returns what is to be gone on with, or made, as `owner`; seconds since the sign of life of somebody who is at it */
export async function claimRebuild(
  db: Db,
  {
    target,
    indexName,
    total,
    owner,
  }: { target: string; indexName: string; total: number; owner: string },
): Promise<RebuildRow | number> {
  const { rows } = await sql<RebuildRow>`
    insert into item_rebuilds as r (target, index_name, total, owner)
    values (${target}, ${indexName}, ${total}, ${owner})
    on conflict (target) do update set owner = excluded.owner, total = excluded.total,
      seen_at = clock_timestamp()
    where r.seen_at < clock_timestamp() - ${silentSeconds} * interval '1 s'
    returning index_name as "indexName", after, done, total`.execute(db)
  if (rows[0]) return rows[0]
  const { rows: held } = await sql<{ seconds: number }>`
    select extract(epoch from clock_timestamp() - seen_at)::float8 as seconds
    from item_rebuilds where target = ${target}`.execute(db)
  // It ended in between.
  if (held[0] === undefined) return await claimRebuild(db, { target, indexName, total, owner })
  return held[0].seconds
}

type Mine = { target: string; owner: string }

/** What is there cannot be gone on with: from the beginning. */
export async function restartRebuild(db: Db, mine: Mine, indexName: string): Promise<void> {
  await saveRebuild(db, mine, { indexName, after: null, done: 0 })
}

/** Also a sign of life. @throws Error when it is somebody else's by now */
export async function saveRebuild(
  db: Db,
  { target, owner }: Mine,
  { indexName, after, done }: { indexName: string; after: string | null; done: number },
): Promise<void> {
  const { numUpdatedRows } = await db
    .updateTable('item_rebuilds')
    .set({ index_name: indexName, after, done, seen_at: sql<Date>`clock_timestamp()` })
    .where('target', '=', target)
    .where('owner', '=', owner)
    .executeTakeFirst()
  if (numUpdatedRows !== 1n) throw new Error('somebody else has taken the rebuild over')
}

/** It is done. */
export async function endRebuild(db: Db, { target, owner }: Mine): Promise<void> {
  await db
    .deleteFrom('item_rebuilds')
    .where('target', '=', target)
    .where('owner', '=', owner)
    .execute()
}

/** It stopped in the middle: whoever comes next goes on at once. */
export async function leaveRebuild(db: Db, { target, owner }: Mine): Promise<void> {
  await db
    .updateTable('item_rebuilds')
    .set({ seen_at: sql<Date>`clock_timestamp() - ${2 * silentSeconds} * interval '1 s'` })
    .where('target', '=', target)
    .where('owner', '=', owner)
    .execute()
}
