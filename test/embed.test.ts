// Embedding: against a vendor of its own process, what it saw and when. Its limits are kept without a refusal, its faults
// cost no attempts, it is found back by itself, and what it says that cannot be used is not stored.

import assert from 'node:assert/strict'
import { after, beforeEach, describe, test } from 'node:test'
import { sql } from 'kysely'
import { setFlag } from '../db/flags.ts'
import { openJobs } from '../db/jobs.ts'
import type { Db } from '../db/schema.ts'
import { openVendorLimits } from '../db/vendorLimits.ts'
import type { ConfigError } from '../workers/config.ts'
import { readEmbedConfig } from '../workers/embed/config.ts'
import { embedPass } from '../workers/embed/embed.ts'
import { createVendor, type EmbedOutcome } from '../workers/embed/vendor.ts'
import { createSharedCircuit } from '../workers/sharedCircuit.ts'
import { testDatabase } from './database.ts'
import { changeItem, drain, dropItem, makeItem, worker } from './itemRuns.ts'
import { emptyJobs, everyJob, loseLife } from './jobRows.ts'
import { apiKey, model, startEmbedding } from './servers/embedding.ts'
import { endWorkers, exited, startWorker, until } from './worker.ts'

const fresh = await testDatabase()
const { db, url } = fresh
const jobs = openJobs(fresh.database)
const server = await startEmbedding()
after(async () => {
  await endWorkers()
  await jobs.close()
  await server.stop()
})
beforeEach(async () => {
  await emptyJobs(db)
  await sql`delete from items`.execute(db)
  await sql`delete from item_spaces`.execute(db)
  await sql`delete from job_audits`.execute(db)
  await sql`delete from job_errors`.execute(db)
  await sql`truncate vendor_limits, circuits, circuit_changes, flags, flag_changes`.execute(db)
  await server.reset()
})

type Built = { windowMs?: number; on?: Db; timeoutMs?: number; key?: string; concurrency?: number }

/** As one process has it. */
function build({
  windowMs = 60_000,
  on = db,
  timeoutMs = 5000,
  key = apiKey,
  concurrency = 16,
}: Built = {}) {
  const outcomes: EmbedOutcome['is'][] = []
  const circuit = createSharedCircuit({
    db: on,
    name: 'embedding',
    what: 'the embedding vendor',
    worker,
    probeHoldMs: 10_000,
    waitsMs: { first: 200, most: 400 },
  })
  const vendor = createVendor({ url: server.url, apiKey: key, model, withImages: true, timeoutMs })
  const limits = openVendorLimits(on, 'embedding', windowMs)
  const parts = { jobs, vendor, model, limits, circuit, concurrency, worker }
  const pass = embedPass({ db: on, ...parts, onCall: (is) => outcomes.push(is) })
  return { pass, circuit, vendor, outcomes }
}

const makeItems = async (count: number, title = 'Poster'): Promise<string[]> => {
  const ids: string[] = []
  for (let i = 0; i < count; i++) ids.push(await makeItem(db, { title: `${title} no ${i}` }))
  return ids
}
type State = { state: string; attempts: number; n: number }
const states = async (): Promise<State[]> => {
  const { rows } = await sql<State>`
    select state, retry_count as attempts, count(*)::int as n from ${everyJob}
    where name in ('embed', 'embed.dead') group by 1, 2 order by 1, 2`.execute(db)
  return rows
}
const embedded = async (): Promise<number> => {
  const { rows } = await sql<{ n: number }>`select count(*)::int as n from item_embeddings`.execute(
    db,
  )
  return rows[0]?.n ?? 0
}
/** What was postponed is due. */
const hurry = () =>
  sql`
  update pgboss.job set start_after = now() where name = 'embed' and start_after > now()`.execute(
    db,
  )
const errorsOf = async (): Promise<string> => {
  const { rows } = await sql<{ message: string }>`select message from job_errors`.execute(db)
  return rows.map(({ message }) => message).join('\n')
}
/** Passes until it is so; what was put off is not waited for. */
async function passUntil(pass: ReturnType<typeof build>['pass'], isSo: () => Promise<boolean>) {
  await until(async () => {
    await hurry()
    await pass(worker.dying, Number.POSITIVE_INFINITY)
    return await isSo()
  })
  await pass.finish?.()
}

