// The loader as processes: several at the same sources while one is killed, Redis forgets everything and their clocks are
// hours apart; and the way one stops. What the sources wrote down and what the table holds must agree.

import assert from 'node:assert/strict'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, before, describe, test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { sql } from 'kysely'
import { addSource, readSourceStatus } from '../db/loaderSources.ts'
import { needs, type TestDatabase, testDatabase } from './database.ts'
import { openCable } from './servers/cable.ts'
import { closeSources, leastGaps, type Sources, startSources } from './servers/eventSource.ts'
import { startRedis, withoutRedisServer } from './servers/redis.ts'
import { exited, scrape, startWorker, until, type WorkerProcess } from './worker.ts'

const folder = mkdtempSync(join(tmpdir(), 'flotilla-loader-'))
const file = join(folder, 'sources.json')
let remote: Sources
before(async () => {
  remote = await startSources(6)
})
after(async () => {
  await closeSources()
  rmSync(folder, { recursive: true, force: true })
})

const describedAt = (place: number, more: object = {}) => ({
  name: `s${place}`,
  url: `http://127.0.0.1:${remote.ports[place]}/events`,
  timeout_ms: 1000,
  ...more,
})
const writeSources = (...places: number[]) =>
  writeFileSync(file, JSON.stringify({ sources: places.map((place) => describedAt(place)) }))

async function idsOf({ db }: TestDatabase, source: string): Promise<string[]> {
  const { rows } = await sql<{ id: string }>`
    select id from loaded_events where source = ${source} order by loaded_at, id`.execute(db)
  return rows.map(({ id }) => id)
}
const upTo = (count: number) => Array.from({ length: count }, (_, i) => String(i + 1))

/** A process whose Date is so many hours off. */
const hoursOff = (hours: number): Record<string, string> => ({
  NODE_OPTIONS: `--import ${JSON.stringify(
    `data:text/javascript,${encodeURIComponent(
      `const real=Date.now;Date.now=()=>real()+${hours}*36e5;`,
    )}`,
  )}`,
})

async function end(workers: WorkerProcess[]): Promise<void> {
  for (const { process: child } of workers) child.kill('SIGTERM')
  for (const worker of workers) assert.equal(await exited(worker), 0, worker.output())
}

