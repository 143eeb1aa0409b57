// The search index in an OpenSearch of its own process: what changes comes to it, late things change nothing, it may fail
// or ask for less, and it is built anew while items are written and looked for.

import assert from 'node:assert/strict'
import { join } from 'node:path'
import { after, beforeEach, describe, test } from 'node:test'
import { sql } from 'kysely'
import { Registry } from 'prom-client'
import { rebuildIndex } from '../cli/items/rebuild.ts'
import { openJobs } from '../db/jobs.ts'
import { createBreakers } from '../workers/breakers.ts'
import { findInOpenSearch, findInPostgres } from '../workers/http/found.ts'
import { openSearch } from '../workers/opensearch.ts'
import { searchPass } from '../workers/search/search.ts'
import { createSharedCircuit } from '../workers/sharedCircuit.ts'
import { openApi } from './api.ts'
import { testDatabase } from './database.ts'
import {
  bruteForce,
  changeItem,
  clusteredVectors,
  drain,
  dropItem,
  embedItem,
  makeItem,
  runSimilar,
  worker,
} from './itemRuns.ts'
import { emptyJobs, everyJob } from './jobRows.ts'
import { startOpenSearch } from './servers/opensearch.ts'
import { endWorkers, exited, startCommand, startWorker, until } from './worker.ts'

const fresh = await testDatabase()
const { db, database, url } = fresh
const jobs = openJobs(database)
const server = await startOpenSearch()
after(async () => {
  await endWorkers()
  await jobs.close()
  await server.stop()
})
beforeEach(async () => {
  await emptyJobs(db)
  await sql`delete from items`.execute(db)
  await sql`delete from item_spaces`.execute(db)
  await sql`truncate item_rebuilds, circuits, circuit_changes, flags, flag_changes`.execute(db)
  await server.stop()
  await server.start()
})

const { signal } = new AbortController()
const fleet = join(import.meta.dirname, '..', 'cli', 'fleet.js')
const newClient = () => openSearch({ url: server.url, alias: 'items', timeoutMs: 5000 })
const rebuild = (options: object = {}) =>
  rebuildIndex({ db, search: newClient(), signal, batchMax: 50, ...options })

function build({ batchMax = 50 } = {}) {
  const search = newClient()
  const circuit = createSharedCircuit({
    db,
    name: 'opensearch',
    what: 'OpenSearch',
    worker,
    probeHoldMs: 2000,
    waitsMs: { first: 200, most: 400 },
  })
  const pass = searchPass({ db, jobs, index: { search, circuit }, batchMax, worker })
  return { search, circuit, pass }
}

/** With the breaker of a process. */
const found = () =>
  findInOpenSearch(db, {
    search: newClient(),
    breaker: createBreakers({ log: worker.log, registry: new Registry() })('opensearch'),
    isOn: async () => true,
  })
const lookFor = async (q: string, limit = 50): Promise<string[]> =>
  (await newClient().byWords({ q, limit, offset: 0 })) ?? []
const refresh = () => newClient().call('POST', 'items/_refresh')
const hurry = () =>
  sql`
  update pgboss.job set start_after = now() where name = 'search' and start_after > now()`.execute(
    db,
  )
const left = async () => {
  const { rows } = await sql<{ n: number; attempts: number }>`
    select count(*)::int as n, coalesce(max(retry_count), 0)::int as attempts
    from ${everyJob} where name = 'search' and state <> 'completed'`.execute(db)
  return rows[0]
}
async function drainAll(pass: ReturnType<typeof build>['pass']) {
  await until(async () => {
    await hurry()
    await pass(worker.dying, Number.POSITIVE_INFINITY)
    return (await left())?.n === 0
  })
  await pass.finish?.()
}

test('what is made, changed and deleted is found, found otherwise, and not found', async () => {
  await rebuild()
  const { pass } = build()
  const id = await makeItem(db, { title: 'Concert poster', description: 'A print' })
  await drain(pass)
  await refresh()
  for (const q of ['poster', 'CONCERTS', 'print poster']) assert.deepEqual(await lookFor(q), [id])
  assert.deepEqual(await lookFor('poster mug'), [])
  await changeItem(db, id, { title: 'Mug' })
  await drain(pass)
  await refresh()
  assert.deepEqual([await lookFor('poster'), await lookFor('mug')], [[], [id]])
  await dropItem(db, id)
  await drain(pass)
  await refresh()
  assert.deepEqual(await lookFor('mug'), [])
})

