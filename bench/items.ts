// Items in numbers: how near the preselected neighbours come to brute force and what they take, words found in many items,
// items a minute through a vendor with limits, and the index of OpenSearch (the stand-in of the tests) built anew while
// items are written and looked for. Usage: fleet bench items [--items N] [--dimensions N] [--full]; --full: 100,000 of 1536.
// Exit 1 when something is not right. Needs DATABASE_URL to a server where it may make a database, else an embedded one.

import { cpus, loadavg } from 'node:os'
import { parseArgs } from 'node:util'
import { sql } from 'kysely'
import { rebuildIndex } from '../cli/items/rebuild.ts'
import { dueSpaces, rebuildCodes } from '../db/itemCodes.ts'
import { searchItems } from '../db/items.ts'
import { findNearest, readSubject, writeNeighbours } from '../db/neighbours.ts'
import { similarMax } from '../domain/items.ts'
import { toBytes } from '../domain/vectors.ts'
import { bruteForce, changeItem, diceOf, dropItem, makeItem } from '../test/itemRuns.ts'
import { startOpenSearch } from '../test/servers/opensearch.ts'
import { openSearch } from '../workers/opensearch.ts'
import { differences, empty, startWorker, stopWorker, untilDone } from './items/place.ts'
import { bulkVectors } from './items/vectors.ts'
import { embedThirty } from './items/vendor.ts'
import { openPlace, type Place } from './loader/place.ts'
import { noteResult } from './report/results.ts'

const { values: options } = parseArgs({
  options: {
    items: { type: 'string', default: '5000' },
    dimensions: { type: 'string', default: '256' },
    full: { type: 'boolean', default: false },
  },
})
const count = options.full ? 100_000 : Number(options.items)
const dimensions = options.full ? 1536 : Number(options.dimensions)
const faults: string[] = []
const tell = (what: string, value: string) => console.log(`${what.padEnd(62)}${value.padStart(16)}`)
const quantile = (values: readonly number[], q: number): number =>
  values.toSorted((a, b) => a - b)[Math.min(values.length - 1, Math.floor(values.length * q))] ??
  Number.NaN
const ms = (value: number): string => `${value.toFixed(1)} ms`

/** Rows of items with vectors near some hundreds of centres, and some that are near nothing. */
async function fill({ database: { db } }: Place): Promise<Map<string, Float32Array>> {
  const vectors = new Map<string, Float32Array>()
  const words = 'concert poster print mug signed evening gala opening night ticket'.split(' ')
  const random = diceOf(1)
  const begun = performance.now()
  await sql`insert into item_spaces (model, dimensions) values ('bench', ${dimensions})`.execute(db)
  const batchMax = 500
  const source = bulkVectors(dimensions, Math.ceil(count / 250))
  for (let from = 0; from < count; from += batchMax) {
    const rows = Array.from({ length: Math.min(batchMax, count - from) }, () => {
      const { id, vector, code } = source.next()
      vectors.set(id, vector)
      const [a, b, c] = [0, 1, 2].map(() => words[Math.floor(random() * words.length)])
      return {
        id,
        vector,
        code,
        title: `${a} ${b} no ${from}`,
        description: `${c} ${Math.floor(random() * 97)}`,
      }
    })
    const ids = rows.map(({ id }) => id)
    await sql`insert into items (id, title, description, search, content_version)
      select id, title, description, item_words(title, description), 1 from unnest(${ids}::uuid[],
        ${rows.map(({ title }) => title)}::text[], ${rows.map(({ description }) => description)}::text[])
        as t (id, title, description)`.execute(db)
    await sql`insert into item_embeddings (item_id, space_id, content_version, vector)
      select id, 1, 1, decode(vector, 'hex') from unnest(${ids}::uuid[],
        ${rows.map(({ vector }) => toBytes(vector).toString('hex'))}::text[]) as t (id, vector)`.execute(
      db,
    )
    await sql`insert into item_codes (space_id, generation, item_id, code)
      select 1, 1, id, ('x' || code)::bit(2048) from unnest(${ids}::uuid[],
        ${rows.map(({ code }) => code)}::text[]) as t (id, code)`.execute(db)
  }
  await sql`vacuum analyze items, item_embeddings, item_codes`.execute(db)
  tell(
    `${count} items of ${dimensions} dimensions made, rows a second`,
    String(Math.round(count / ((performance.now() - begun) / 1000))),
  )
  return vectors
}

