// What people and sources write, and how the loader reads it: descriptions of sources, replies, lines, files; the memory
// that replies share; and fleet loader:* as people use it.

import assert from 'node:assert/strict'
import { appendFileSync, mkdtempSync, renameSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, beforeEach, describe, test } from 'node:test'
import fc from 'fast-check'
import { sql } from 'kysely'
import { execute } from '../cli/main.ts'
import { openEventStore } from '../db/loader.ts'
import { noteSources } from '../db/loaderSources.ts'
import {
  createGatherer,
  type Events,
  failureRestMs,
  idleRestMs,
  type Source,
  SourceFault,
} from '../domain/loader.ts'
import { fillIn, parseSources, readSource } from '../domain/sources.ts'
import { createBudget } from '../workers/loader/budget.ts'
import { openFileFetcher } from '../workers/loader/file.ts'
import { readLines, readReply } from '../workers/loader/page.ts'
import { testDatabase } from './database.ts'

const folder = mkdtempSync(join(tmpdir(), 'flotilla-sources-'))
after(() => rmSync(folder, { recursive: true }))

const signal = new AbortController().signal
const toPairs = ({ ids, body, spans }: Events): [string, string][] =>
  Array.from(ids, (id, i) => [
    String(id),
    Buffer.from(body).toString('utf8', spans[2 * i], spans[2 * i + 1]),
  ])
/** As a description has it. */
const variable = (name: string) => `\${env:${name}}`

describe('a description of a source', () => {
  test('has its defaults, and all its faults are named at once, without a secret', () => {
    const [source] = parseSources('[{"name":"shop","url":"https://shop.example/events"}]')
    assert.deepEqual(
      [source?.type, source?.afterParam, source?.limitParam, source?.timeoutMs, source?.overlap],
      ['http', 'after_id', 'limit', 10_000, 0],
    )
    const bad = {
      name: 'no good',
      url: 'http://me:hunter2@x/',
      headers: { Authorization: 'Bearer hunter2', 'X-Plain': 'fine', 'X-Odd': `\${oops}` },
      timeout_ms: 1,
      color: 'red',
      overlap: -1,
    }
    assert.throws(
      () =>
        parseSources(JSON.stringify({ sources: [bad, { name: 'file', type: 'file', url: 'x' }] })),
      ({ message }: Error) => {
        for (const part of [
          /name must be/,
          /url must not carry a name or password/,
          /headers\.Authorization must take its secret from the environment/,
          /headers\.X-Odd must name a variable/,
          /timeout_ms must be a whole number from 100/,
          /"color" is unknown/,
          /overlap must be/,
          /source file: url must be an absolute path/,
        ]) {
          assert.match(message, part)
        }
        assert.doesNotMatch(message, /hunter2/)
        return true
      },
    )
    assert.throws(
      () => parseSources('{"sources":[{"secret":hunter2}]}'),
      /^SourcesFault: is not JSON/,
    )
    assert.throws(() => parseSources('3'), /must be a list of sources/)
  })

  test('takes secrets from the environment', () => {
    const value = `Basic ${variable('A')}:${variable('B')}`
    assert.equal(
      fillIn(value, (name) => name.toLowerCase()),
      'Basic a:b',
    )
    assert.throws(() => fillIn(value, () => undefined), /variable A is not set/)
  })
})

