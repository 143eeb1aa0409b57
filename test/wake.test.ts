// Waking and stopping workers: NOTIFY after the commit, LISTEN on a connection of its own, the registry and its beat.

import assert from 'node:assert/strict'
import { after, before, describe, test } from 'node:test'
import { sql } from 'kysely'
import { type Jobs, openJobs } from '../db/jobs.ts'
import { openDatabase } from '../db/open.ts'
import { resumeQueue } from '../db/pauses.ts'
import { readWorkers, removeWorker, reportWorker, requestStop } from '../db/registry.ts'
import type { Db } from '../db/schema.ts'
import { transaction } from '../db/transaction.ts'
import { createWaker, type Listener, openListener } from '../db/wake.ts'
import { type TestDatabase, testDatabase } from './database.ts'
import { emptyJobs } from './jobRows.ts'
import { openCable } from './servers/cable.ts'
import { exited, startWorker, until } from './worker.ts'

describe('waking', () => {
  let fresh: TestDatabase
  let jobs: Jobs
  let listener: Listener | undefined
  const words: (string | undefined)[] = []
  const faults: unknown[] = []

  const listen = async (url: string, options: { db?: Db; trialMs?: number } = {}) => {
    await listener?.close()
    words.length = 0
    faults.length = 0
    listener = openListener({
      url,
      name: 'test',
      db: fresh.db,
      ...options,
      onWord: (word) => words.push(word),
      onSilent: (why) => faults.push(why),
    })
  }
  before(async () => {
    fresh = await testDatabase()
    jobs = openJobs(fresh.database)
    await listen(fresh.url)
    // It says so once it has heard itself: something may have been missed before.
    await until(() => words.length === 1 && words[0] === undefined)
  })
  after(async () => {
    await listener?.close()
    await jobs.close()
  })
  const heard = async (act: () => Promise<unknown>, ...expected: string[]) => {
    words.length = 0
    await act()
    await until(() => words.length >= expected.length)
    assert.deepEqual(words, expected)
  }

  test('says once more what it had no connection to say by', async () => {
    const limit = (to: number) =>
      sql`alter role short_of_connections connection limit ${sql.lit(to)}`.execute(fresh.db)
    await sql`do $$begin
      if not exists (select from pg_roles where rolname = 'short_of_connections')
      then create role short_of_connections login password 'short'; end if; end$$`.execute(fresh.db)
    const url = new URL(fresh.url)
    url.username = 'short_of_connections'
    url.password = 'short'
    const short = openDatabase({ url: url.href, name: 'test' })
    const waker = createWaker(short.db)
    await heard(async () => {
      await limit(0)
      await assert.rejects(sql`select`.execute(short.db), /too many connections/)
      waker.wake('email')
      await assert.rejects(sql`select`.execute(short.db), /too many connections/)
      assert.deepEqual(words, [])
      await limit(-1)
    }, 'email')
    await waker.close()
    await short.close()
  })

  test('tells of jobs once they are committed, not before, and not of what is rolled back', async () => {
    await heard(() => jobs.send(fresh.db, 'email', [{ data: {} }, { data: {} }]), 'email')
    await heard(
      async () => {
        const undone = transaction(fresh.db, async (tx) => {
          await jobs.send(tx, 'inbox', [{ data: {} }])
          throw new Error('changed my mind')
        })
        await assert.rejects(undone)
        await transaction(fresh.db, async (tx) => {
          await jobs.send(tx, 'commands', [{ data: {} }])
          await sql`select pg_notify('flotilla_jobs', 'before the commit')`.execute(tx)
        })
      },
      'before the commit',
      'commands',
    )
  })

  test('is silent about jobs that are due later, and tells of a queue that goes on', async () => {
    await heard(async () => {
      await jobs.send(fresh.db, 'email', [{ data: {}, delayMs: 60_000 }])
      await resumeQueue(fresh.db, 'inbox')
    }, 'inbox')
  })

  test('many at once are one word', async () => {
    words.length = 0
    const sends = Array.from({ length: 40 }, () => jobs.send(fresh.db, 'email', [{ data: {} }]))
    await Promise.all(sends)
    await resumeQueue(fresh.db, 'inbox')
    await until(() => words.includes('inbox'))
    assert.ok(words.length < 20, `${words.length} words`)
  })

  test('listens again after its connection broke, and takes it that it missed something', async () => {
    const cable = await openCable(fresh.url)
    await listen(cable.url)
    await until(() => words.length === 1)
    cable.pull()
    await until(() => faults.length === 1)
    await cable.plug()
    await until(() => words.length === 2)
    assert.deepEqual(words, [undefined, undefined])
    await heard(() => jobs.send(fresh.db, 'email', [{ data: {} }]), 'email')
    await listener?.close()
    cable.pull()
  })

  test('proves itself late on a slow machine, on the same connection', async () => {
    const cable = await openCable(fresh.url)
    const slow = openDatabase({ url: cable.url, name: 'slow', poolMax: 1 })
    await sql`select`.execute(slow.db)
    cable.silence()
    await listen(fresh.url, { db: slow.db, trialMs: 20 })
    await until(() => faults.length === 1)
    assert.match(String(faults[0]), /no notification came through/)
    const listening = async () => {
      const { rows } = await sql<{ pid: number }>`
        select pid from pg_stat_activity where datname = current_database()
        and application_name = 'flotilla:test:listen'`.execute(fresh.db)
      return rows
    }
    const before = await listening()
    assert.equal(before.length, 1)
    cable.free()
    await until(() => words.length === 1)
    assert.deepEqual(words, [undefined])
    assert.deepEqual(await listening(), before)
    await heard(() => jobs.send(fresh.db, 'email', [{ data: {} }]), 'email')
    await listener?.close()
    await slow.close()
    cable.pull()
  })

  test('a worker runs a job at once that it would have looked for in a minute', async () => {
    await emptyJobs(fresh.db)
    const worker = startWorker('inbox', fresh.url, [], { INBOX_POLL_MS: '60000' })
    const listens = () =>
      sql`select from pg_stat_activity where datname = current_database()
      and application_name = 'flotilla:inbox:listen' and query like 'listen%'`.execute(fresh.db)
    await until(async () => (await listens()).rows.length === 1)
    await jobs.send(fresh.db, 'inbox', [{ data: { no: 'event' } }])
    const dead = () => sql`select from pgboss.job where name = 'inbox.dead'`.execute(fresh.db)
    await until(async () => (await dead()).rows.length === 1)
    worker.process.kill('SIGTERM')
    assert.equal(await exited(worker), 0, worker.output())
  })
})