async function nearest(place: Place, vectors: Map<string, Float32Array>, when: string) {
  const { db } = place.database
  const ids = [...vectors.keys()]
  const random = diceOf(5)
  const times: number[] = []
  const compared: number[] = []
  let found = 0
  const asked = 60
  for (let i = 0; i < asked; i++) {
    const id = String(ids[Math.floor(random() * ids.length)])
    const begun = performance.now()
    const subject = await readSubject(db, id)
    if (subject === undefined) throw new Error('it is not embedded')
    const { scored } = await findNearest(db, id, subject)
    times.push(performance.now() - begun)
    compared.push(scored.length)
    const right = new Set(bruteForce(vectors, id, similarMax).map((one) => one.id))
    const best = scored.toSorted((a, b) => b.score - a.score).slice(0, similarMax)
    found += best.filter((one) => right.has(one.id)).length
  }
  const recall = found / (asked * similarMax)
  tell(`neighbours ${when}: recall of the ${similarMax} likest`, recall.toFixed(4))
  tell(
    `neighbours ${when}: p50 / p99`,
    `${ms(quantile(times, 0.5))} / ${ms(quantile(times, 0.99))}`,
  )
  noteResult({
    title: `the ${similarMax} likest of ${count} items of ${dimensions} dimensions, ${when}`,
    unit: 'ms',
    better: 'less',
    figures: [
      { name: 'p50', value: quantile(times, 0.5) },
      { name: 'p99', value: quantile(times, 0.99) },
    ],
  })
  tell(
    `neighbours ${when}: compared exactly, mean`,
    (compared.reduce((a, b) => a + b, 0) / asked).toFixed(0),
  )
  return recall
}

async function recode(place: Place): Promise<void> {
  const [spaceId] = await dueSpaces(place.database.db, true)
  const rebuild = rebuildCodes(place.database.db, Number(spaceId))
  const begun = performance.now()
  while (await rebuild.more());
  tell(
    'codes made anew around their centre',
    `${((performance.now() - begun) / 1000).toFixed(1)} s`,
  )
}

/** The whole job, both ways. */
async function both(
  { database: { db } }: Place,
  vectors: Map<string, Float32Array>,
): Promise<void> {
  const times: number[] = []
  for (const id of [...vectors.keys()].slice(0, 100)) {
    const begun = performance.now()
    const subject = await readSubject(db, id)
    if (subject === undefined) continue
    await writeNeighbours(db, id, subject, await findNearest(db, id, subject))
    times.push(performance.now() - begun)
  }
  tell(
    'an item compared and both lists written: p50 / p99',
    `${ms(quantile(times, 0.5))} / ${ms(quantile(times, 0.99))}`,
  )
}

async function words({ database: { db } }: Place): Promise<void> {
  for (const q of ['poster', 'signed mug', 'gala 42', '"opening night" -ticket']) {
    const times: number[] = []
    let hits = 0
    for (let i = 0; i < 20; i++) {
      const begun = performance.now()
      hits = (await searchItems(db, { q, limit: 20, offset: 0 })).length
      times.push(performance.now() - begun)
    }
    if (hits === 0) faults.push(`${q} found nothing`)
    tell(
      `words in Postgres, ${q}: p50 / p99`,
      `${ms(quantile(times, 0.5))} / ${ms(quantile(times, 0.99))}`,
    )
  }
}

