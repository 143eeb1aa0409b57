// The event loader's core on real sources and a real store: every event once and in order, a source asked by one at a time
// and with its gap, and one's failure its own. One suite over both kinds of locks. Time is moved by moving rows.

import assert from 'node:assert/strict'
import { after, afterEach, before, beforeEach, describe, test } from 'node:test'
import { sql } from 'kysely'
import { dropPartitions, makePartitions, openEventStore } from '../db/loader.ts'
import {
  noteSources,
  pauseSource,
  readSourceStatus,
  resetSource,
  resumeSource,
} from '../db/loaderSources.ts'
import { openLoaderTurns } from '../db/loaderTurns.ts'
import {
  createGatherer,
  type LockFactory,
  type Page,
  type Source,
  type SourceGate,
} from '../domain/loader.ts'
import { readSource } from '../domain/sources.ts'
import { openRedisLoaderGate, openRedisLoaderLocks } from '../redis/loaderTurns.ts'
import { openRedis } from '../redis/open.ts'
import { openFetchers } from '../workers/loader/fetchers.ts'
import { createLoader, type Loader, type LoaderOptions } from '../workers/loader/loader.ts'
import { needs, testDatabase } from './database.ts'
import { closeSources, leastGaps, type Sources, startSources } from './servers/eventSource.ts'
import { until } from './worker.ts'

const { db, database, open } = await testDatabase()
const never = new AbortController().signal
const fetchers = openFetchers(
  { LOADER_BODY_MAX: 4_000_000, LOADER_BUFFER_MAX: 8_000_000 },
  { SHOP_TOKEN: 's3cret' },
)
let remote: Sources
let failures: { source: string; why: string; restMs: number }[] = []

before(async () => {
  remote = await startSources(8)
})
after(async () => {
  await fetchers.close()
  await closeSources()
})
beforeEach(async () => {
  failures = []
  await sql`truncate loader_sources, loader_turns, loader_seen, loaded_events`.execute(db)
  const usual = {
    mood: 'well',
    latencyMs: 0,
    firstId: '1',
    step: 1,
    count: 0,
    perSecond: 0,
  } as const
  await remote.set({ ...usual, pageMax: 0, hidden: [], tells: false, authorization: '' })
})

/** As a description has it. */
const variable = (name: string) => `\${env:${name}}`
const urlOf = (place: number) => `http://127.0.0.1:${remote.ports[place]}/events`

function sourceAt(place: number, more: object = {}): Source {
  const { source, faults } = readSource({ name: `s${place}`, url: urlOf(place), ...more })
  assert.deepEqual(faults, [])
  return source as Source
}

type Parts = { locks: LockFactory; gate: SourceGate }

function loaderOf(parts: Parts, holder: string, more: Partial<LoaderOptions> = {}): Loader {
  return createLoader({
    ...parts,
    fetchers: fetchers.byType,
    store: openEventStore(database),
    holder,
    gapMs: 0,
    idleMaxMs: 1000,
    batchMax: 1000,
    concurrency: 64,
    dying: never,
    random: () => 0,
    on: {
      loaded() {},
      fetched() {},
      appended() {},
      failed: (source, why, _, restMs) => failures.push({ source, why, restMs }),
      mended() {},
      fenced() {},
    },
    ...more,
  })
}

const postgres = (): Parts => openLoaderTurns(db)

async function use(loader: Loader, sources: Source[]): Promise<void> {
  loader.setSources(
    sources,
    await noteSources(
      db,
      sources.map(({ name }) => name),
    ),
  )
}

const loaded = async (source: string): Promise<{ ids: string[]; payloads: string[] }> => {
  const { rows } = await sql<{ id: string; payload: string }>`
    select id, payload::text as payload from loaded_events
    where source = ${source} order by loaded_at, id`.execute(db)
  return { ids: rows.map(({ id }) => id), payloads: rows.map(({ payload }) => payload) }
}
const openGates = () =>
  sql`update loader_turns set next_at = clock_timestamp(), leased_until = null`.execute(db)