test('a late job, and a late write, change nothing: also not back what is deleted', async () => {
  await rebuild()
  const { pass, search } = build()
  const id = await makeItem(db, { title: 'Poster' })
  const { rows } = await sql<{
    version: string
  }>`select version from items where id = ${id}`.execute(db)
  const old = {
    id,
    version: String(rows[0]?.version),
    item: {
      id,
      title: 'Poster',
      description: '',
      version: '1',
      space: null,
      dimensions: null,
      vector: null,
    },
  }
  await changeItem(db, id, { title: 'Mug' })
  await drain(pass)
  const to = await search.aliases()
  assert.deepEqual(await search.write([old], to), [{ is: 'there' }])
  await refresh()
  assert.deepEqual([await lookFor('poster'), await lookFor('mug')], [[], [id]])
  await dropItem(db, id)
  await drain(pass)
  await search.write([old], to)
  const late = { type: 'IndexItem', item_id: id, version: old.version }
  await jobs.send(db, 'search', [{ data: late }])
  await drain(pass)
  await refresh()
  assert.deepEqual([await lookFor('poster'), await lookFor('mug')], [[], []])
})

test('the likest are found by their vectors, without the item itself, as brute force finds them', async () => {
  await rebuild()
  const vectors = new Map<string, Float32Array>()
  for (const vector of clusteredVectors(60, 24, 5)) {
    const id = await makeItem(db)
    await embedItem(db, id, vector)
    vectors.set(id, vector)
  }
  const { pass } = build()
  await drain(pass)
  await refresh()
  for (const id of [...vectors.keys()].slice(0, 10)) {
    const right = bruteForce(vectors, id, 20).map((one) => one.id)
    const near = await found().byLikeness(id, 20)
    assert.deepEqual(
      near.map(({ item_id }) => item_id),
      right,
    )
    const [best] = bruteForce(vectors, id, 1)
    assert.ok(Math.abs((near[0]?.score ?? 0) - (best?.score ?? 0)) < 1e-4)
  }
})

test('while OpenSearch is away, not yet built, or switched off, Postgres is searched', async () => {
  const [one, two] = [
    await makeItem(db, { title: 'Poster' }),
    await makeItem(db, { title: 'Print' }),
  ]
  await embedItem(db, one, [1, 0])
  await embedItem(db, two, [1, 0.1])
  await runSimilar(db, jobs)
  const titles = async (of: ReturnType<typeof found>) =>
    (await of.byWords({ q: 'poster', limit: 10, offset: 0 })).map(({ title }) => title)
  const likes = async (of: ReturnType<typeof found>) =>
    (await of.byLikeness(one, 10)).map(({ item_id }) => item_id)
  assert.deepEqual([await titles(found()), await likes(found())], [['Poster'], [two]], 'no index')
  await rebuild()
  assert.deepEqual([await titles(found()), await likes(found())], [['Poster'], [two]], 'the index')
  await server.mood({ status: 503 })
  const shared = found()
  assert.deepEqual([await titles(shared), await likes(shared)], [['Poster'], [two]], 'faults')
  const { requests } = await server.seen()
  await titles(shared)
  assert.equal((await server.seen()).requests, requests, 'it is not asked each time')
  await server.stop()
  assert.deepEqual(await titles(found()), ['Poster'], 'nobody there')
  // The API answers the same.
  const api = await openApi(database, { found: found() })
  const answer = await api.call('GET', `items/${one}/similar`)
  assert.deepEqual(
    answer.json.items.map(({ title }: { title: string }) => title),
    ['Print'],
  )
  await api.close()
  assert.deepEqual(await likes(findInPostgres(db)), [two])
})