/** Searches all the while; items are changed, made and deleted, and brought to the index by two workers. */
async function rebuildUnderWrites(place: Place): Promise<void> {
  const { db } = place.database
  await empty(place)
  const { rows } = await sql<{ id: string }>`
    insert into items (id, title, description, content_version)
    select gen_random_uuid(), 'Original no ' || i, 'A print of ' || i % 1000, 1
    from generate_series(1, ${count}) as i returning id`.execute(db)
  const [steady, victims] = [rows.slice(0, 50), rows.slice(50)]
  const server = await startOpenSearch()
  const search = openSearch({ url: server.url, alias: 'items', timeoutMs: 60_000 })
  const { signal } = new AbortController()
  const settings = { OPENSEARCH_URL: server.url }
  try {
    await rebuildIndex({ db, search, signal })
    const workers = [startWorker(place, 'search', settings), startWorker(place, 'search', settings)]
    for (const { id } of steady) await changeItem(db, id, { title: 'Steadfast' })
    await untilDone(place, 'search')
    await search.call('POST', 'items/_refresh')
    let [holes, searches, writes] = [0, 0, 0]
    let isDone = false
    const looking = (async () => {
      while (!isDone) {
        const found = await search.byWords({ q: 'steadfast', limit: 100, offset: 0 })
        searches++
        if (found?.length !== steady.length) holes++
      }
    })()
    const writing = (async () => {
      while (!isDone) {
        await makeItem(db, { title: `Newcomer ${writes}` })
        const victim = String(victims[writes++ % victims.length]?.id)
        if (writes % 3 === 0) await dropItem(db, victim)
        else await changeItem(db, victim, { title: `Changed ${writes}` })
      }
    })()
    const begun = performance.now()
    const { items } = await rebuildIndex({ db, search, signal })
    const seconds = (performance.now() - begun) / 1000
    isDone = true
    await Promise.all([looking, writing])
    await untilDone(place, 'search')
    await Promise.all(workers.map(stopWorker))
    await search.call('POST', 'items/_refresh')
    const lost = await differences(place, search)
    tell(
      `index of ${items} items built anew, with ${2 * writes} writes meanwhile`,
      `${seconds.toFixed(1)} s`,
    )
    tell('searches meanwhile, and those that saw a hole', `${searches}, ${holes}`)
    tell('items that the index and Postgres differ in', String(lost))
    if (holes > 0) faults.push(`${holes} searches saw a hole`)
    if (lost > 0) faults.push(`${lost} items differ`)
    if (searches < 5 || writes < 5) faults.push('hardly anything went on meanwhile')
  } finally {
    await server.stop()
  }
}

console.log(`${cpus().length} × ${cpus()[0]?.model}, load ${loadavg()[0]?.toFixed(1)}\n`)
const place = await openPlace()
for (const signal of ['SIGINT', 'SIGTERM'] as const) {
  process.once(signal, () => void place.end().finally(() => process.exit(1)))
}
try {
  const vendor = await embedThirty(place)
  tell(
    `30 items through limits, a minute being ${vendor.minute} s`,
    `${vendor.seconds.toFixed(1)} s`,
  )
  tell('calls, refused with 429', `${vendor.calls}, ${vendor.refused}`)
  if (vendor.refused > 0) faults.push(`${vendor.refused} calls were refused`)
  if (vendor.embedded !== 30) faults.push(`${vendor.embedded} of 30 items were embedded`)
  if (vendor.seconds > vendor.minute) faults.push('30 items took more than a minute')
  await empty(place)
  const vectors = await fill(place)
  await nearest(place, vectors, 'by the first codes')
  await recode(place)
  const recall = await nearest(place, vectors, 'by codes around the centre')
  noteResult({
    title: `of the ${similarMax} likest of ${count} by brute force, found`,
    unit: 'share',
    better: 'more',
    figures: [{ name: 'by codes around the centre', value: recall, target: { value: 0.95 } }],
  })
  if (recall < 0.95) faults.push(`a recall of ${recall}`)
  await both(place, vectors)
  await words(place)
  await rebuildUnderWrites(place)
} finally {
  await place.end()
}
for (const fault of faults) console.log(`not right: ${fault}`)
process.exit(faults.length > 0 ? 1 : 0)
