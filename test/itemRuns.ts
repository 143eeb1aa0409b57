// Items for tests: made and embedded without the API and a vendor, and their jobs run until there are none.

import { setTimeout as sleep } from 'node:timers/promises'
import { sql } from 'kysely'
import { storeEmbedding } from '../db/embeddings.ts'
import { createItem, deleteItem, type ItemContent, putItem } from '../db/items.ts'
import type { Jobs } from '../db/jobs.ts'
import type { Scored } from '../db/neighbours.ts'
import type { Db } from '../db/schema.ts'
import { transaction } from '../db/transaction.ts'
import { innerProduct, normalized } from '../domain/vectors.ts'
import { createLog } from '../workers/log.ts'
import type { Pass } from '../workers/loop.ts'
import { similarPass } from '../workers/similar/similar.ts'

export const quiet = new AbortController().signal
export const worker = {
  log: createLog('test', 'silent'),
  failed() {},
  dying: quiet,
  stopping: quiet,
}
export const testModel = 'test-model'

export const content = (changed: Partial<ItemContent> = {}): ItemContent => ({
  title: 'A poster',
  description: '',
  image: null,
  ...changed,
})

export async function makeItem(db: Db, changed: Partial<ItemContent> = {}): Promise<string> {
  const made = await transaction(db, (tx) => createItem(tx, content(changed), {}))
  return made.item_id
}

export const changeItem = (db: Db, id: string, changed: Partial<ItemContent>) =>
  transaction(db, (tx) => putItem(tx, id, content(changed), {}))

export const dropItem = (db: Db, id: string) => transaction(db, (tx) => deleteItem(tx, id, {}))

/** As the embed worker does it, for what the item is now. */
export async function embedItem(
  db: Db,
  id: string,
  vector: ArrayLike<number>,
  model = testModel,
): Promise<'stored' | 'stale' | number> {
  const { rows } = await sql<{ version: string }>`
    select content_version as version from items where id = ${id}`.execute(db)
  const contentVersion = rows[0]?.version ?? '0'
  const embedding = { itemId: id, contentVersion, model, vector: normalized(vector) }
  return await transaction(db, (tx) => storeEmbedding(tx, embedding), {
    isolation: 'read committed',
  })
}

/** Some at once. @returns their ids, in the order of the vectors */
export async function makeEmbedded(db: Db, vectors: readonly Float32Array[]): Promise<string[]> {
  const ids: string[] = []
  const makeOne = async (vector: Float32Array) => {
    const id = await makeItem(db)
    await embedItem(db, id, vector)
    return id
  }
  for (let from = 0; from < vectors.length; from += 8) {
    ids.push(...(await Promise.all(vectors.slice(from, from + 8).map(makeOne))))
  }
  return ids
}

/** Until it is idle. @returns how many were handled */
export async function drain(pass: Pass): Promise<number> {
  let handled = 0
  for (;;) {
    const outcome = await pass(quiet, Number.POSITIVE_INFINITY)
    if (typeof outcome === 'number') handled += outcome
    if (outcome === 0) break
    if (typeof outcome === 'object') await sleep(Math.min(50, outcome.waitMs))
  }
  return handled + ((await pass.finish?.()) ?? 0)
}

export const runSimilar = (db: Db, jobs: Jobs, concurrency = 2): Promise<number> =>
  drain(similarPass({ db, jobs, concurrency, worker }))

/** Vectors near some centres, as those of real things are: many are like each other, and most are not. */
export function clusteredVectors(count: number, dimensions: number, clusters: number, seed = 1) {
  const random = diceOf(seed)
  const gauss = () => Math.sqrt(-2 * Math.log(1 - random())) * Math.cos(2 * Math.PI * random())
  const direction = () => normalized(Array.from({ length: dimensions }, gauss))
  // What all have in common, as vectors of real models do.
  const common = direction()
  const centres = Array.from({ length: clusters }, direction)
  return Array.from({ length: count }, (_, i) => {
    const centre = centres[i % clusters] as Float32Array
    const own = direction()
    return normalized(
      own.map((x, j) => 0.7 * x + (centre[j] as number) + 0.8 * (common[j] as number)),
    )
  })
}

/** mulberry32: the same numbers each time. */
export function diceOf(seed: number): () => number {
  let state = seed | 0
  return () => {
    state = (state + 0x6d2b79f5) | 0
    let t = Math.imul(state ^ (state >>> 15), 1 | state)
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296
  }
}

/** The likest of all others, by comparing each. */
export function bruteForce(vectors: Map<string, Float32Array>, id: string, max: number): Scored[] {
  const own = vectors.get(id) as Float32Array
  return [...vectors]
    .filter(([other]) => other !== id)
    .map(([other, vector]) => ({ id: other, score: innerProduct(own, vector) }))
    .sort((a, b) => b.score - a.score)
    .slice(0, max)
}