const upTo = (count: number, first = 1) =>
  Array.from({ length: count }, (_, i) => String(first + i))
const statusOf = async (name: string) => {
  const [status] = await readSourceStatus(db, [name])
  assert.ok(status)
  return status
}

describe('a round', () => {
  test('loads a page of each source, its payloads byte for byte, and moves the cursor', async () => {
    await remote.set({ count: 1500 }, [0])
    await remote.set({ count: 3, mood: 'bare' }, [1])
    const loader = loaderOf(postgres(), 'a', { gapMs: 50 })
    await use(loader, [sourceAt(0), sourceAt(1), sourceAt(2)])
    assert.equal(await loader.runOnce(never), 1003)
    assert.deepEqual((await loaded('s0')).ids, upTo(1000))
    const { payloads } = await loaded('s1')
    const text = '"a \\"quoted\\" tab\\t, ünï"'
    assert.equal(payloads[1], `{"n":1,"text":${text},"fill":"${'x'.repeat(40)}"}`)
    await openGates()
    await until(async () => (await loader.runOnce(never)) === 500)
    assert.deepEqual((await loaded('s0')).ids, upTo(1500))
    assert.equal((await statusOf('s0')).last_id, '1500')
    const [asked] = (await remote.record()).map(({ requests }) => requests.slice(-2))
    assert.deepEqual(
      asked?.map((one) => one.after),
      ['0', '1000'],
    )
  })

  test('without a gap goes on with a source until its last page', async () => {
    await remote.set({ count: 4321 }, [0])
    const loader = loaderOf(postgres(), 'a')
    await use(loader, [sourceAt(0)])
    assert.equal(await loader.runOnce(never), 4321)
    assert.deepEqual((await loaded('s0')).ids, upTo(4321))
  })

  test('takes ids above 2^53 exactly, and pages of a size that the source likes', async () => {
    await remote.set({ count: 25, firstId: '9007199254740993', step: 2, pageMax: 10 }, [0])
    const loader = loaderOf(postgres(), 'a')
    await use(loader, [sourceAt(0)])
    await until(async () => {
      await loader.runOnce(never)
      return (await loaded('s0')).ids.length === 25
    })
    assert.equal((await loaded('s0')).ids[1], '9007199254740995')
  })

  for (const [mood, more] of [
    ['gzip', {}],
    ['lines', { type: 'ndjson' }],
  ] as const) {
    test(`reads what comes as ${mood}`, async () => {
      await remote.set({ count: 2500, mood }, [0])
      const loader = loaderOf(postgres(), 'a')
      await use(loader, [sourceAt(0, more)])
      await until(async () => {
        await loader.runOnce(never)
        return (await loaded('s0')).ids.length === 2500
      })
      assert.deepEqual((await loaded('s0')).ids, upTo(2500))
    })
  }

  test('sends headers with secrets of the environment, and tells of one that is not set', async () => {
    await remote.set({ count: 2, authorization: 'Bearer s3cret' }, [0, 1])
    const loader = loaderOf(postgres(), 'a')
    const { source: without } = readSource({
      name: 's1',
      url: urlOf(1),
      headers: { Authorization: variable('NONE') },
    })
    await use(loader, [
      sourceAt(0, { headers: { Authorization: `Bearer ${variable('SHOP_TOKEN')}` } }),
      without as Source,
    ])
    assert.equal(await loader.runOnce(never), 2)
    assert.match(
      failures[0]?.why ?? '',
      /header Authorization: the environment variable NONE is not set/,
    )
  })

  test('keeps lag where the source tells its newest id', async () => {
    await remote.set({ count: 1500, tells: true }, [0])
    const loader = loaderOf(postgres(), 'a', { gapMs: 50 })
    await use(loader, [sourceAt(0)])
    await loader.runOnce(never)
    const status = await statusOf('s0')
    assert.deepEqual([status.newest_id, status.lag_events, status.state], ['1500', 500, 'ok'])
    assert.ok(status.rate_per_second > 10)
  })
})

