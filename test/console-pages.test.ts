// What the console shows and changes, with a fleet that has something of everything: strangers' words as text, secrets not
// at all, queues, sources and flags switched, workers and rooms as they are.

import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { after, before, describe, test } from 'node:test'
import { sql } from 'kysely'
import { openCircuit } from '../db/circuits.ts'
import { readFlags } from '../db/flags.ts'
import { readSourceStatus } from '../db/loaderSources.ts'
import { findJobs } from '../db/operate.ts'
import { readPaused } from '../db/pauses.ts'
import { reportWorker } from '../db/registry.ts'
import { openRedis } from '../redis/open.ts'
import { escapeHtml, html } from '../workers/http/console/html.ts'
import { type Api, openApi } from './api.ts'
import { follow, type Visitor, visitor } from './consoles.ts'
import { needs, testDatabase } from './database.ts'
import { bury } from './failedJobs.ts'
import { makeMatch } from './waitingrooms.ts'

export const attack = `"><script>alert(1)</script><img src=x onerror=alert(2)>'&\u202etxt.exe`

const pages = [
  '',
  'failures',
  'queues',
  'queues/email',
  'queues/email?state=failed',
  'workers',
  'sources',
  'rooms',
  'flags',
  'history',
  'jobs',
]

describe('the pages of the console', () => {
  let api: Api
  let who: Visitor
  before(async () => {
    const { database } = await testDatabase()
    api = await openApi(database)
    who = visitor(api.app)
    await who.signIn()
  })
  after(() => api.close())

  const textOf = async (path: string) => {
    const { status, text } = await who.get(path)
    assert.equal(status, 200, path)
    return text
  }

  test('are there when there is nothing to show', async () => {
    for (const path of pages) {
      const text = await textOf(path)
      assert.match(text, /<h1>[^<]+<\/h1>/)
      assert.match(text, /<html lang="en">/)
    }
    assert.match(await textOf(''), /No worker is alive/)
    assert.match(await textOf('failures'), /No job has failed/)
    assert.match(await textOf('sources'), /There is no source/)
  })

  test('escape whatever stands between the pieces of a template', () => {
    assert.equal(escapeHtml(`<&>"'`), '&lt;&amp;&gt;&quot;&#39;')
    assert.equal(escapeHtml('a\u202eb\u0000c\u2066d\ud800'), 'a\ufffdb\ufffdc\ufffdd\ufffd')
    const inner = html`<b>${'<i>'}</b>`
    assert.equal(
      html`${inner}${[inner, null, false, 0]}${undefined}`.html,
      '<b>&lt;i&gt;</b><b>&lt;i&gt;</b>0',
    )
  })

  test('show what strangers said as text, wherever it comes from', async () => {
    const [dead] = await bury(api.db, 'email', 1, {
      data: { type: attack, template: attack, [attack]: attack, list: [attack] },
      error: attack,
    })
    await sql`insert into pgboss.job (name, data) values ('email', ${JSON.stringify({ type: attack })}::jsonb)`.execute(
      api.db,
    )
    await sql`insert into loader_sources (name, definition, last_error, failures, failed_at) values (${attack}, '{}', ${attack}, 1, now())`.execute(
      api.db,
    )
    await reportWorker(api.db, {
      id: randomUUID(),
      name: attack,
      host: attack,
      pid: 1,
      version: attack,
      upSeconds: 60,
      doing: { queues: { [attack]: { active: 1, handled: 2, perSecond: 3 } }, rssBytes: 2 ** 26 },
    })
    const matchId = await makeMatch(api.db)
    await sql`update events set name = ${attack} where id = ${matchId}`.execute(api.db)
    await sql`update waiting_rooms set reason = ${attack} where match_id = ${matchId}`.execute(
      api.db,
    )
    await openCircuit(api.db, attack, { why: attack, waitMs: () => 60_000, wasProbe: false })
    await who.post('flags/do', { flag: 'embeddings', do: 'off', reason: attack })
    const search = encodeURIComponent(attack)
    const all = [
      ...pages,
      `failures?text=${search}`,
      `failures?did=${search}`,
      `jobs/${dead?.dead_id}`,
      `jobs?id=${search}`,
      `login?to=${search}`,
    ]
    let shown = 0
    for (const path of all) {
      const { text } = await who.get(path)
      assert.doesNotMatch(text, /<script>alert|<img|onerror=alert\(2\)>'/, path)
      assert.ok(!text.includes('\u202e'), path)
      shown += text.split('&lt;script&gt;alert(1)&lt;/script&gt;').length - 1
    }
    assert.ok(shown > 15, `${shown} times as text`)
  })

  test('show no secret and nobody’s data, of payloads, errors and stacks', async () => {
    const secrets = [
      'hunter2secret',
      'sk_live_abcdefghijklmnop',
      'ann@private.example',
      '4242424242424242',
      'eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhbm4ifQ.c2ln',
    ]
    const error = `cannot reach postgres://admin:${secrets[0]}@db/x for ${secrets[2]}, key ${secrets[1]}, card ${secrets[3]}, Bearer ${secrets[4]}`
    const [dead] = await bury(api.db, 'push', 1, {
      error,
      data: {
        type: 'push',
        password: secrets[0],
        recipient: secrets[2],
        nested: [{ api_key: secrets[1], token: secrets[4] }],
        note: `paid with ${secrets[3]}, ask ${secrets[2]}`,
        traceparent: `00-${'ab'.repeat(16)}-${'cd'.repeat(8)}-01`,
      },
    })
    await sql`insert into job_errors (job_id, queue, attempt, kind, message, stack) values (${dead?.id}, 'push', 1, 'failed', ${error}, ${error})`.execute(
      api.db,
    )
    await sql`insert into loader_sources (name, definition, last_error, failures, failed_at) values ('shop', '{}', ${error}, 3, now())`.execute(
      api.db,
    )
    await who.get(`failures?text=${encodeURIComponent('cannot reach')}`)
    for (const path of [...pages, 'queues/push?state=failed', `jobs/${dead?.id}`]) {
      const text = await textOf(path)
      for (const secret of secrets) assert.ok(!text.includes(secret), `${secret} in ${path}`)
    }
    const job = await textOf(`jobs/${dead?.id}`)
    assert.match(job, /password&quot;: &quot;\*\*\*&quot;/)
    assert.match(job, /cannot reach postgres:\/\/\*\*\*@db/)
    assert.match(job, new RegExp(`<code>${'ab'.repeat(16)}</code>`))
    assert.match(job, /SASO-INFRA-9100/)
    assert.match(job, /Failed attempts/)
  })

  test('find a job by its ids and their beginnings', async () => {
    const [one] = await bury(api.db, 'inbox', 1)
    assert.ok(one)
    assert.equal((await who.get(`jobs?id=${one.id}`)).to, `/console/jobs/${one.id}`)
    for (const id of [one.id, one.dead_id, one.id.slice(0, 8)]) {
      assert.ok((await textOf(`jobs/${id}`)).includes(one.dead_id))
    }
    assert.equal((await who.get('jobs?id=xyz')).status, 400)
    assert.equal((await who.get(`jobs/${randomUUID()}`)).status, 404)
  })

  test('pause and resume a queue, and say when it was so already', async () => {
    assert.match(await textOf('queues'), /Pause<span class="quiet"> email/)
    const does = (what: string) => who.post('queues/do', { queue: 'email', do: what })
    assert.match((await follow(who, await does('pause'))).text, /Email is paused: what is in hand/)
    assert.ok((await readPaused(api.db)).has('email'))
    assert.match((await follow(who, await does('pause'))).text, /Email was paused already/)
    assert.match((await follow(who, await does('resume'))).text, /Email is resumed/)
    assert.match((await follow(who, await does('resume'))).text, /Email was not paused/)
    assert.equal((await readPaused(api.db)).size, 0)
  })

  test('pause and resume a source by its name, whatever that is', async () => {
    const stateOf = async () => (await readSourceStatus(api.db, [attack]))[0]?.state
    const does = (what: string) => who.post('sources/do', { source: attack, do: what })
    assert.equal(await stateOf(), 'failing')
    assert.equal((await does('pause')).status, 303)
    assert.equal(await stateOf(), 'paused')
    await does('resume')
    assert.equal(await stateOf(), 'failing')
    const unknown = await who.post('sources/do', { source: 'nobody', do: 'pause' })
    assert.equal(unknown.status, 404)
    assert.match(await textOf('history'), /There is no source|there is no source/)
    const odd = await who.post('sources/do', { source: 'no\0body', do: 'pause' })
    assert.equal(odd.status, 400)
    assert.match(odd.text, /Source must have no NUL/)
  })

  test('switch a flag, with a reason and who it was', async () => {
    const flag = async () => (await readFlags(api.db)).find(({ name }) => name === 'search_index')
    const does = (what: string, reason: string) =>
      who.post('flags/do', { flag: 'search_index', do: what, reason })
    assert.equal((await does('off', '')).status, 400)
    assert.equal((await flag())?.enabled, true)
    await does('off', 'the vendor asked us; mail ann@private.example')
    const off = await flag()
    assert.deepEqual(
      [off?.enabled, off?.changed_by, off?.reason],
      [false, 'console 127.0.0.1', 'the vendor asked us; mail ***@***'],
    )
    assert.match(await textOf('flags'), /the vendor asked us/)
    await does('on', 'it is back')
    assert.equal((await flag())?.enabled, true)
    assert.equal((await who.post('flags/do', { flag: 'nope', do: 'on', reason: 'x' })).status, 404)
  })

  test('cancel a job that waits, and nothing that has failed', async () => {
    const id = randomUUID()
    await api.jobs.send(api.db, 'email', [{ id, data: { type: 'email' }, delayMs: 60_000 }])
    assert.match(await textOf(`jobs/${id}`), /Cancel this job/)
    const seen = await who.post('jobs/do', { id, queue: 'email', do: 'cancel' })
    assert.match((await follow(who, seen)).text, /Cancelled\./)
    assert.equal((await findJobs(api.db, id))[0]?.raw_state, 'cancelled')
    assert.doesNotMatch(await textOf(`jobs/${id}`), /Cancel this job/)
  })

  test('tell of a worker that died, and of one that is alive', async () => {
    const self = { name: 'email', host: 'h', pid: 7, version: null, upSeconds: 5, doing: {} }
    const [alive, dead] = [randomUUID(), randomUUID()]
    await reportWorker(api.db, { ...self, id: alive })
    await reportWorker(api.db, { ...self, id: dead })
    await sql`update workers set seen_at = seen_at - interval '1 minute' where id = ${dead}`.execute(
      api.db,
    )
    // Figures are asked for once in two seconds; another process of the console asks for itself.
    const other = await openApi({ db: api.db } as never)
    const too = visitor(other.app)
    too.cookie = who.cookie
    const { text } = await too.get('workers')
    const row = (id: string) => text.split('<tr').find((one) => one.includes(id)) ?? ''
    assert.match(row(alive), /alive/)
    assert.match(row(dead), /died/)
    await other.app.close()
  })

  test('have the length of a queue from Redis, where it is kept', {
    skip: needs('redis'),
  }, async () => {
    const matchId = await makeMatch(api.db)
    await sql`update waiting_rooms set phase = 'open', status = 'active' where match_id = ${matchId}`.execute(
      api.db,
    )
    const { redis, ready, close } = openRedis({ url: process.env.TEST_REDIS_URL!, name: 'test' })
    await ready()
    await redis.zadd(
      `queue:${matchId}`,
      ...Array.from({ length: 4321 }, (_, n) => [n, `u${n}`]).flat(),
    )
    const roomOf = async (url: string) => {
      const other = await openApi({ db: api.db } as never, {}, { REDIS_URL: url })
      const too = visitor(other.app)
      too.cookie = who.cookie
      const { text } = await too.get('rooms')
      await other.app.close()
      return {
        text,
        row: text.split('<tr').find((row) => row.includes(`data-key="${matchId}"`)) ?? '',
      }
    }
    const there = await roomOf(process.env.TEST_REDIS_URL!)
    assert.match(there.row, />4,321</)
    assert.match(there.row, />8 min</)
    const away = await roomOf('redis://127.0.0.1:1')
    assert.match(away.text, /Redis does not answer/)
    assert.doesNotMatch(away.row, /4,321/)
    await redis.del(`queue:${matchId}`)
    await close()
  })

  test('give the live part alone to who asks for it', async () => {
    for (const path of pages) {
      const { text, status } = await who.get(path, { 'x-console-part': 'live' })
      assert.equal(status, 200)
      assert.doesNotMatch(text, /<html|<main|<header/)
    }
  })

  test('have tables with captions, heads with scope, labels for what is filled in', async () => {
    for (const path of pages) {
      const text = await textOf(path)
      const many = (pattern: RegExp) => [...text.matchAll(pattern)].length
      assert.equal(many(/<table/g), many(/<caption/g), path)
      assert.equal(many(/<th\s/g), many(/<th scope="(col|row)"/g), path)
      assert.equal(many(/<h1/g), 1, path)
      assert.equal(many(/<form[^>]*method="post"/g), many(/name="csrf"/g), path)
      assert.equal(many(/<svg/g), many(/<svg class="\w+" role="img" aria-label="/g), path)
    }
  })
})