describe('an OpenSearch', () => {
  test('that asks for less gets less, and all of it in the end, no attempt spent', async () => {
    await rebuild()
    for (let i = 0; i < 30; i++) await makeItem(db, { title: `Poster ${i}` })
    await server.mood({ busyItems: 20 })
    const { pass, circuit } = build({ batchMax: 10 })
    await hurry()
    await pass(worker.dying, 5)
    await server.mood({ status: 429, retryAfter: '0.2' })
    await pass(worker.dying, 5)
    await server.mood({ status: 0 })
    assert.equal((await left())?.attempts, 0)
    await drainAll(pass)
    await refresh()
    assert.equal((await lookFor('poster')).length, 30)
    assert.equal(circuit.isOpen(), false)
  })

  test('that is away opens its circuit; jobs wait, no attempt spent, and go on by themselves', async () => {
    await rebuild()
    for (let i = 0; i < 12; i++) await makeItem(db, { title: `Poster ${i}` })
    await server.mood({ status: 503 })
    const { pass, circuit } = build({ batchMax: 3 })
    await until(async () => {
      await hurry()
      await pass(worker.dying, Number.POSITIVE_INFINITY)
      return circuit.isOpen()
    })
    assert.deepEqual(await left(), { n: 12, attempts: 0 })
    const { rows } = await sql<{ enabled: boolean }>`
      select enabled from flags where name = 'search_index'`.execute(db)
    assert.deepEqual(rows, [{ enabled: false }])
    await server.mood({ status: 0 })
    await drainAll(pass)
    await refresh()
    assert.equal((await lookFor('poster')).length, 12)
    assert.equal(circuit.isOpen(), false)
  })

  test('that wants a password gets it from the URL, and tells it nobody', async () => {
    await server.mood({ credentials: 'ann:hu sh' })
    const wrong = openSearch({ url: server.url, alias: 'items', timeoutMs: 5000 })
    await assert.rejects(wrong.aliases(), /OpenSearch answered 401/)
    const { host } = new URL(server.url)
    const right = openSearch({ url: `http://ann:hu%20sh@${host}`, alias: 'items', timeoutMs: 5000 })
    assert.deepEqual(await right.aliases(), { live: undefined, next: undefined })
  })
})