describe('a bad source', () => {
  const cases: [string, object, RegExp][] = [
    ['error', {}, /it answers 500/],
    ['busy', {}, /it answers 429/],
    ['hang', { timeout_ms: 300 }, /no whole reply within 300 ms/],
    ['drip', { timeout_ms: 300 }, /no whole reply within 300 ms/],
    ['huge', {}, /larger than 4000000 bytes/],
    ['bomb', {}, /larger than 4000000 bytes/],
    ['garbage', {}, /not JSON: at byte 30 a key must begin with a quote/],
    ['html', {}, /not JSON: at byte 0 a list or an object must begin/],
    ['unsorted', {}, /event 2 of 2 has id 7 after 8: ids must rise/],
    ['repeated', {}, /event 2 of 2 has id 8 once more/],
    ['behind', {}, /has id 5, and events after 5 were asked for/],
    ['text', {}, /event 1 has a bad id: it must be a positive integer, and is a text/],
    ['fraction', {}, /its id must be a positive integer, and is 1\.5/],
    ['negative', {}, /bad id: it must be a positive integer, and is negative/],
    ['overflow', {}, /must be from 1 to 9223372036854775807/],
    ['noPayload', {}, /event 1 has no "payload"/],
    ['redirect', {}, /redirects \(302\) to http:\/\/127\.0\.0\.1:1\/x, which is not followed/],
    ['half', {}, /broke before the whole reply had come/],
    ['halfChunked', {}, /broke before the whole reply had come/],
    ['unheard', {}, /the connection broke/],
  ]
  for (const [mood, more, says] of cases) {
    test(`(${mood}) is named, stores nothing, and harms no other`, async () => {
      await remote.set({ count: 5 }, [0, 1])
      const loader = loaderOf(postgres(), 'a')
      await use(loader, [sourceAt(0, more), sourceAt(1)])
      await loader.runOnce(never)
      await remote.set({ count: 10, mood: mood as 'well' }, [0])
      await remote.set({ count: 10 }, [1])
      await openGates()
      await until(async () => {
        await loader.runOnce(never)
        return failures.length > 0 && (await loaded('s1')).ids.length === 10
      })
      assert.match(failures[0]?.why ?? '', says)
      const status = await statusOf('s0')
      assert.deepEqual([status.state, status.last_id, status.failures], ['failing', '5', 1])
      assert.match(status.last_error ?? '', says)
      assert.doesNotMatch(status.last_error ?? '', /hunter2|k=secret/)
      assert.deepEqual((await loaded('s0')).ids, upTo(5))
      assert.equal(failures[0]?.restMs, mood === 'busy' ? 7000 : 750)

      await remote.set({ mood: 'well' }, [0])
      await openGates()
      const again = loaderOf(postgres(), 'b')
      await use(again, [sourceAt(0)])
      assert.equal(await again.runOnce(never), 5)
      assert.equal((await statusOf('s0')).state, 'ok')
    })
  }

  test('that speaks no TLS, is not there, or has no name is told apart', async () => {
    const bad = [
      { name: 'tls', url: urlOf(0).replace('http:', 'https:') },
      { name: 'closed', url: 'http://127.0.0.1:1/' },
      { name: 'noname', url: 'http://no-such-host.invalid/' },
      { name: 'file', type: 'file', url: '/no/such/file' },
    ]
    const loader = loaderOf(postgres(), 'a')
    await use(
      loader,
      bad.map((one) => readSource(one).source as Source),
    )
    await loader.runOnce(never)
    const why = new Map(failures.map((one) => [one.source, one.why]))
    assert.match(why.get('tls') ?? '', /TLS failed/)
    assert.match(why.get('closed') ?? '', /nobody listens/)
    assert.match(why.get('noname') ?? '', /its host has no address/)
    assert.match(why.get('file') ?? '', /there is no such file/)
  })

  test('rests longer with each failure, over all instances', async () => {
    await remote.set({ mood: 'error' }, [0])
    const rests: number[] = []
    for (const holder of ['a', 'b', 'a', 'b']) {
      const loader = loaderOf(postgres(), holder)
      await use(loader, [sourceAt(0)])
      await openGates()
      await loader.runOnce(never)
      rests.push(failures.at(-1)?.restMs ?? 0)
      const other = loaderOf(postgres(), 'c')
      await use(other, [sourceAt(0)])
      await other.runOnce(never)
    }
    assert.deepEqual(rests, [750, 1500, 3000, 6000])
    assert.equal(failures.length, 4)
  })

  test('that hangs holds nobody up, however many do', async () => {
    await remote.set({ mood: 'hang' }, [0, 1, 2, 3, 4, 5])
    await remote.set({ count: 10, perSecond: 50 }, [6])
    const loader = loaderOf(postgres(), 'a', { gapMs: 20, concurrency: 4 })
    await use(
      loader,
      [0, 1, 2, 3, 4, 5, 6].map((place) => sourceAt(place, { timeout_ms: 30_000 })),
    )
    const stop = new AbortController()
    const dying = new AbortController()
    const running = loader.run(stop.signal)
    await until(async () => (await loaded('s6')).ids.length > 60)
    assert.ok(
      (await remote.record()).slice(0, 4).every(({ requests }) => requests.at(-1)?.over === null),
    )
    stop.abort()
    dying.abort()
    // Their servers hang up: nobody waits for the 30 s.
    const hung = remote
    remote = await startSources(8)
    await hung.close()
    await running
  })
})