describe('the registry', () => {
  let fresh: TestDatabase
  before(async () => {
    fresh = await testDatabase()
  })
  const self = (id: string, upSeconds = 0) => ({
    id,
    name: 'test',
    host: 'here',
    pid: 1,
    version: null,
    upSeconds,
    doing: { queues: { email: { active: 2, handled: 9 } } },
  })
  const [one, two] = [
    '00000000-0000-7000-8000-000000000001',
    '00000000-0000-7000-8000-000000000002',
  ] as const

  test('knows who is alive, and what each does', async () => {
    await reportWorker(fresh.db, self(one, 60))
    await reportWorker(fresh.db, self(two))
    await sql`update workers set seen_at = seen_at - interval '16 s' where id = ${two}`.execute(
      fresh.db,
    )
    const [first, second] = await readWorkers(fresh.db)
    assert.deepEqual([first?.id, first?.alive, second?.alive], [one, true, false])
    assert.deepEqual(first?.doing.queues, { email: { active: 2, handled: 9 } })
    assert.ok(Math.abs(first!.seenAt.getTime() - first!.startedAt.getTime() - 60_000) < 5000)
    await removeWorker(fresh.db, one)
    assert.deepEqual(
      (await readWorkers(fresh.db)).map(({ id }) => id),
      [two],
    )
  })

  test('asks those to stop that started before, and not their successors', async () => {
    assert.equal(await reportWorker(fresh.db, self(one)), false)
    await requestStop(fresh.db)
    assert.equal(await reportWorker(fresh.db, self(one)), true)
    assert.equal(await reportWorker(fresh.db, self('00000000-0000-7000-8000-000000000003')), false)
  })

  test('a worker is in it while it lives, and stops when all are asked to, with exit 0', async () => {
    await sql`delete from workers`.execute(fresh.db)
    const worker = startWorker('email', fresh.url)
    const found = async () => (await readWorkers(fresh.db)).find(({ name }) => name === 'email')
    await until(async () => (await found()) !== undefined)
    assert.equal((await found())?.pid, worker.process.pid)
    await requestStop(fresh.db)
    assert.equal(await exited(worker), 0, worker.output())
    assert.ok(worker.lines().some(({ reason }) => reason === 'all workers were asked to'))
    assert.equal(await found(), undefined)
  })
})