describe('a rebuild', () => {
  const count = 2000

  async function fill(): Promise<void> {
    await sql`
      with made as (
        insert into items (id, title, description, content_version)
        select gen_random_uuid(), 'Poster number ' || i, 'A print', 0 from generate_series(1, ${count}) as i
        returning 1)
      select count(*) from made`.execute(db)
  }

  test('while items are written, changed and deleted: no search sees a hole, and nothing is lost', async () => {
    await fill()
    const first = await rebuild()
    assert.deepEqual([first.items, first.replaced], [count, undefined])
    const { rows } = await sql<{
      id: string
    }>`select id from items order by random() limit 300`.execute(db)
    const [steady, changing, going] = [0, 100, 200].map((from) =>
      rows.slice(from, from + 100).map(({ id }) => id),
    ) as [string[], string[], string[]]
    for (const id of steady) await changeItem(db, id, { title: 'Steady thing' })
    const { pass } = build()
    await drain(pass)
    await refresh()
    assert.equal((await lookFor('steady', 200)).length, 100)

    const stop = new AbortController()
    const made: string[] = []
    const holes: string[] = []
    const searching = (async () => {
      while (!stop.signal.aborted) {
        const [few, all] = [await lookFor('steady', 200), await lookFor('print', 3000)]
        if (few.length !== 100) holes.push(`${few.length} steady ones`)
        if (all.length < count - 300) holes.push(`${all.length} of all`)
      }
    })()
    const writing = (async () => {
      for (let i = 0; i < 100; i++) {
        made.push(await makeItem(db, { title: `Late thing ${i}`, description: 'A print' }))
        await changeItem(db, String(changing[i]), {
          title: 'Changed thing',
          description: 'A print',
        })
        await dropItem(db, String(going[i]))
      }
    })()
    const indexing = (async () => {
      while (!stop.signal.aborted) await pass(worker.dying, Number.POSITIVE_INFINITY)
    })()
    const rebuilds = []
    for (let i = 0; i < 3; i++) rebuilds.push(await rebuild())
    await writing
    rebuilds.push(await rebuild())
    stop.abort()
    await Promise.all([searching, indexing])
    await drainAll(pass)
    await refresh()
    assert.deepEqual(holes, [])
    for (const [i, { replaced }] of rebuilds.entries()) {
      assert.equal(replaced, i === 0 ? first.index : rebuilds[i - 1]?.index)
    }
    // Every item with its newest words, and nothing else.
    const { rows: right } = await sql<{
      id: string
      title: string
    }>`select id, title from items`.execute(db)
    const known = new Set<string>()
    for (const q of ['poster', 'steady', 'late', 'changed']) {
      const ids = await lookFor(q, 5000)
      const expected = right
        .filter(({ title }) => title.toLowerCase().includes(q))
        .map(({ id }) => id)
      assert.deepEqual(ids.sort(), expected.sort(), q)
      for (const id of ids) known.add(id)
    }
    assert.equal(known.size, right.length)
    assert.equal(made.filter((id) => known.has(id)).length, 100)
    const seen = await server.seen()
    assert.deepEqual(
      Object.values(seen.indexes).map(({ aliases, refreshMs }) => [aliases, refreshMs]),
      [[['items'], 1000]],
    )
  })

  test('is gone on with where it stopped, waits when it is asked to, and is done by one at a time', async () => {
    await fill()
    const stop = new AbortController()
    let told = 0
    const stopped = rebuild({
      signal: stop.signal,
      tell: ({ done }: { done: number }) => {
        told = done
        if (done >= 500) stop.abort(new Error('stopped'))
      },
    })
    await assert.rejects(stopped, /stopped/)
    assert.ok(told >= 500 && told < count)
    await server.mood({ busyItems: 30 })
    const waits: string[] = []
    let other: unknown
    const second = await rebuild({
      tell: ({ wait }: { wait?: string }) => {
        if (wait) waits.push(wait)
        other ??= rebuild().catch((error) => error)
      },
    })
    assert.match(String(await other), /is being built by somebody else: its last sign of life/)
    assert.deepEqual([second.resumed, second.items], [true, count])
    assert.match(String(waits[0]), /asks for less/)
    await refresh()
    assert.equal((await lookFor('poster', 5000)).length, count)
    assert.equal((await sql`select from item_rebuilds`.execute(db)).rows.length, 0)
  })

  test('by the command line tells how it goes, and what is there', async () => {
    await makeItem(db, { title: 'Poster' })
    await embedItem(db, await makeItem(db, { title: 'Print' }), [1, 0, 0])
    const env = { PATH: process.env.PATH ?? '', DATABASE_URL: url, OPENSEARCH_URL: server.url }
    const run = startCommand(process.execPath, [fleet, 'items:reindex', '--json'], env)
    assert.equal(await exited(run), 0, run.output())
    const said = JSON.parse(run.output())
    assert.deepEqual([said.codes, said.index.items], [1, 2])
    const { OPENSEARCH_URL: _, ...without } = env
    const plain = startCommand(process.execPath, [fleet, 'items:reindex'], without)
    assert.equal(await exited(plain), 0)
    assert.match(plain.output(), /Postgres: 1 codes of embedded items made anew/)
    await server.stop()
    const away = startCommand(process.execPath, [fleet, 'items:reindex'], env)
    assert.equal(await exited(away), 1)
    assert.match(away.output(), /fleet: OpenSearch cannot be reached/)
    const embed = startCommand(process.execPath, [fleet, 'items:embed', '--json'], without)
    assert.equal(await exited(embed), 0)
    assert.deepEqual(JSON.parse(embed.output()), { sent: 1 })
  })
})

test('the worker brings items to the index, outlives it, and stops without a job lost', async () => {
  await rebuild()
  const started = startWorker('search', url, [], { OPENSEARCH_URL: server.url })
  const id = await makeItem(db, { title: 'Poster' })
  await until(async () => (await lookFor('poster')).includes(id))
  await server.stop()
  const late = await makeItem(db, { title: 'Late poster' })
  await until(() => /OpenSearch is away/.test(started.output()))
  await server.start()
  await rebuild()
  await until(async () => (await left())?.n === 0)
  started.process.kill('SIGTERM')
  assert.equal(await exited(started), 0, started.output())
  await refresh()
  assert.deepEqual((await lookFor('poster')).sort(), [id, late].sort())
  // Where there is none, there is nothing to do.
  await makeItem(db)
  const none = startWorker('search', url, ['--once'])
  assert.equal(await exited(none), 0, none.output())
  assert.equal((await left())?.n, 0)
})
