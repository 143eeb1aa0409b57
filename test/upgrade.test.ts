// An upgrade: the schema only grows, what was waiting before it is done after it, and the workers that run go on while it
// happens. The workers are processes; those of the release before are started from the code of its commit.

import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { randomUUID } from 'node:crypto'
import { cpSync, globSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { basename, join } from 'node:path'
import { after, describe, test } from 'node:test'
import { sql } from 'kysely'
import { auditLedger } from '../db/ledger.ts'
import { migrate } from '../db/migrate.ts'
import { slotOf } from '../db/outbox.ts'
import type { Db } from '../db/schema.ts'
import { newKey } from './api.ts'
import { type TestDatabase, testDatabase } from './database.ts'
import { mailJob } from './emailJobs.ts'
import { completed, held, order } from './events.ts'
import { faultsOf, readShape } from './growth.ts'
import { loseLife } from './jobRows.ts'
import { releaseBefore } from './release.ts'
import { endWorkers, exited, startCommand, until, type WorkerProcess } from './worker.ts'

const root = join(import.meta.dirname, '..')
const scratch = mkdtempSync(join(tmpdir(), 'flotilla-upgrade-'))
after(async () => {
  await endWorkers()
  rmSync(scratch, { recursive: true })
})

const migrations = globSync('db/migrations/*.sql', { cwd: root }).sort()
const newFolder = () => mkdtempSync(join(scratch, 'of-'))
const secret = 'sixteen characters and more'

/** Workers of the code in `tree`, each on its own settings, mails as files in `data`. */
function start(tree: string, url: string, data: string, names: string[]): WorkerProcess[] {
  return names.map((name) =>
    startCommand(process.execPath, [join(tree, 'workers', name, 'main.ts')], {
      PATH: process.env.PATH ?? '',
      DATABASE_URL: url,
      FLEET_DATA_DIR: data,
      METRICS_PORT: '0',
      EXPIRY_INTERVAL: '1',
      HTTP_PORT: '0',
      INTERNAL_AUTH_SECRET: secret,
    }),
  )
}

async function stop(workers: WorkerProcess[]): Promise<void> {
  for (const worker of workers) worker.process.kill('SIGTERM')
  for (const worker of workers) assert.equal(await exited(worker), 0, worker.output())
}

/** To whom mails went. */
const mailed = (data: string): string[] =>
  globSync('mail/*.eml', { cwd: data })
    .map((path) => /^To: (\S+)/m.exec(readFileSync(join(data, path), 'utf8'))?.[1] ?? path)
    .sort()

const states = async (db: Db) => {
  const { rows } = await sql<{ state: string; count: number }>`
    select state, count(*)::int from reservations group by 1`.execute(db)
  return Object.fromEntries(rows.map(({ state, count }) => [state, count]))
}

describe('what was written under each earlier schema', () => {
  const eventId = randomUUID()

  /** As the code of that time wrote it: a hold that is over, an event for a mail, a mail that waits and one in hand. */
  async function write(db: Db, number: number): Promise<void> {
    const user = `user-${number}`
    await sql`insert into users (id, email) values (${user}, ${`${user}@example.org`})`.execute(db)
    const reservation = randomUUID()
    await sql`
      insert into reservations (id, event_id, user_id, section_no, quantity, seat_nos, created_at, expires_at)
      values (${reservation}, ${eventId}, ${user}, 1, 1, array[${number}::int],
        clock_timestamp() - interval '1 hour', clock_timestamp() - interval '45 min')`.execute(db)
    await sql`update seats set state = 'held', reservation_id = ${reservation}
      where event_id = ${eventId} and seat_no = ${number}`.execute(db)
    const told = [
      held(reservation),
      { ...completed(randomUUID(), 1), data: { ...order, user_id: user } },
    ]
    for (const { messageId, type, subject, sequence, data } of told) {
      await sql`insert into outbox (slot, message_id, type, subject, sequence, data)
        values (${slotOf(subject)}, ${messageId}, ${type}, ${subject}, ${sequence},
          ${JSON.stringify(data)})`.execute(db)
    }
    for (const id of [randomUUID(), randomUUID()]) {
      const mail = { ...mailJob(), job_id: id, recipient: `${user}@example.org` }
      if (number < 4) {
        await sql`insert into pgboss.job (id, name, data, retry_limit, dead_letter, heartbeat_seconds)
          select ${id}, name, ${JSON.stringify(mail)}, retry_limit, dead_letter, heartbeat_seconds
          from pgboss.queue where name = 'email'`.execute(db)
      } else {
        await sql`select send_jobs('email', array[${id}::uuid], array[${JSON.stringify(mail)}],
          array[0], array[0], true)`.execute(db)
      }
    }
    const claims = number < 3 ? [] : [sql`claim_jobs('email', 1)`]
    if (number > 3) claims.push(sql`claim_batch('email', 1, null, true)`)
    for (const claim of claims.slice(-1)) await sql`select * from ${claim}`.execute(db)
  }

  test('is done by the workers of today, once; and each step only grew', async () => {
    const { url, db } = await testDatabase({ empty: true })
    const folder = newFolder()
    let before = undefined as Awaited<ReturnType<typeof readShape>> | undefined
    for (const [i, path] of migrations.entries()) {
      cpSync(join(root, path), join(folder, basename(path)))
      assert.deepEqual(await migrate({ url, folder }), [basename(path, '.sql')])
      const shape = await readShape(db)
      assert.deepEqual(before && faultsOf(before, shape), before && [], path)
      before = shape
      if (i === 0) await makeHall(db)
      await write(db, i + 1)
    }
    await migrate({ url })
    await loseLife(db)
    const data = newFolder()
    const workers = start(root, url, data, ['expiry', 'outbox', 'inbox', 'email'])
    await until(() => mailed(data).length === 3 * migrations.length)
    await until(async () => (await states(db)).expired === migrations.length)
    await stop(workers)
    const users = migrations.map((_, i) => `user-${i + 1}@example.org`)
    assert.deepEqual(mailed(data), users.flatMap((user) => [user, user, user]).sort())
    assert.deepEqual(await auditLedger(db), [])
  })

  async function makeHall(db: Db): Promise<void> {
    const seats = migrations.length
    await sql`insert into events (id, name, starts_at)
      values (${eventId}, 'Gala', '2027-05-01T19:00:00Z')`.execute(db)
    await sql`
      insert into sections (event_id, section_no, name, row_count, seats_per_row, first_seat_no, capacity,
        price_minor, currency)
      values (${eventId}, 1, 'A', 1, ${seats}, 1, ${seats}, 4500, 'EUR')`.execute(db)
    await sql`insert into seats (event_id, seat_no, section_no, label)
      select ${eventId}, n, 1, 'A-1-' || n from generate_series(1, ${seats}::int) n`.execute(db)
  }
})

describe('a migration that does not only grow is told', () => {
  const told: [string, RegExp][] = [
    ['drop table turns', /the table turns is gone/],
    ['alter table users rename to people', /the table users is gone/],
    ['alter table outbox drop column traceparent', /the column outbox\.traceparent is gone/],
    ['alter table users rename locale to language', /the column users\.locale is gone/],
    [
      'alter table orders alter quantity type bigint',
      /orders\.quantity was "integer" and is "bigint"/,
    ],
    ['alter table users alter email set not null', /users\.email must have a value now/],
    ['alter table users alter locale drop default', /users\.locale must have a value now/],
    [
      'alter table users add tenant text not null',
      /new column users\.tenant has neither a default/,
    ],
    ['alter table users add check (email <> id)', /new constraint users_check of users/],
    ['create unique index one_mail on users (email)', /new constraint one_mail of users/],
    ['drop function has_suspects(text)', /the function has_suspects is gone/],
    [
      `create function has_suspects(queue_name text, also text default '') returns boolean
        language sql return true`,
      /has_suspects has a namesake/,
    ],
  ]

  test('and one that does is not', async () => {
    const { db } = await testDatabase()
    const before = await readShape(db)
    assert.ok(before.length > 200, 'the schema was found')
    const faults = async (statement: string) => {
      let found: string[] = []
      const undone = new Error('undone')
      const tried = db.transaction().execute(async (tx) => {
        await sql.raw(statement).execute(tx)
        found = faultsOf(before, await readShape(tx))
        throw undone
      })
      await assert.rejects(tried, undone)
      return found
    }
    for (const [statement, pattern] of told) {
      assert.match((await faults(statement)).join('\n'), pattern, statement)
    }
    const grows = `alter table users add nickname text, add vip boolean not null default false;
      create table tenants (id text primary key); create index on users (nickname)`
    assert.deepEqual(await faults(grows), [])
  })
})

describe('while the schema grows', () => {
  const all = ['http', 'expiry', 'outbox', 'inbox', 'email']

  /** A sale by the workers of `tree`, which were there before `grow`; then what becomes of one that starts after it. */
  async function liveThrough(
    tree: string,
    { url, db }: TestDatabase,
    grow: () => Promise<unknown>,
  ) {
    const data = newFolder()
    const workers = start(tree, url, data, all)
    const [http] = workers as [WorkerProcess]
    const address = () => /listening at (http:[^"]+)"/.exec(http.output())?.[1]
    await until(() => {
      assert.equal(http.process.exitCode, null, http.output())
      return address() !== undefined
    })
    const alive = async () =>
      (await sql<{ name: string }>`select distinct name from workers`.execute(db)).rows.length
    await until(async () => (await alive()) === all.length)
    await grow()
    await sell(`${address()}/api/v1`, db)
    await until(() => mailed(data).length === 2)
    await until(async () => (await states(db)).expired === 1)
    assert.deepEqual(await states(db), { confirmed: 1, expired: 1 })
    await stop(workers)
    for (const worker of workers) {
      const bad = worker.lines().filter(({ level }) => level === 'error' || level === 'fatal')
      assert.deepEqual(bad, [])
    }
    const [late] = start(tree, url, data, ['expiry']) as [WorkerProcess]
    assert.equal(await exited(late), 78)
    return late.output()
  }

  /** One hold that is paid for, and one whose time runs out. */
  async function sell(base: string, db: Db): Promise<void> {
    const ask = async (method: string, path: string, body: object, headers: object = {}) => {
      const answer = await fetch(base + path, {
        method,
        headers: {
          'content-type': 'application/json',
          'idempotency-key': newKey(),
          'x-mock-user-id': 'ann',
          ...headers,
        },
        body: JSON.stringify(body),
      })
      const text = await answer.text()
      assert.ok(answer.ok, text)
      return JSON.parse(text)
    }
    const sections = [{ name: 'A', rows: 1, seats_per_row: 2, price_minor: 4500, currency: 'EUR' }]
    const hall = { name: 'Gala', starts_at: '2027-05-01T19:00:00Z', waiting_room: false, sections }
    const { event_id } = await ask('POST', '/events', hall, { 'x-internal-auth': secret })
    await ask('PUT', '/users/ann', { email: 'ann@example.org', locale: 'en' })
    const holds = [1, 2].map(() => ask('POST', '/reservations', { event_id, quantity: 1 }))
    const [first, second] = await Promise.all(holds)
    await ask('POST', `/reservations/${first.reservation_id}/confirm`, {})
    await sql`update reservations set created_at = created_at - interval '1 hour',
      expires_at = expires_at - interval '1 hour'
      where id = ${second.reservation_id}`.execute(db)
  }

  test('the workers of today go on, whatever tomorrow adds; one that starts then says what it lacks', async () => {
    const database = await testDatabase()
    const folder = newFolder()
    cpSync(join(root, 'db/migrations'), folder, { recursive: true })
    // A column more in every table: nobody counts on there being no more than it knows.
    writeFileSync(
      join(folder, '9999_tomorrow.sql'),
      `do $$ declare t regclass; begin
        for t in select c.oid from pg_class c where c.relnamespace = 'public'::regnamespace
          and c.relkind in ('r', 'p') and not c.relispartition and c.relname !~ '^schema_migration'
        loop execute format('alter table %s add tomorrow text', t); end loop;
      end $$`,
    )
    const said = await liveThrough(root, database, () => migrate({ url: database.url, folder }))
    assert.match(said, /schema is newer than this code \(9999_tomorrow\): run newer code/)
  })

  const before = releaseBefore()
  // Without git's history the test above is what there is: it needs none.
  if (before !== undefined) {
    test(`the workers of ${before.commit.slice(0, 7)} go on when today's migrations are applied`, async () => {
      const database = await testDatabase({ empty: true })
      const { url } = database
      const env = { PATH: process.env.PATH ?? '', DATABASE_URL: url }
      execFileSync(process.execPath, [join(before.folder, 'cli/fleet.js'), 'migrate'], { env })
      const added = migrations.slice(before.migrations).map((path) => basename(path, '.sql'))
      const said = await liveThrough(before.folder, database, async () =>
        assert.deepEqual(await migrate({ url }), added),
      )
      assert.match(said, new RegExp(`newer than this code \\(${added.join(', ')}\\)`))
    })
  }
})
