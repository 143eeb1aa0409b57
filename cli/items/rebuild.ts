// Builds the index of items in OpenSearch anew from Postgres, while they are written and searched: a new index behind the
// alias `<alias>-next`, which from then on gets every write too; then all items, in the order of their ids, each with its
// version; then both aliases change in one step. The old index stops refreshing before the new one is refreshed for the
// last time, so that nothing that could be found before cannot be found after. Can be stopped, and gone on with.

import { randomUUID } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import { countItems, type IndexedItem, readIndexedAfter } from '../../db/items.ts'
import {
  claimRebuild,
  endRebuild,
  leaveRebuild,
  type RebuildRow,
  restartRebuild,
  saveRebuild,
} from '../../db/rebuilds.ts'
import type { Db } from '../../db/schema.ts'
import { newIndex, type OpenSearch, SearchFault } from '../../workers/opensearch.ts'
import { Exit } from '../program.ts'

export type RebuildOptions = {
  db: Db
  search: OpenSearch
  signal: AbortSignal
  batchMax?: number
  tell?(progress: { done: number; total: number; wait?: string }): void
}

export type Rebuilt = {
  index: string
  replaced: string | undefined
  items: number
  resumed: boolean
}

const waitMs = { first: 500, most: 20_000 }
/** Tries of one batch while OpenSearch is away: about three minutes. */
const triesMax = 12

export async function rebuildIndex(options: RebuildOptions): Promise<Rebuilt> {
  const { db, search } = options
  const mine = { target: `opensearch ${search.alias}`, owner: randomUUID() }
  const time = new Date().toISOString().replace(/\D/g, '').slice(0, 14)
  const indexName = `${search.alias}-${time}-${mine.owner.slice(0, 4)}`
  const claimed = await claimRebuild(db, { ...mine, indexName, total: await countItems(db) })
  if (typeof claimed === 'number') {
    const ago = `its last sign of life was ${claimed.toFixed(0)} s ago`
    throw new Exit('failed', `the index is being built by somebody else: ${ago}`)
  }
  try {
    const { row, resumed } = await openNext(options, mine, claimed, indexName)
    const items = await fillNext(options, mine, row)
    const replaced = await changePlaces(search, row.indexName)
    await endRebuild(db, mine)
    return { index: row.indexName, replaced, items, resumed }
  } catch (error) {
    await leaveRebuild(db, mine).catch(() => {})
    throw error
  }
}

type Mine = { target: string; owner: string }

/** Goes on with the index of the one before, if it is still there. */
async function openNext(
  { db, search }: RebuildOptions,
  mine: Mine,
  claimed: RebuildRow,
  indexName: string,
): Promise<{ row: RebuildRow; resumed: boolean }> {
  const { next } = await search.aliases()
  if (next === claimed.indexName) return { row: claimed, resumed: true }
  if (next !== undefined) await search.call('DELETE', next)
  await restartRebuild(db, mine, indexName)
  await search.call('PUT', indexName, newIndex({ [search.next]: {} }))
  return { row: { ...claimed, indexName, after: null, done: 0 }, resumed: false }
}

async function fillNext(options: RebuildOptions, mine: Mine, row: RebuildRow): Promise<number> {
  const { db, signal, batchMax = 200, tell } = options
  let { after, done, total } = row
  for (;;) {
    signal.throwIfAborted()
    const items = await readIndexedAfter(db, after, batchMax)
    await fillPatiently(options, mine, { ...row, after, done }, items)
    done += items.length
    after = items.at(-1)?.id ?? after
    total = Math.max(total, done)
    await saveRebuild(db, mine, { indexName: row.indexName, after, done })
    tell?.({ done, total })
    if (items.length < batchMax) return done
  }
}

/** What is refused for now is sent again, slower and slower; the rest of a batch is not. */
async function fillPatiently(
  { db, search, signal, tell }: RebuildOptions,
  mine: Mine,
  row: RebuildRow,
  items: IndexedItem[],
): Promise<void> {
  let left = items
  for (let tries = 0; left.length > 0; tries++) {
    const { busy, afterMs, why } = await fillOnce(search, row.indexName, left)
    if (busy.length === 0) return
    // Some went well: it is slow, not away.
    if (busy.length < left.length) tries = 0
    if (tries >= triesMax) throw new Exit('failed', `gave up: ${why}; run it again to go on`)
    left = busy
    tell?.({ ...row, wait: why })
    await saveRebuild(db, mine, row)
    const ms = Math.max(afterMs, Math.min(waitMs.most, waitMs.first * 2 ** tries))
    await sleep(ms, undefined, { signal })
  }
}

async function fillOnce(search: OpenSearch, index: string, items: IndexedItem[]) {
  const writes = items.map((item) => ({ id: item.id, version: item.version, item }))
  try {
    const written = await search.fill(index, writes)
    if (written === 'gone') {
      throw new Exit('failed', `the index ${index} was taken away while it was built: run it again`)
    }
    const refused = written.find(({ is }) => is === 'refused')
    if (refused?.is === 'refused') throw new Exit('failed', refused.why)
    const busy = items.filter((_, i) => written[i]?.is !== 'there')
    return { busy, afterMs: 0, why: 'OpenSearch asks for less' }
  } catch (error) {
    if (!(error instanceof SearchFault) || error.is === 'refused') throw error
    return { busy: items, afterMs: error.afterMs, why: error.message }
  }
}

/** @returns the index that was searched until now */
async function changePlaces(search: OpenSearch, index: string): Promise<string | undefined> {
  const { live } = await search.aliases()
  const refreshes = (name: string, interval: string | null) =>
    search.call('PUT', `${name}/_settings`, { index: { refresh_interval: interval } })
  if (live !== undefined) await refreshes(live, '-1')
  try {
    await search.call('POST', `${index}/_refresh`)
    const actions = [
      { add: { index, alias: search.alias } },
      { remove: { index, alias: search.next } },
      ...(live === undefined ? [] : [{ remove: { index: live, alias: search.alias } }]),
    ]
    await search.call('POST', '_aliases', { actions })
  } catch (error) {
    if (live !== undefined) await refreshes(live, null).catch(() => {})
    throw error
  }
  if (live !== undefined) await search.call('DELETE', live)
  return live
}