describe('a reply', () => {
  test('gives ids exactly and payloads byte for byte, whatever JSON they are', () => {
    fc.assert(
      fc.property(
        fc.array(fc.tuple(fc.bigInt(1n, 2n ** 63n - 1n), fc.json()), { maxLength: 20 }),
        fc.constantFrom('', ' ', '\n\t'),
        fc.boolean(),
        (events, blank, isBare) => {
          const texts = events.map(
            ([id, payload]) =>
              `{${blank}"other":[{"id":1}],${blank}"id"${blank}:${blank}${id},"payload":${blank}${payload}${blank}}`,
          )
          const list = `[${blank}${texts.join(`${blank},`)}${blank}]`
          const text = isBare ? list : `{"a":{"events":[]},"events":${list},"last_id":77}${blank}`
          const { events: read, newestId } = readReply(Buffer.from(text))
          assert.deepEqual(
            toPairs(read),
            events.map(([id, payload]) => [String(id), payload]),
          )
          assert.equal(newestId, isBare ? undefined : 77n)
        },
      ),
    )
  })

  test('is JSON exactly where JSON.parse says so', () => {
    fc.assert(
      fc.property(
        fc.json({ maxDepth: 3 }),
        fc.nat(200),
        fc.constantFrom('', ',', '"', '}', ']', '0', '-', '.', 'e', '\\', '\u0001', 't', ' ', ':'),
        (json, at, char) => {
          const place = at % (json.length + 1)
          const payload = json.slice(0, place) + char + json.slice(place + 1)
          const text = `[{"id":1,"payload":${payload}}]`
          let isGood = true
          try {
            JSON.parse(payload)
          } catch {
            isGood = false
          }
          const read = () => readReply(Buffer.from(text))
          if (isGood) assert.equal(toPairs(read().events)[0]?.[1], payload.trim())
          else assert.throws(read, SourceFault)
        },
      ),
      { numRuns: 2000 },
    )
  })

  for (const [text, says] of [
    ['', /ends after 0 bytes/],
    ['{"events":[{"id":1,"payload":{}}', /ends after 32 bytes/],
    ['{"items":[]}', /no "events"/],
    ['{"events":{}}', /"events" must be a list/],
    ['[1]', /event 1 must be an object/],
    ['[{"payload":1}]', /event 1 has no "id"/],
    ['[{"id":1,"id":2,"payload":1}]', /event 1 has "id" twice/],
    ['[{"id":0,"payload":1}]', /from 1 to 9223372036854775807, and is 0/],
    ['[{"id":1e3,"payload":1}]', /positive integer, and is 1e3/],
    ['[{"id":01,"payload":1}]', /from 1 to 9223372036854775807, and is 0/],
    ['[{"id":1,"payload":1}] x', /nothing may follow/],
    [`[{"id":1,"payload":${'['.repeat(600)}${']'.repeat(600)}}]`, /nested deeper than 500/],
    ['[{"id":1,"payload":"\ud800"}]'.replace('\ud800', '\u00ff'), /^$/],
  ] as const) {
    test(`is refused with what is wrong: ${text.slice(0, 40)}`, () => {
      const bytes = says.source === '^$' ? Buffer.from(text, 'latin1') : Buffer.from(text)
      const right = says.source === '^$' ? /not UTF-8/ : says
      assert.throws(() => readReply(bytes), right)
    })
  }

  test('of lines may have empty ones, and an event must end its line', () => {
    const lines = '{"id":1,"payload":"a"}\r\n\n {"id":2,"payload":[]} \n{"id":3,"payload":{}}'
    assert.deepEqual(toPairs(readLines(Buffer.from(lines))), [
      ['1', '"a"'],
      ['2', '[]'],
      ['3', '{}'],
    ])
    assert.throws(
      () => readLines(Buffer.from('{"id":1,"payload":1}{"id":2,"payload":1}')),
      /end its line/,
    )
  })
})

describe('a file', () => {
  const path = join(folder, 'events.ndjson')
  const { source } = readSource({ name: 'f', type: 'file', url: path })
  const lines = (from: number, to: number) =>
    Array.from(
      { length: to - from + 1 },
      (_, i) => `{"id":${from + i},"payload":"${'x'.repeat(90)}"}\n`,
    ).join('')
  const fetchFrom =
    (fetcher = openFileFetcher({ bytesMax: 1_000_000 })) =>
    async (afterId: bigint, limit = 1000) => {
      const page = await fetcher.fetch(source as Source, afterId, limit, { signal, sending() {} })
      return toPairs(page.events).map(([id]) => Number(id))
    }

  test('is read where it was left, past what is known, and a line that is being written waits', async () => {
    writeFileSync(path, lines(1, 5000))
    const next = fetchFrom()
    const first = await next(0n)
    assert.deepEqual([first[0], first.at(-1), first.length], [1, 1000, 1000])
    assert.equal((await next(1000n)).at(-1), 2000)
    assert.equal((await next(1000n)).at(-1), 2000, 'what was not stored comes again')
    assert.deepEqual(await fetchFrom()(4997n), [4998, 4999, 5000])
    assert.deepEqual(await next(5000n), [])
    appendFileSync(path, '{"id":5001,"payl')
    assert.deepEqual(await next(5000n), [])
    appendFileSync(path, 'oad":1}\n')
    assert.deepEqual(await next(5000n), [5001])
  })

  test('that was replaced is read from its begin, and one that goes back is refused', async () => {
    const next = fetchFrom()
    writeFileSync(path, lines(1, 3))
    assert.deepEqual(await next(0n), [1, 2, 3])
    const other = join(folder, 'other')
    writeFileSync(other, lines(2, 6))
    renameSync(other, path)
    assert.deepEqual(await next(3n), [4, 5, 6])
    appendFileSync(path, lines(5, 5))
    await assert.rejects(next(6n), /id 5 comes after 6/)
    await assert.rejects(next(6n), /id 5 comes after 6/)
    writeFileSync(path, '{"id":1,"payload":}\n')
    await assert.rejects(next(0n), /from byte 0 of the file: .*not JSON/)
  })
})

test('replies share memory: one that goes beyond waits, the oldest never does', async () => {
  const budget = createBudget(100)
  const [old, young] = [budget.share(), budget.share()]
  assert.equal(old.take(60), undefined)
  const waiting = young.take(60)
  assert.ok(waiting)
  assert.equal(old.take(500), undefined, 'the oldest goes on')
  old.free()
  await waiting
  assert.equal(young.take(1000), undefined, 'it is the oldest now')
  young.free()
  young.free()
  assert.equal(budget.taken, 0)
})