describe('an item', () => {
  test('is embedded with its image, and brings jobs for the index and the lists', async () => {
    const image = 'https://img.example.com/a.png'
    const id = await makeItem(db, { title: 'Poster', description: 'Signed', image })
    await sql`delete from pgboss.job where name = 'search'`.execute(db)
    const { pass } = build()
    assert.equal(await drain(pass), 1)
    const [call] = await server.calls()
    assert.deepEqual([call?.text, call?.image], ['Poster\n\nSigned', image])
    const { rows } = await sql<{ dimensions: number; vector: Buffer; behind: boolean }>`
      select s.dimensions, e.vector, e.content_version >= i.version as behind
      from item_embeddings e join item_spaces s on s.id = e.space_id
      join items i on i.id = e.item_id where i.id = ${id}`.execute(db)
    assert.equal(rows[0]?.dimensions, 64)
    assert.equal(rows[0]?.vector.length, 256)
    assert.equal(rows[0]?.behind, false, 'the index has to hear of it')
    const { rows: brought } = await sql<{ name: string; type: string }>`
      select name, data->>'type' as type from pgboss.job where data->>'item_id' = ${id}
      order by name`.execute(db)
    assert.deepEqual(brought, [
      { name: 'search', type: 'IndexItem' },
      { name: 'similar', type: 'RecomputeSimilar' },
    ])
  })

  test('is not asked for again when it was, nor when it is gone, nor stored when it changed meanwhile', async () => {
    const [same, gone, changed] = (await makeItems(3)) as [string, string, string]
    await drain(build().pass)
    const before = (await server.calls()).length
    await sql`delete from vendor_limits`.execute(db)
    const again = { type: 'EmbedItem', version: '1' }
    await jobs.send(db, 'embed', [{ data: { ...again, item_id: same } }])
    await dropItem(db, gone)
    await jobs.send(db, 'embed', [{ data: { ...again, item_id: gone } }])
    await drain(build().pass)
    assert.equal((await server.calls()).length, before)
    await changeItem(db, changed, { title: 'First' })
    await server.mood({ latencyMs: 400 })
    const { pass } = build()
    const running = drain(pass)
    await until(async () => (await server.calls()).some(({ text }) => text === 'First'))
    await changeItem(db, changed, { title: 'Second' })
    await running
    await drain(build().pass)
    const { rows } = await sql<{ right: boolean }>`
      select e.content_version = i.content_version as right
      from items i join item_embeddings e on e.item_id = i.id where i.id = ${changed}`.execute(db)
    assert.deepEqual(rows, [{ right: true }])
    assert.ok((await server.calls()).some(({ text }) => text === 'Second'))
  })

  test('that the vendor refuses as such is given up at once, the others go on', async () => {
    await server.mood({ rejects: 'no 1' })
    await makeItems(3)
    await drain(build().pass)
    assert.equal(await embedded(), 2)
    assert.match(await errorsOf(), /the vendor answered 400 invalid_image_url Invalid content/)
    const { rows } = await sql`select from circuit_changes`.execute(db)
    assert.equal(rows.length, 0)
  })

  test('that fails alone while others go well spends its attempts, and the circuit stays closed', async () => {
    await server.mood({ failsAt: 'no 0' })
    await makeItems(1)
    const { pass, circuit } = build()
    for (let round = 0; round < 12; round++) {
      await makeItem(db, { title: `Fine ${round}` })
      await hurry()
      await drain(pass)
    }
    assert.equal(circuit.isOpen(), false)
    assert.equal(await embedded(), 12)
    assert.ok((await states()).some(({ state, attempts }) => state === 'created' && attempts === 0))
    assert.match(await errorsOf(), /the vendor answered 500 server_error/)
    const { rows } = await sql`select from job_audits where queue = 'embed'`.execute(db)
    assert.equal(rows.length, 1, 'it ended in the dead letter queue')
  })
})

