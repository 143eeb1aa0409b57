// The scripts of docs/migrating.md as they stand there: what waits elsewhere is in our queue once, with its time and its
// priority, also when a run is repeated; and is gone from where it was. The old tables and keys are laid out
// here as their makers do.

import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { randomUUID } from 'node:crypto'
import {
  mkdtempSync,
  readFileSync,
  realpathSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, beforeEach, test } from 'node:test'
import { promisify } from 'node:util'
import { Redis } from 'ioredis'
import { sql } from 'kysely'
import { decodeEmailJob } from '../domain/emails.ts'
import { needs, testDatabase } from './database.ts'
import { mailJob } from './emailJobs.ts'
import { emptyJobs } from './jobRows.ts'

const root = join(import.meta.dirname, '..')
const page = readFileSync(join(root, 'docs/migrating.md'), 'utf8')
const scratch = mkdtempSync(join(tmpdir(), 'flotilla-migrating-'))
after(() => rmSync(scratch, { recursive: true }))
symlinkSync(realpathSync(join(root, 'node_modules')), join(scratch, 'node_modules'))
writeFileSync(join(scratch, 'package.json'), '{"type":"module"}')

const { url, db } = await testDatabase()
beforeEach(() => emptyJobs(db))

/** @returns what it says of each step */
async function run(name: string, env: Record<string, string>): Promise<string[]> {
  const script = page.split('```js\n').find((part) => part.startsWith(`// ${name}:`))
  assert.ok(script, `the page has ${name}`)
  writeFileSync(join(scratch, name), script.split('```')[0] ?? '')
  const all = { PATH: process.env.PATH ?? '', DATABASE_URL: url, ...env }
  const { stdout } = await promisify(execFile)(process.execPath, [join(scratch, name)], {
    env: all,
  })
  return stdout.trim().split('\n')
}

/** What waits here: its place, in how many seconds it is due, and that its worker can read it. */
async function waiting() {
  const { rows } = await sql<{ data: { recipient: string }; seconds: number; priority: number }>`
    select data, priority, round(extract(epoch from start_after - created_on) / 60)::int * 60 as seconds
    from pgboss.job where name = 'email' order by priority desc, start_after, created_on, data->>'recipient'`.execute(
    db,
  )
  for (const { data } of rows) decodeEmailJob(data)
  return rows.map(({ data, seconds, priority }) => [data.recipient, seconds, priority])
}

/** As another system has it: without what makes it a job of ours. */
function old(recipient: string) {
  const { template, payload, created_at } = mailJob()
  return { template, payload, created_at, recipient }
}

test('from Symfony Messenger', async () => {
  const from = await testDatabase({ empty: true })
  await sql`
    create table messenger_messages (id bigserial primary key, body text not null, headers text not null,
      queue_name varchar(190) not null, created_at timestamp not null, available_at timestamp not null,
      delivered_at timestamp)`.execute(from.db)
  const put = (recipient: string, minutes: number, queue = 'default', delivered = false) =>
    sql`insert into messenger_messages (body, headers, queue_name, created_at, available_at, delivered_at)
      values (${JSON.stringify(old(recipient))}, ${JSON.stringify({ type: 'App\\Message\\Mail' })}, ${queue},
        now() at time zone 'utc', now() at time zone 'utc' + make_interval(mins => ${minutes}),
        case when ${delivered} then now() at time zone 'utc' end)`.execute(from.db)
  await put('a@example.org', 0)
  await put('b@example.org', 10)
  await put('in-hand@example.org', 0, 'default', true)
  await put('failed@example.org', 0, 'failed')
  const copy = await sql<{
    all: string
  }>`select json_agg(m)::text as all from messenger_messages m`.execute(from.db)
  const env = { OLD_URL: from.url }
  assert.deepEqual(await run('from-messenger.js', env), ['2', '0'])
  const all = [
    ['a@example.org', 0, 0],
    ['b@example.org', 600, 0],
  ]
  assert.deepEqual(await waiting(), all)
  const { rows } = await sql<{
    n: number
  }>`select count(*)::int as n from messenger_messages`.execute(from.db)
  assert.equal(rows[0]?.n, 2)
  // As if it had been cut off before it deleted anything there.
  await sql`truncate messenger_messages`.execute(from.db)
  await sql`insert into messenger_messages
    select * from json_populate_recordset(null::messenger_messages, ${copy.rows[0]?.all}::json)`.execute(
    from.db,
  )
  assert.deepEqual(await run('from-messenger.js', env), ['2', '0'])
  assert.deepEqual(await waiting(), all)
})

test('from BullMQ', { skip: needs('redis') }, async () => {
  const oldRedis = process.env.TEST_REDIS_URL ?? ''
  const redis = new Redis(oldRedis)
  after(() => redis.quit())
  const queue = `mails-${randomUUID()}`
  const key = (rest: string) => `bull:${queue}:${rest}`
  const put = (id: string, fields: object = {}) =>
    redis.hset(key(id), {
      name: 'mail',
      data: JSON.stringify(old(`${id}@example.org`)),
      opts: '{}',
      ...fields,
    })
  const dueMs = Date.now() + 600_000
  const lay = async () => {
    for (const id of ['1', '2']) {
      await put(id)
      await redis.lpush(key('wait'), id)
    }
    await put('3', { priority: '5' })
    await redis.zadd(key('prioritized'), 5 * 2 ** 32 + 1, '3')
    await put('4', { delay: '600000' })
    await redis.zadd(key('delayed'), dueMs * 4096 + 4, '4')
    await put('5')
    await redis.lpush(key('active'), '5')
  }
  await lay()
  const env = { OLD_REDIS_URL: oldRedis, OLD_QUEUE: queue }
  const all = [
    ['1@example.org', 0, 0],
    ['2@example.org', 0, 0],
    ['4@example.org', 600, 0],
    ['3@example.org', 0, -5],
  ]
  assert.deepEqual(await run('from-bullmq.js', env), ['2', '1', '1', '0'])
  assert.deepEqual(await waiting(), all)
  assert.deepEqual((await redis.keys(key('*'))).sort(), [key('5'), key('active')])
  await redis.del(key('active'))
  await lay()
  await run('from-bullmq.js', env)
  assert.deepEqual(await waiting(), all)
  await redis.del(key('5'), key('active'))
})

test('from pg-boss alone', async () => {
  // A migrated database of ours has pg-boss's own tables.
  const from = await testDatabase()
  const lay = () =>
    sql`select send_jobs('push', ${[1, 2, 3].map((n) => `00000000-0000-4000-8000-00000000000${n}`)}::uuid[],
      ${[1, 2, 3].map((n) => JSON.stringify(old(`${n}@example.org`)))}::text[],
      array[0, 600000, 0], array[0, 0, 7], true)`.execute(from.db)
  await lay()
  const env = { OLD_URL: from.url, OLD_QUEUE: 'push' }
  const all = [
    ['3@example.org', 0, 7],
    ['1@example.org', 0, 0],
    ['2@example.org', 600, 0],
  ]
  assert.deepEqual(await run('from-pgboss.js', env), ['3', '0'])
  assert.deepEqual(await waiting(), all)
  await lay()
  assert.deepEqual(await run('from-pgboss.js', env), ['3', '0'])
  assert.deepEqual(await waiting(), all)
})