describe('loader processes', () => {
  for (const kind of ['postgres', 'redis'] as const) {
    const skip = kind === 'redis' && needs('redis')
    test(`with ${kind} locks: one is killed, locks are lost, clocks differ, and each event is there once`, {
      skip,
    }, async () => {
      const own = await testDatabase()
      const places = [0, 1, 2, 3, 4, 5]
      writeSources(...places)
      await remote.set({
        mood: 'well',
        count: 100,
        perSecond: 100,
        latencyMs: 30,
        payloadBytes: 10,
      })
      const before = (await remote.record()).map(({ requests }) => requests.length)
      const redis = process.env.TEST_REDIS_URL ?? ''
      const url = new URL(redis || 'redis://none')
      url.pathname = kind === 'redis' ? '/9' : ''
      const env = {
        LOADER_SOURCES: file,
        LOADER_LOCKS: kind,
        LOADER_BATCH: '100',
        ...(kind === 'redis' && { REDIS_URL: url.href }),
      }
      const start = (hours: number) =>
        startWorker('loader', own.url, [], { ...env, ...hoursOff(hours) })
      const workers = [start(-7), start(0), start(9)]
      const total = async (): Promise<number> => {
        const { rows } = await sql<{ n: number }>`
          select coalesce(sum(loaded), 0)::int as n from loader_sources`.execute(own.db)
        return rows[0]!.n
      }
      await until(async () => (await total()) > 1200)
      const [killed] = workers.splice(1, 1)
      killed?.process.kill('SIGKILL')
      workers.push(start(3))
      if (kind === 'postgres') await sql`truncate loader_turns`.execute(own.db)
      else await forgetAll(url.href)
      const sofar = await total()
      await until(async () => (await total()) > sofar + 1500)
      await remote.set({ perSecond: 0 })
      const record = await remote.record()
      await until(async () => (await total()) >= record.reduce((sum, { count }) => sum + count, 0))
      await end(workers)
      for (const place of places) {
        assert.deepEqual(await idsOf(own, `s${place}`), upTo(record[place]?.count ?? 0))
      }
      for (const [i, { requests }] of (await remote.record()).entries()) {
        const { between } = leastGaps(requests.slice(before[i]))
        assert.ok(between >= 200, `source ${i}: ${between} ms`)
      }
    })
  }

  const away = [
    { what: 'Postgres', skip: false },
    { what: 'Redis', skip: withoutRedisServer() },
  ]
  for (const { what, skip } of away) {
    test(`goes on when ${what} is back, with each event once and the gap kept`, {
      skip,
    }, async () => {
      const own = await testDatabase()
      const cable = await openCable(own.url)
      const redis = what === 'Redis' ? await startRedis() : undefined
      const places = [0, 1, 2]
      writeSources(...places)
      await remote.set({ mood: 'well', count: 20, perSecond: 50, latencyMs: 20, payloadBytes: 10 })
      const before = (await remote.record()).map(({ requests }) => requests.length)
      const env = {
        LOADER_SOURCES: file,
        ...(redis && { LOADER_LOCKS: 'redis', REDIS_URL: `redis://127.0.0.1:${redis.port}` }),
      }
      const workers = [1, 2].map(() => startWorker('loader', cable.url, [], env))
      const counts = async () =>
        await Promise.all(places.map(async (n) => (await idsOf(own, `s${n}`)).length))
      await until(async () => Math.min(...(await counts())) > 100)
      for (let i = 0; i < 2; i++) {
        const sofar = await counts()
        await (redis ? redis.kill() : cable.pull())
        await sleep(1500)
        await (redis ? redis.start() : cable.plug())
        await until(async () => (await counts()).every((count, n) => count > sofar[n]! + 60))
      }
      await remote.set({ perSecond: 0 })
      const record = await remote.record()
      await until(async () => (await counts()).every((count, n) => count >= record[n]!.count))
      await end(workers)
      for (const place of places) {
        assert.deepEqual(await idsOf(own, `s${place}`), upTo(record[place]?.count ?? 0))
        const { between } = leastGaps((await remote.record())[place]!.requests.slice(before[place]))
        assert.ok(between >= 200, `source ${place}: ${between} ms`)
      }
    })
  }

  test('takes up a changed file and the table while it runs, and keeps the list when the file is bad', async () => {
    const own = await testDatabase()
    await remote.set({ mood: 'well', count: 5, perSecond: 0, latencyMs: 0 })
    writeSources(0)
    const worker = startWorker('loader', own.url, [], { LOADER_SOURCES: file, METRICS_PORT: '' })
    await until(async () => (await idsOf(own, 's0')).length === 5)
    writeSources(0, 1)
    await until(async () => (await idsOf(own, 's1')).length === 5)
    writeFileSync(file, '{"sources":[{"name":"s0","url":"http://me:hunter2@x/"}]}')
    const { name, ...definition } = describedAt(2)
    await addSource(own.db, name, definition)
    await until(async () => (await idsOf(own, 's2')).length === 5)
    await until(() =>
      /must not carry a name or password.*the list stays as it was/.test(worker.output()),
    )
    assert.doesNotMatch(worker.output(), /hunter2/)
    await remote.set({ count: 9 }, [0, 1])
    await until(async () => (await idsOf(own, 's1')).length === 9)
    const page = await scrape(worker)
    assert.match(page, /^loader_events_total\{source="s1"\} 9$/m)
    assert.match(page, /^loader_sources\{state="ok"\} 3$/m)
    await end([worker])
  })

  test('told to stop finishes what it has, and leaves no lock to wait for', async () => {
    const own = await testDatabase()
    await remote.set({ mood: 'well', count: 50, perSecond: 0, latencyMs: 1500 }, [0])
    writeFileSync(file, JSON.stringify([describedAt(0, { timeout_ms: 10_000 })]))
    const worker = startWorker('loader', own.url, [], { LOADER_SOURCES: file })
    const [before] = await remote.record()
    const asked = before?.requests.length ?? 0
    await until(async () => ((await remote.record())[0]?.requests.length ?? 0) > asked)
    await end([worker])
    assert.deepEqual(await idsOf(own, 's0'), upTo(50))
    const { rows } = await sql`select from loader_turns where leased_until is not null`.execute(
      own.db,
    )
    assert.equal(rows.length, 0)
  })

  test('--once ends when every source was asked and has no more, dead ones too', async () => {
    const own = await testDatabase()
    await remote.set({ mood: 'well', count: 2500, perSecond: 0, latencyMs: 0 }, [0])
    await remote.set({ mood: 'error' }, [1])
    writeSources(0, 1)
    const worker = startWorker('loader', own.url, ['--once'], { LOADER_SOURCES: file })
    assert.equal(await exited(worker), 0, worker.output())
    assert.equal((await idsOf(own, 's0')).length, 2500)
    const [, failing] = await readSourceStatus(own.db)
    assert.deepEqual([failing?.source, failing?.state], ['s1', 'failing'])
    assert.match(worker.output(), /"level":"warn".*source s1: it answers 500/)
  })

  test('idles without any source, and refuses a file that cannot be used', async () => {
    const own = await testDatabase()
    const worker = startWorker('loader', own.url, ['--once'])
    assert.equal(await exited(worker), 0, worker.output())
    writeFileSync(file, '[{"name":"x","url":"ftp://x","headers":{"Authorization":"secret"}}]')
    const bad = startWorker('loader', own.url, [], { LOADER_SOURCES: file })
    assert.equal(await exited(bad), 78)
    assert.match(bad.output(), /source x: url must begin with http:\/\//)
    assert.match(bad.output(), /headers\.Authorization must take its secret from the environment/)
    const without = startWorker('loader', own.url, [], { LOADER_LOCKS: 'redis' })
    assert.equal(await exited(without), 78)
    assert.match(without.output(), /REDIS_URL is not set/)
  })
})

async function forgetAll(url: string): Promise<void> {
  const { openRedis } = await import('../redis/open.ts')
  const { redis, ready, close } = openRedis({ url, name: 'test', commandTimeoutMs: 10_000 })
  await ready()
  await redis.flushdb()
  await close()
}