test('rests grow to a minute, heed what the source asks, and shrink with its events', () => {
  assert.deepEqual(
    [1, 2, 3, 7, 50].map((n) => failureRestMs(n, 1)),
    [1000, 2000, 4000, 60_000, 60_000],
  )
  assert.equal(failureRestMs(1, 0, 90_000), 90_000)
  assert.deepEqual(
    [0, 5000, 600_000].map((ms) => idleRestMs(ms, 200, 1000)),
    [200, 500, 1000],
  )
})

describe('fleet loader:*', () => {
  let fresh: Awaited<ReturnType<typeof testDatabase>>
  beforeEach(async () => {
    fresh ??= await testDatabase()
    await sql`truncate loader_sources, loader_turns, loaded_events`.execute(fresh.db)
  })

  async function run(words: string[], answers?: string[]) {
    const [out, err]: [string[], string[]] = [[], []]
    const terminal = answers && {
      ask: async (question: string) => {
        err.push(question)
        return answers.shift()
      },
      show() {},
      close() {},
    }
    const code = await execute('fleet', {
      program: 'fleet',
      env: { DATABASE_URL: fresh.url },
      argv: words,
      say: (line) => out.push(line),
      warn: (line) => err.push(line),
      input: async () => '',
      columns: undefined,
      terminal,
      onStop() {},
      become: () => assert.fail('becomes nothing'),
    })
    return { code, out: out.join('\n'), err: err.join('\n') }
  }
  const url = 'https://shop.example/events'

  async function load(name: string, count: number): Promise<void> {
    const store = openEventStore(fresh.database)
    await noteSources(fresh.db, [name])
    const cursor = await store.lastKnownId(name, 'host:1')
    const gathered = createGatherer(Buffer.from('1'))
    for (let i = 1; i <= count; i++) gathered.add(BigInt(i), 0, 1)
    const page = { events: gathered.events(), more: false, newestId: 12n }
    await store.append(readSource({ name, url }).source as Source, cursor!, [page])
  }

  test('add, status, pause, resume, remove: each says what it did and what is right', async () => {
    assert.equal((await run(['loader:status'])).code, 3)
    const secret = await run(['loader:add', 'shop', url, '--header', 'Authorization: hunter2'])
    assert.equal(secret.code, 2)
    assert.match(secret.err, /must take its secret from the environment/)
    assert.doesNotMatch(secret.err, /hunter2/)
    const header = `Authorization: Bearer ${variable('SHOP')}`
    const words = ['loader:add', 'shop', url, '--header', header, '--set', 'overlap=50']
    assert.match((await run(words)).out, /shop is added/)
    assert.match((await run(words)).out, /shop is changed: it goes on from its cursor/)
    await load('shop', 10)
    const { out, code } = await run(['loader:status'])
    assert.equal(code, 0)
    assert.match(
      out,
      /^Source +State +Cursor +Lag +Loaded +Rate\/s +Owner +Last error\nshop +ok +10 +2 events +10 +\d+\.\d +host:1$/,
    )
    const [json] = JSON.parse((await run(['loader:status', 'shop', '--json'])).out)
    assert.deepEqual(
      [json.source, json.state, json.last_id, json.lag_events, json.from],
      ['shop', 'ok', '10', 2, 'table'],
    )
    assert.doesNotMatch(JSON.stringify(json), /SHOP/)
    assert.match((await run(['loader:pause', 'shop'])).out, /is paused/)
    assert.match((await run(['loader:pause', 'shop'])).out, /was paused already/)
    assert.match((await run(['loader:status'])).out, /shop +paused/)
    assert.match((await run(['loader:resume', 'shop'])).out, /goes on from its cursor/)
    assert.equal((await run(['loader:pause', 'nobody'])).code, 3)
    assert.equal((await run(['loader:status', 'nobody'])).code, 3)
    assert.match((await run(['loader:remove', 'shop'])).out, /shop is removed/)
    assert.equal((await run(['loader:remove', 'shop'])).code, 3)
    assert.match((await run(['loader:status'])).out, /shop +gone/)
  })

  test('reset asks before it deletes, and wants --force where nobody can be asked', async () => {
    await load('shop', 10)
    const count = async () =>
      (await sql<{ n: number }>`select count(*)::int as n from loaded_events`.execute(fresh.db))
        .rows[0]?.n
    assert.equal((await run(['loader:reset', 'shop', '--to', '4'])).code, 2)
    assert.equal((await run(['loader:reset', 'shop', '--to', '4'], ['no'])).code, 1)
    assert.equal(await count(), 10)
    const { out } = await run(['loader:reset', 'shop', '--to', '4'], ['yes'])
    assert.match(out, /goes on after 4; 6 events were deleted/)
    assert.equal(await count(), 4)
    assert.match((await run(['loader:reset', 'shop', '--force'])).out, /after 0; 4 events/)
    assert.equal((await run(['loader:reset', 'nobody', '--force'])).code, 3)
    assert.equal((await run(['loader:reset', 'shop', '--to', '1.5'])).code, 2)
  })
})