/** Events with ids from 1 on. */
function pageOf(...payloads: string[]): Page {
  const gathered = createGatherer(Buffer.from(payloads.join('')))
  let at = 0
  for (const [i, payload] of payloads.entries()) {
    gathered.add(BigInt(i + 1), at, at + payload.length)
    at += payload.length
  }
  return { events: gathered.events(), more: false, newestId: undefined }
}

describe('the store', () => {
  test('refuses a page of who lost the source, whatever its lock says', async () => {
    const store = openEventStore(database)
    await noteSources(db, ['x'])
    const first = await store.lastKnownId('x', 'a')
    const page = pageOf('{}')
    const source = { ...sourceAt(0), name: 'x' }
    const second = await store.lastKnownId('x', 'b')
    assert.ok(first && second)
    await assert.rejects(store.append(source, first, [page]), /in the hands of another/)
    assert.equal(await store.failed('x', first, 'late'), undefined)
    await store.append(source, second, [page])
    await assert.rejects(store.append(source, second, [page]), /in the hands of another/)
    assert.deepEqual((await loaded('x')).ids, ['1'])
  })

  test('a cursor that stays in the same hands costs no write', async () => {
    const store = openEventStore(database)
    await noteSources(db, ['x'])
    const [one, two] = [await store.lastKnownId('x', 'a'), await store.lastKnownId('x', 'a')]
    assert.equal(one?.fence, two?.fence)
    assert.equal((await store.lastKnownId('x', 'b'))?.fence, (one?.fence ?? 0n) + 1n)
  })

  test('says which event Postgres cannot take, and stores none of the page', async () => {
    const store = openEventStore(database)
    await noteSources(db, ['x'])
    const cursor = await store.lastKnownId('x', 'a')
    assert.ok(cursor)
    const page = pageOf('1', '{bad')
    const appending = store.append({ ...sourceAt(0), name: 'x' }, cursor, [page])
    await assert.rejects(
      appending,
      /event 2: Postgres refuses it: invalid input syntax for type json/,
    )
    assert.deepEqual((await loaded('x')).ids, [])
    assert.equal((await statusOf('x')).last_id, '0')
  })

  test('makes a partition that is missing', async () => {
    await sql`drop table ${sql.raw(
      (
        await sql<{ name: string }>`
      select 'loaded_events_' || to_char(clock_timestamp() at time zone 'UTC', 'YYYYMMDD') as name`.execute(
          db,
        )
      ).rows[0]!.name,
    )}`.execute(db)
    await remote.set({ count: 5 }, [0])
    const loader = loaderOf(postgres(), 'a')
    await use(loader, [sourceAt(0)])
    await assert.rejects(loader.runOnce(never), /no partition/)
    await openGates()
    await until(async () => (await loader.runOnce(never)) === 5)
    await makePartitions(database.pool)
  })

  test('drops the partitions of days that are over, and waits for no reader', async () => {
    const dayOf = async (ago: number) => {
      const { rows } = await sql<{ name: string; day: string }>`
        select 'loaded_events_' || to_char(day, 'YYYYMMDD') as name, day::text from (
          select (clock_timestamp() at time zone 'UTC')::date - ${ago}::int as day) d`.execute(db)
      return rows[0]!
    }
    const [kept, old, older] = [await dayOf(30), await dayOf(31), await dayOf(400)]
    for (const { name, day } of [kept, old, older]) {
      await sql`create table ${sql.id(name)} partition of loaded_events
        for values from (${sql.lit(`${day} 00:00+00`)}) to (${sql.lit(`${day} 24:00+00`)})`.execute(
        db,
      )
      await sql`insert into loaded_events (source, id, payload, loaded_at)
        values ('long ago', 1, '{}', ${`${day} 12:00+00`})`.execute(db)
    }
    await db.transaction().execute(async (reader) => {
      await sql`select from ${sql.id(older.name)}`.execute(reader)
      await assert.rejects(dropPartitions(db, 30), /lock timeout/)
    })
    assert.deepEqual(await dropPartitions(db, 30), [older.name, old.name])
    assert.deepEqual(await dropPartitions(db, 30), [])
    const { rows } = await sql`
      select from loaded_events where source = 'long ago'`.execute(db)
    assert.equal(rows.length, 1)
  })

  test('pause, resume and reset go through the fence', async () => {
    await remote.set({ count: 10 }, [0])
    const loader = loaderOf(postgres(), 'a')
    await use(loader, [sourceAt(0)])
    await loader.runOnce(never)
    assert.equal(await resetSource(db, 's0', 4n), 6)
    await pauseSource(db, 's0')
    await openGates()
    assert.equal(await loader.runOnce(never), 0)
    assert.deepEqual((await loaded('s0')).ids, upTo(4))
    assert.equal((await statusOf('s0')).state, 'paused')
    assert.equal(await resumeSource(db, 's0'), true)
    const other = loaderOf(postgres(), 'b')
    await use(other, [sourceAt(0)])
    await openGates()
    assert.equal(await other.runOnce(never), 6)
    assert.deepEqual((await loaded('s0')).ids, upTo(10))
    assert.equal(await resetSource(db, 'nobody', 1n), undefined)
  })

  test('with an overlap takes ids that turn up late, each once', async () => {
    await remote.set({ count: 40, hidden: [3, 33, 37], pageMax: 7 }, [0])
    const loader = loaderOf(postgres(), 'a')
    await use(loader, [sourceAt(0, { overlap: 20 })])
    const load = async (count: number) =>
      await until(async () => {
        await loader.runOnce(never)
        await openGates()
        return (await loaded('s0')).ids.length >= count
      })
    await load(37)
    // The first lies before the window: it is not seen any more.
    await remote.set({ hidden: [] }, [0])
    await load(39)
    await remote.set({ count: 50 }, [0])
    await load(49)
    for (let i = 0; i < 8; i++) await loader.runOnce(never)
    const { ids } = await loaded('s0')
    assert.deepEqual(
      ids.map(Number).sort((a, b) => a - b),
      upTo(50)
        .map(Number)
        .filter((id) => id !== 4),
    )
    const { rows } = await sql<{ n: number }>`select count(*)::int as n from loader_seen`.execute(
      db,
    )
    assert.ok(rows[0]!.n <= 27)
    assert.deepEqual(failures, [])
  })
})