describe('limits', () => {
  for (const kind of ['window', 'bucket'] as const) {
    test(`30 items a minute (of 5 s here): no 429, all embedded, two processes together (${kind})`, async () => {
      const windowMs = 5000
      const count = 60
      // Two minutes' worth at least: all at once would be refused.
      await server.mood({ limits: { requests: 40, tokens: 300, windowMs, kind }, latencyMs: 300 })
      await makeItems(count, 'Signed poster')
      const other = fresh.open()
      const passes = [build({ windowMs }).pass, build({ windowMs, on: other.db }).pass]
      await Promise.all(
        passes.map((pass) => passUntil(pass, async () => (await embedded()) === count)),
      )
      const calls = await server.calls()
      assert.deepEqual([...new Set(calls.map(({ status }) => status))], [200])
      assert.equal(calls.length, count)
      const spent = calls.reduce((sum, { tokens }) => sum + tokens, 0)
      assert.ok(spent > 300, `${spent} tokens`)
      assert.deepEqual(
        (await states()).map(({ state, attempts }) => [state, attempts]),
        [['completed', 0]],
      )
    })
  }

  test('a 429 is obeyed by all processes for as long as it says, and costs no attempt', async () => {
    await server.mood({ limitNext: [1.5] })
    await makeItems(6)
    const passes = [build().pass, build({ on: fresh.open().db }).pass]
    await Promise.all(passes.map((pass) => passUntil(pass, async () => (await embedded()) === 6)))
    const calls = (await server.calls()).sort((a, b) => a.at - b.at)
    const refused = calls.findIndex(({ status }) => status === 429)
    assert.equal(refused, 0)
    const pause = (calls[1]?.at ?? 0) - (calls[0]?.at ?? 0)
    assert.ok(pause >= 1490, `${pause} ms`)
    assert.deepEqual(
      (await states()).map(({ state, attempts }) => [state, attempts]),
      [['completed', 0]],
    )
  })
})

describe('a vendor that fails', () => {
  const faults = [
    ['fault', /500 server_error/],
    ['html', /503/],
    ['silence', /did not answer within 300 ms/],
    ['hang-up', /cannot be reached/],
    ['nonsense', /no JSON/],
    ['zeros', /not all 0/],
    ['huge', /larger than 1 MB/],
    ['redirect', /cannot be reached/],
  ] as const
  for (const [answer, why] of faults) {
    test(`(${answer}) opens its circuit and the flag goes off; no attempt is spent; it is found back by itself`, async () => {
      await server.mood({ answer })
      await makeItems(8)
      const { pass, circuit } = build({ timeoutMs: 300 })
      await passUntil(pass, async () => circuit.isOpen())
      assert.match(circuit.away() ?? '', why)
      const flag = () =>
        sql<{ enabled: boolean; is_auto: boolean }>`
          select enabled, is_auto from flags where name = 'embeddings'`.execute(db)
      assert.deepEqual((await flag()).rows, [{ enabled: false, is_auto: true }])
      // Tries, one at a time, and does not get through.
      const tried = (await server.calls()).length
      await passUntil(pass, async () => (await server.calls()).length > tried)
      assert.ok(
        (await states()).every(({ state, attempts }) => attempts === 0 && state !== 'failed'),
      )
      await server.mood({ answer: 'well' })
      await passUntil(pass, async () => (await embedded()) === 8)
      assert.equal(circuit.isOpen(), false)
      assert.deepEqual((await flag()).rows, [{ enabled: true, is_auto: true }])
      assert.deepEqual(await states(), [{ state: 'completed', attempts: 0, n: 8 }])
      const { rows: alerts } = await sql<{ type: string; n: number }>`
        select data->>'type' as type, count(*)::int as n from pgboss.job
        where name = 'alert' group by 1 order by 1`.execute(db)
      assert.deepEqual(alerts, [
        { type: 'NotifyFlagAutoDisabled', n: 1 },
        { type: 'NotifyFlagRecovered', n: 1 },
      ])
    })
  }

  test('of another size of vectors than its model had is one that fails', async () => {
    await makeItems(1)
    await drain(build().pass)
    await server.mood({ dimensions: 32 })
    await makeItems(4, 'Other')
    const { pass, circuit } = build()
    await passUntil(pass, async () => circuit.isOpen())
    assert.match(circuit.away() ?? '', /has 32 dimensions, those of stand-in-embed have 64/)
    assert.equal(await embedded(), 1)
    assert.ok((await states()).every(({ attempts }) => attempts === 0))
  })

  test('that takes no key, or is not paid, opens at once; the key is told nowhere', async () => {
    const wrong = 'sk-wrong-0123456789abcdef'
    await makeItems(2)
    const { pass, circuit } = build({ key: wrong, concurrency: 1 })
    await passUntil(pass, async () => circuit.isOpen())
    assert.match(circuit.away() ?? '', /401 invalid_api_key/)
    const { rows } = await sql<{ all: string }>`
      select string_agg(why, '') as all from circuit_changes`.execute(db)
    assert.ok(!`${circuit.away()} ${rows[0]?.all} ${await errorsOf()}`.includes(wrong))
    await sql`truncate circuits, flags`.execute(db)
    await server.mood({ answer: 'quota' })
    const unpaid = build({ concurrency: 1 })
    await passUntil(unpaid.pass, async () => unpaid.circuit.isOpen())
    assert.match(unpaid.circuit.away() ?? '', /insufficient_quota/)
    assert.equal(await embedded(), 0)
  })

  test('is not called at all while a person has the flag off', async () => {
    await makeItems(2)
    await setFlag(db, 'embeddings', false, { reason: 'too dear', by: 'ann' })
    const { pass, circuit } = build()
    await circuit.refresh()
    assert.deepEqual(await pass(worker.dying, 10), { waitMs: 1000 })
    assert.equal((await server.calls()).length, 0)
    await setFlag(db, 'embeddings', true, { reason: 'paid', by: 'ann' })
    await circuit.refresh()
    await drain(pass)
    assert.equal(await embedded(), 2)
  })
})

