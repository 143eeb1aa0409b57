// What must not cost the event loader an event, nor give it one twice: an append that fails while the next page is
// fetched, and an overlap window that comes, grows, goes, or is reset. And what one source must not cost the others.

import assert from 'node:assert/strict'
import { once } from 'node:events'
import { createServer, type RequestListener, type Server } from 'node:http'
import type { AddressInfo } from 'node:net'
import { after, before, beforeEach, describe, test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { sql } from 'kysely'
import { openEventStore } from '../db/loader.ts'
import { noteSources, resetSource } from '../db/loaderSources.ts'
import { openLoaderTurns } from '../db/loaderTurns.ts'
import type { EventFetcher, Source } from '../domain/loader.ts'
import { readSource } from '../domain/sources.ts'
import { openFetchers } from '../workers/loader/fetchers.ts'
import { createLoader, type LoaderOptions } from '../workers/loader/loader.ts'
import { readReply } from '../workers/loader/page.ts'
import { testDatabase } from './database.ts'
import { closeSources, type Sources, startSources } from './servers/eventSource.ts'
import { until } from './worker.ts'

const { db, database } = await testDatabase()
const never = new AbortController().signal
const fetchers = openFetchers({ LOADER_BODY_MAX: 4_000_000, LOADER_BUFFER_MAX: 8_000_000 }, {})
let remote: Sources
let failures: string[] = []

before(async () => {
  remote = await startSources(1)
})
after(async () => {
  await fetchers.close()
  await closeSources()
})
beforeEach(async () => {
  failures = []
  await sql`truncate loader_sources, loader_turns, loader_seen, loaded_events`.execute(db)
  await remote.set({ mood: 'well', latencyMs: 0, count: 0, pageMax: 0, hidden: [], tells: false })
})

function sourceOf(url: string, more: object = {}): Source {
  const { source, faults } = readSource({ name: 'shop', url, ...more })
  assert.deepEqual(faults, [])
  return source as Source
}
const shop = (more: object = {}) => sourceOf(`http://127.0.0.1:${remote.ports[0]}/events`, more)

function loaderOf(more: Partial<LoaderOptions> = {}) {
  return createLoader({
    ...openLoaderTurns(db),
    fetchers: fetchers.byType,
    store: openEventStore(database),
    holder: 'a',
    gapMs: 0,
    idleMaxMs: 100,
    batchMax: 1000,
    concurrency: 64,
    dying: never,
    random: () => 0,
    on: {
      loaded() {},
      fetched() {},
      appended() {},
      failed: (_source, why) => failures.push(why),
      mended() {},
      fenced() {},
    },
    ...more,
  })
}

const loaded = async (): Promise<number[]> => {
  const { rows } = await sql<{ id: string }>`select id from loaded_events order by id`.execute(db)
  return rows.map(({ id }) => Number(id))
}
const openGates = () =>
  sql`update loader_turns set next_at = clock_timestamp(), leased_until = null`.execute(db)
const upTo = (count: number) => Array.from({ length: count }, (_, i) => i + 1)

test('a page that could not be stored is not passed over by the next one', async () => {
  await remote.set({ count: 5000 })
  const store = openEventStore(database)
  const broken = Promise.withResolvers<void>()
  let [fetched, appended] = [0, 0]
  const http: EventFetcher = {
    async fetch(...asked) {
      // The second page comes when the first is known to be lost.
      if (++fetched === 2) await broken.promise
      return await fetchers.byType.http.fetch(...asked)
    },
  }
  const loader = loaderOf({
    fetchers: { ...fetchers.byType, http },
    store: {
      ...store,
      async append(...pages) {
        if (++appended > 1) return await store.append(...pages)
        setImmediate(() => broken.resolve())
        throw Object.assign(new Error('Connection terminated'), { code: '57P01' })
      },
    },
  })
  loader.setSources([shop()], await noteSources(db, ['shop']))
  await assert.rejects(loader.runOnce(never), /Connection terminated/)
  assert.deepEqual(await loaded(), [])
  await until(async () => {
    await openGates()
    await loader.runOnce(never)
    return (await loaded()).length >= 5000
  })
  assert.deepEqual(await loaded(), upTo(5000))
})

describe('an overlap window', () => {
  /** Each by a loader that knows of no rest. */
  async function rounds(more: object, count = 8): Promise<void> {
    for (let i = 0; i < count; i++) {
      const loader = loaderOf()
      loader.setSources([shop(more)], await noteSources(db, ['shop']))
      await openGates()
      await loader.runOnce(never)
    }
  }

  test('that is given to a source later, is made larger, and is taken away again, loads nothing twice', async () => {
    await remote.set({ count: 50, hidden: [46] })
    await rounds({})
    await rounds({ overlap: 10 })
    await remote.set({ hidden: [] })
    await rounds({ overlap: 20 })
    assert.deepEqual(await loaded(), upTo(50))
    await remote.set({ count: 55 })
    await rounds({})
    await rounds({ overlap: 30 })
    assert.deepEqual([await loaded(), failures], [upTo(55), []])
  })

  test('loads nothing twice after a reset', async () => {
    await remote.set({ count: 50 })
    await rounds({ overlap: 20 })
    await resetSource(db, 'shop', 45n)
    await rounds({ overlap: 20 })
    assert.deepEqual([await loaded(), failures], [upTo(50), []])
  })
})

test('a source that has none yet may say that its newest id is 0', () => {
  assert.equal(readReply(Buffer.from('{"events":[],"last_id":0}')).newestId, 0n)
})

test('a lease outlives its request by the gap of its source, so that a death does not cut that short', async () => {
  const leases: number[] = []
  const { locks, gate } = openLoaderTurns(db)
  const loader = loaderOf({
    gate,
    locks: {
      tryLock(source, leaseMs) {
        leases.push(leaseMs)
        return locks.tryLock(source, leaseMs)
      },
    },
  })
  for (const gap_ms of [0, 60_000]) {
    loader.setSources([], new Set())
    loader.setSources([shop({ gap_ms, timeout_ms: 2000 })], await noteSources(db, ['shop']))
    await openGates()
    await until(async () => {
      await loader.runOnce(never)
      return leases.length > 0
    })
    const [leaseMs] = leases.splice(0) as [number]
    assert.ok(leaseMs >= 2000 + gap_ms + 1000, `${leaseMs} ms`)
  }
})

describe('servers of sources', () => {
  const servers: Server[] = []
  after(() => {
    for (const server of servers) {
      server.closeAllConnections()
      server.close()
    }
  })
  async function serve(answer: RequestListener): Promise<{ url: string; server: Server }> {
    const server = createServer(answer).listen(0, '127.0.0.1')
    servers.push(server)
    await once(server, 'listening')
    return { url: `http://127.0.0.1:${(server.address() as AddressInfo).port}/`, server }
  }
  const asked = { signal: never, sending() {} }

  test('a reply that is packed in a way we do not know leaves no connection behind', async () => {
    const { url, server } = await serve((_request, response) => {
      response.writeHead(200, { 'content-encoding': 'br' })
      response.write('x')
    })
    const source = sourceOf(url)
    await assert.rejects(
      fetchers.byType.http.fetch(source, 0n, 10, asked),
      /content-encoding is br/,
    )
    const connections = () =>
      new Promise<number>((resolve) => server.getConnections((_, count) => resolve(count)))
    await until(async () => (await connections()) === 0)
  })

  test('replies that wait for memory go on though the oldest request hangs', async () => {
    const small = openFetchers({ LOADER_BODY_MAX: 2_000_000, LOADER_BUFFER_MAX: 1_048_576 }, {})
    const hung = await serve(() => {})
    const large = await serve(async (_request, response) => {
      response.write('[')
      for (let id = 1; id <= 20; id++) {
        response.write(`${id > 1 ? ',' : ''}{"id":${id},"payload":"${'x'.repeat(40_000)}"}`)
        await sleep(5)
      }
      response.end(']')
    })
    const { http } = small.byType
    const stuck = http.fetch(sourceOf(hung.url, { timeout_ms: 8000 }), 0n, 10, asked)
    stuck.catch(() => {})
    const source = sourceOf(large.url, { timeout_ms: 6000 })
    const counts = await Promise.all(
      upTo(6).map(async () => {
        const page = await http.fetch(source, 0n, 100, asked)
        await sleep(10)
        page.free?.()
        return page.events.ids.length
      }),
    )
    assert.deepEqual(counts, Array(6).fill(20))
    await small.close()
  })
})
