// Similar items: lists against brute force, both ways, through updates, deletions, items that come together, and codes
// that are made anew meanwhile.

import assert from 'node:assert/strict'
import { after, beforeEach, describe, test } from 'node:test'
import { sql } from 'kysely'
import { dueSpaces, rebuildCodes } from '../db/itemCodes.ts'
import { openJobs } from '../db/jobs.ts'
import {
  findNearest,
  keptMax,
  readSimilar,
  readSubject,
  type Scored,
  writeNeighbours,
} from '../db/neighbours.ts'
import { similarMax } from '../domain/items.ts'
import { innerProduct, normalized } from '../domain/vectors.ts'
import { testDatabase } from './database.ts'
import {
  bruteForce,
  changeItem,
  clusteredVectors,
  diceOf,
  dropItem,
  embedItem,
  makeEmbedded,
  makeItem,
  runSimilar,
} from './itemRuns.ts'
import { emptyJobs, everyJob, loseLife } from './jobRows.ts'
import { endWorkers, exited, startWorker, until } from './worker.ts'

const fresh = await testDatabase()
const { db, database, url } = fresh
const jobs = openJobs(database)
after(async () => {
  await endWorkers()
  await jobs.close()
})
beforeEach(async () => {
  await emptyJobs(db)
  await sql`delete from items`.execute(db)
  await sql`delete from item_neighbours`.execute(db)
  await sql`delete from item_spaces`.execute(db)
})

const dimensions = 48

/** Items with their vectors, embedded and compared. */
async function shelf(count: number, seed = 1): Promise<Map<string, Float32Array>> {
  const all = new Map<string, Float32Array>()
  const vectors = clusteredVectors(count, dimensions, 8, seed)
  const ids = await makeEmbedded(db, vectors)
  for (const [i, id] of ids.entries()) all.set(id, vectors[i] as Float32Array)
  return all
}

const listOf = async (id: string): Promise<Scored[]> =>
  (await readSimilar(db, id, similarMax)).map(({ item_id, score }) => ({ id: item_id, score }))

/** Equal but for the order of equal scores and the last digits. */
async function sameAsBruteForce(vectors: Map<string, Float32Array>): Promise<void> {
  for (const id of vectors.keys()) {
    const [found, right] = [await listOf(id), bruteForce(vectors, id, similarMax)]
    assert.equal(found.length, right.length, id)
    for (const [i, { id: other, score }] of found.entries()) {
      assert.ok(Math.abs(score - (right[i] as Scored).score) < 1e-5, `${i}: ${score}`)
      const own = innerProduct(vectors.get(id) as Float32Array, vectors.get(other) as Float32Array)
      assert.ok(Math.abs(own - score) < 1e-5, 'the score is its own')
    }
  }
}

const waiting = async () => {
  const { rows } = await sql<{ n: number }>`
    select count(*)::int as n from ${everyJob} where name = 'similar' and state <> 'completed'`.execute(
    db,
  )
  return rows[0]?.n
}

test('lists are those of brute force, whatever the order in which items came', async () => {
  const vectors = await shelf(80)
  assert.equal(await runSimilar(db, jobs), 80)
  await sameAsBruteForce(vectors)
  const [first] = vectors.keys()
  const [best] = await readSimilar(db, String(first), 1)
  assert.ok(best && best.title === 'A poster' && best.embedded)
})

test('a new item comes into the lists of others, and pushes the last ones out', async () => {
  const vectors = await shelf(60)
  await runSimilar(db, jobs)
  for (const vector of clusteredVectors(10, dimensions, 8, 1)) {
    const id = await makeItem(db)
    const near = normalized(vector.map((x, i) => x + 0.01 * Math.sin(i)))
    await embedItem(db, id, near)
    vectors.set(id, near)
  }
  assert.equal(await runSimilar(db, jobs), 10)
  await sameAsBruteForce(vectors)
  const { rows } = await sql<{ most: number }>`
    select max(n)::int as most from (
      select count(*) as n from item_neighbours group by item_id) lists`.execute(db)
  assert.ok((rows[0]?.most ?? 0) <= keptMax)
})