for (const kind of ['Postgres', 'Redis'] as const) {
  describe(`locks and gates on ${kind}`, { skip: kind === 'Redis' && needs('redis') }, () => {
    const opened: { close(): Promise<void> }[] = []
    afterEach(async () => {
      for (const one of opened.splice(0)) await one.close()
    })
    async function parts(): Promise<Parts & { flush(): Promise<unknown> }> {
      if (kind === 'Postgres') {
        const own = open().db
        return {
          ...openLoaderTurns(own),
          flush: () => sql`truncate loader_turns`.execute(own),
        }
      }
      const client = openRedis({
        url: process.env.TEST_REDIS_URL ?? '',
        name: 'test',
        commandTimeoutMs: 10_000,
      })
      opened.push(client)
      await client.ready()
      return {
        locks: openRedisLoaderLocks(client.redis, 10_000),
        gate: openRedisLoaderGate(client.redis, 10_000),
        async flush() {
          const keys = await client.redis.keys('loader:*')
          if (keys.length > 0) await client.redis.del(...keys)
        },
      }
    }

    test('a lock has one holder, never waits, and is free when it is released or its lease is over', async () => {
      const [one, two] = [await parts(), await parts()]
      await one.flush()
      await one.gate.waitMs('x', 0)
      const lock = await one.locks.tryLock('x', 60_000)
      assert.ok(lock && lock.until > performance.now() + 50_000)
      assert.equal(await two.locks.tryLock('x', 60_000), undefined)
      await lock.release()
      assert.ok(await two.locks.tryLock('x', 1))
      let third: unknown
      await until(async () => {
        third = await one.locks.tryLock('x', 60_000)
        return third !== undefined
      })
      // Who lost it does not release another's.
      await lock.release()
      assert.equal(await two.locks.tryLock('x', 60_000), undefined)
    })

    test('a gate is closed for as long as it was told, and what it has never heard of for as long as asked', async () => {
      const [one, two] = [await parts(), await parts()]
      await one.flush()
      assert.equal(await one.gate.waitMs('new', 0), 0)
      assert.equal(await two.gate.waitMs('new', 5000), 0, 'it is known now')
      await one.gate.close('new', 60_000)
      const waitMs = await two.gate.waitMs('new', 0)
      assert.ok(waitMs > 50_000 && waitMs <= 60_000)
      await one.flush()
      assert.ok((await two.gate.waitMs('new', 5000)) > 0, 'it was forgotten')
      assert.ok((await one.gate.waitMs('new', 0)) > 0)
    })

    test('several instances load each event once, in order, and keep the gap at the source', async () => {
      const all = await Promise.all([parts(), parts(), parts(), parts()])
      await all[0]?.flush()
      await remote.set({ count: 300, perSecond: 150, latencyMs: 15, payloadBytes: 10 })
      const names = [0, 1, 2, 3, 4, 5, 6, 7]
      const before = (await remote.record()).map(({ requests }) => requests.length)
      const stop = new AbortController()
      const running = await Promise.all(
        all.map(async (own, i) => {
          const loader = loaderOf(own, `holder-${i}`, { gapMs: 200, batchMax: 100 })
          await use(
            loader,
            names.map((place) => sourceAt(place)),
          )
          return { ended: loader.run(stop.signal) }
        }),
      )
      await until(async () => (await loaded('s7')).ids.length > 700)
      await remote.set({ perSecond: 0 })
      const record = await remote.record()
      await until(async () => {
        const counts = await Promise.all(names.map(async (n) => (await loaded(`s${n}`)).ids.length))
        return counts.every((count, i) => count === record[i]?.count)
      })
      stop.abort()
      for (const { ended } of running) await ended
      for (const place of names) {
        assert.deepEqual((await loaded(`s${place}`)).ids, upTo(record[place]?.count ?? 0))
      }
      for (const [i, { requests }] of (await remote.record()).entries()) {
        const { between } = leastGaps(requests.slice(before[i]))
        assert.ok(between >= 200, `source ${i}: ${between} ms`)
      }
    })
  })
}