describe('the worker', () => {
  const env = {
    EMBEDDING_URL: server.url,
    EMBEDDING_API_KEY: apiKey,
    EMBEDDING_MODEL: model,
  }

  test('killed in the middle of a call loses nothing; stopped, it gives back what it has not begun', async () => {
    await server.mood({ latencyMs: 500 })
    await makeItems(12)
    const killed = startWorker('embed', url, ['--concurrency=4'], env)
    await until(async () => (await embedded()) >= 2)
    killed.process.kill('SIGKILL')
    await exited(killed)
    await loseLife(db)
    const heir = startWorker('embed', url, ['--concurrency=4'], env)
    await until(async () => (await embedded()) >= 6)
    heir.process.kill('SIGTERM')
    assert.equal(await exited(heir), 0, heir.output())
    assert.ok((await states()).every(({ state }) => state !== 'active'))
    await server.mood({ latencyMs: 5 })
    const last = startWorker('embed', url, [], env)
    await until(async () => (await embedded()) === 12)
    last.process.kill('SIGTERM')
    assert.equal(await exited(last), 0, last.output())
    assert.ok(!`${killed.output()}${heir.output()}${last.output()}`.includes(apiKey))
  })

  test('without a vendor has nothing to do', async () => {
    await makeItems(2)
    const idle = startWorker('embed', url, ['--once'])
    assert.equal(await exited(idle), 0, idle.output())
    assert.match(idle.output(), /EMBEDDING_URL is not set: items are not embedded/)
    assert.deepEqual(
      (await states()).map(({ state }) => state),
      ['completed'],
    )
  })

  test('does not start with settings that cannot be right', () => {
    const faults = (given: Record<string, string>): string[] => {
      try {
        readEmbedConfig({ DATABASE_URL: 'postgres://x', ...given })
        return []
      } catch (error) {
        return (error as ConfigError).faults
      }
    }
    assert.deepEqual(faults({}), [])
    const plain = 'http://vendor.example.com/v1'
    assert.deepEqual(faults({ EMBEDDING_URL: plain }), [
      'EMBEDDING_MODEL is not set, and EMBEDDING_URL is',
    ])
    const full = { EMBEDDING_URL: plain, EMBEDDING_MODEL: 'm', EMBEDDING_API_KEY: 'k' }
    assert.deepEqual(faults(full), [])
    assert.match(faults({ ...full, NODE_ENV: 'production' }).join(), /must begin with https/)
    assert.match(faults({ EMBEDDING_URL: 'vendor' }).join(), /EMBEDDING_URL must be a URL/)
  })
})