test('an item that changes leaves lists and comes into others; only lists that become short are made anew', async () => {
  const vectors = await shelf(70)
  await runSimilar(db, jobs)
  const random = diceOf(3)
  const ids = [...vectors.keys()]
  for (const id of ids.slice(0, 30)) {
    await changeItem(db, id, { title: 'Another' })
    const vector = clusteredVectors(8, dimensions, 8, 1)[Math.floor(random() * 8)] as Float32Array
    const moved = normalized(vector.map((x) => x + 0.05 * (random() - 0.5)))
    await embedItem(db, id, moved)
    vectors.set(id, moved)
  }
  const handled = await runSimilar(db, jobs)
  assert.ok(handled >= 30)
  await sameAsBruteForce(vectors)
  assert.equal(await waiting(), 0)
})

test('a deleted item is in no list any more, at once for readers, and others take its place', async () => {
  const vectors = await shelf(100)
  await runSimilar(db, jobs)
  const ids = [...vectors.keys()]
  for (const id of ids.slice(0, 45)) {
    await dropItem(db, id)
    vectors.delete(id)
  }
  for (const id of vectors.keys()) {
    for (const { id: other } of await listOf(id)) assert.ok(vectors.has(other))
  }
  await runSimilar(db, jobs)
  await sameAsBruteForce(vectors)
  const { rows } = await sql`
    select from item_neighbours where other_id not in (select id from items)`.execute(db)
  assert.equal(rows.length, 0)
})

test('of two that come together none misses the other', async () => {
  const vectors = await shelf(40)
  await runSimilar(db, jobs)
  const twins: string[] = []
  for (const vector of clusteredVectors(2, dimensions, 1, 9)) {
    const id = await makeItem(db)
    await embedItem(db, id, vector)
    vectors.set(id, vector)
    twins.push(id)
  }
  const [one, two] = twins as [string, string]
  // Both look before either writes; then the second is embedded anew, and its old look is worth nothing.
  const looks = await Promise.all(
    twins.map(async (id) => {
      const subject = await readSubject(db, id)
      assert.ok(subject)
      const nearest = await findNearest(db, id, subject)
      const without = nearest.scored.filter(({ id: other }) => !twins.includes(other))
      return { id, subject, nearest: { ...nearest, scored: without } }
    }),
  )
  for (const { id, subject, nearest } of looks) {
    assert.notEqual(await writeNeighbours(db, id, subject, nearest), 'stale')
  }
  assert.ok(
    (await listOf(two)).some(({ id }) => id === one),
    'the first was written since its look',
  )
  assert.ok(
    (await listOf(one)).some(({ id }) => id === two),
    'the second comes into the first one’s',
  )
  await changeItem(db, two, { title: 'Another' })
  await embedItem(db, two, vectors.get(two) as Float32Array)
  const [, second] = looks as [unknown, (typeof looks)[number]]
  assert.equal(await writeNeighbours(db, two, second.subject, second.nearest), 'stale')
  await runSimilar(db, jobs)
  await sameAsBruteForce(vectors)
})

test('two workers at once, with items changed and deleted under them, end up right', async () => {
  const vectors = await shelf(90, 4)
  const other = openJobs(fresh.open())
  const ids = [...vectors.keys()]
  const [moved] = clusteredVectors(1, dimensions, 8, 11) as [Float32Array]
  await Promise.all([
    runSimilar(db, jobs, 3),
    runSimilar(db, other, 3),
    (async () => {
      for (const id of ids.slice(0, 10)) {
        await dropItem(db, id)
        vectors.delete(id)
      }
      for (const id of ids.slice(10, 20)) {
        await changeItem(db, id, { title: 'Another' })
        await embedItem(db, id, moved)
        vectors.set(id, moved)
      }
    })(),
  ])
  await runSimilar(db, jobs)
  await other.close()
  await sameAsBruteForce(vectors)
})

describe('of many items', () => {
  test('the preselection finds nearly all that brute force does, before and after the codes are made anew', async () => {
    const count = 1500
    const vectors = new Map<string, Float32Array>()
    const all = clusteredVectors(count, dimensions, 3, 2)
    const ids = await makeEmbedded(db, all)
    for (const [i, id] of ids.entries()) vectors.set(id, all[i] as Float32Array)
    await emptyJobs(db)
    const recall = async () => {
      let found = 0
      const asked = [...vectors.keys()].slice(0, 40)
      for (const id of asked) {
        const subject = await readSubject(db, id)
        assert.ok(subject)
        const { scored, isAll } = await findNearest(db, id, subject)
        assert.ok(!isAll && scored.length < 500, 'not all were compared')
        const right = bruteForce(vectors, id, similarMax).map((one) => one.id)
        const best = scored.toSorted((a, b) => b.score - a.score).slice(0, similarMax)
        found += best.filter(({ id: other }) => right.includes(other)).length
      }
      return found / (asked.length * similarMax)
    }
    const before = await recall()
    assert.ok(before > 0.95, `${before} before`)
    const [spaceId] = await dueSpaces(db, false)
    assert.ok(spaceId, 'it has become worth while')
    const rebuild = rebuildCodes(db, spaceId)
    let late = ''
    while (await rebuild.more()) {
      if (late !== '') continue
      // Embedded while they are made: in both.
      late = await makeItem(db)
      await embedItem(db, late, vectors.get([...vectors.keys()][0] as string) as Float32Array)
    }
    assert.ok(rebuild.done() >= count)
    const after = await recall()
    assert.ok(after > 0.97, `${after} after`)
    const { rows } = await sql<{ n: number; generations: number; late: number }>`
      select count(*)::int as n, count(distinct generation)::int as generations,
        count(*) filter (where item_id = ${late})::int as late
      from item_codes where space_id = ${spaceId}`.execute(db)
    assert.deepEqual(rows[0], { n: count + 1, generations: 1, late: 1 })
    assert.deepEqual(await dueSpaces(db, false), [])
  })
})

test('vectors of another model are not compared, and one of another size is refused', async () => {
  const [one, two, three] = [await makeItem(db), await makeItem(db), await makeItem(db)]
  assert.equal(await embedItem(db, one, [1, 0, 0]), 'stored')
  assert.equal(await embedItem(db, two, [1, 0, 0], 'other-model'), 'stored')
  assert.equal(await embedItem(db, three, [1, 0]), 3)
  assert.equal(await embedItem(db, three, [1, 0.1, 0]), 'stored')
  await runSimilar(db, jobs)
  assert.deepEqual(
    (await listOf(one)).map(({ id }) => id),
    [three],
  )
  assert.deepEqual(await listOf(two), [])
  // The other model takes over.
  await embedItem(db, one, [0, 1], 'third-model')
  await runSimilar(db, jobs)
  assert.deepEqual(await listOf(one), [])
  assert.deepEqual(await listOf(three), [])
})

test('the worker keeps the lists, and stops without a job lost', async () => {
  const vectors = await shelf(30)
  const started = startWorker('similar', url)
  await until(async () => (await waiting()) === 0)
  started.process.kill('SIGTERM')
  assert.equal(await exited(started), 0, started.output())
  await sameAsBruteForce(vectors)
  const more = await shelf(30, 5)
  const killed = startWorker('similar', url)
  await until(async () => ((await waiting()) ?? 30) < 28)
  killed.process.kill('SIGKILL')
  await exited(killed)
  await loseLife(db)
  const heir = startWorker('similar', url)
  await until(async () => (await waiting()) === 0)
  heir.process.kill('SIGTERM')
  assert.equal(await exited(heir), 0, heir.output())
  await sameAsBruteForce(new Map([...vectors, ...more]))
})
