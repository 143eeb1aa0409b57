// The http worker as a process: it serves, runs asynchronous commands, ends with what it has in hand, and outlives Postgres.

import assert from 'node:assert/strict'
import { before, describe, test } from 'node:test'
import { sql } from 'kysely'
import { newKey, openApi } from './api.ts'
import { type TestDatabase, testDatabase } from './database.ts'
import { exited, startWorker, until, type WorkerProcess } from './worker.ts'

const secret = 'sixteen characters and more'

describe('the http worker', () => {
  let database: TestDatabase
  let eventId: string
  before(async () => {
    database = await testDatabase()
    const api = await openApi(database.database)
    eventId = await api.makeEvent()
    await api.close()
  })

  async function start(env: Record<string, string> = {}) {
    const worker = startWorker('http', database.url, [], {
      HTTP_PORT: '0',
      INTERNAL_AUTH_SECRET: secret,
      CONSOLE_PASSWORD: secret,
      ...env,
    })
    return { worker, base: await listening(worker) }
  }

  async function listening(worker: WorkerProcess): Promise<string> {
    const address = () => /listening at (http:[^"]+)"/.exec(worker.output())?.[1]
    await until(() => address() !== undefined)
    return `${address()}/api/v1`
  }

  const hold = (base: string, headers: Record<string, string> = {}) =>
    fetch(`${base}/reservations`, {
      method: 'POST',
      headers: {
        'content-type': 'application/json',
        'x-mock-user-id': 'ann',
        'idempotency-key': newKey(),
        ...headers,
      },
      body: JSON.stringify({ event_id: eventId, quantity: 1 }),
    })

  test('serves, runs what was asked for later, and ends when told to', async () => {
    const { worker, base } = await start()
    assert.equal((await hold(base)).status, 201)
    const accepted = await hold(base, { prefer: 'respond-async' })
    assert.equal(accepted.status, 202)
    const path = String(accepted.headers.get('location')).replace('/api/v1', '')
    let told = accepted
    await until(async () => {
      told = await fetch(base + path, { headers: { 'x-mock-user-id': 'ann' } })
      return told.status !== 202
    })
    assert.equal(told.status, 201)
    worker.process.kill('SIGTERM')
    assert.equal(await exited(worker), 0)
    const { worker: name, msg } = worker.lines().at(-1) ?? {}
    assert.deepEqual([name, msg], ['http', 'stopped'])
    assert.ok(
      worker.lines().every(({ level }) => level === 'info'),
      worker.output(),
    )
  })

  test('counts its answers by route and status', async () => {
    const { worker, base } = await start({ METRICS_PORT: '' })
    await hold(base)
    await fetch(`${base}/events/${eventId}`)
    const port = /"metrics":"127\.0\.0\.1:(\d+)"/.exec(worker.output())?.[1]
    const text = await (await fetch(`http://127.0.0.1:${port}/metrics`)).text()
    const count = (route: string, status: number) =>
      new RegExp(`http_request_duration_seconds_count\\{.*"${route}",status="${status}"\\} 1`)
    assert.match(text, count('/api/v1/reservations', 201))
    assert.match(text, count('/api/v1/events/:id', 200))
    worker.process.kill('SIGTERM')
    assert.equal(await exited(worker), 0)
  })

  test('finishes the write it has in hand', async () => {
    const { worker, base } = await start()
    const lock = await database.database.pool.connect()
    await lock.query('begin')
    await lock.query('lock table reservations in exclusive mode')
    const write = hold(base)
    const waits = async () =>
      (
        await sql`select from pg_stat_activity
          where application_name = 'flotilla:http' and wait_event_type = 'Lock'`.execute(
          database.db,
        )
      ).rows.length > 0
    await until(waits)
    worker.process.kill('SIGTERM')
    await until(() => worker.output().includes('"stopping"'))
    await lock.query('commit')
    lock.release()
    const answer = await write
    assert.equal(answer.status, 201)
    assert.equal(answer.headers.get('connection'), 'close')
    assert.equal(await exited(worker), 0)
  })

  test('outlives the loss of its connections', async () => {
    const { worker, base } = await start()
    assert.equal((await hold(base)).status, 201)
    await sql`select pg_terminate_backend(pid) from pg_stat_activity
      where application_name = 'flotilla:http'`.execute(database.db)
    await until(async () => (await hold(base)).status === 201)
    worker.process.kill('SIGTERM')
    assert.equal(await exited(worker), 0)
  })

  test('says what is wrong with its settings, and cannot be mended by a restart', async () => {
    const env = { NODE_ENV: 'production', RESERVATION_TTL: '0', INTERNAL_AUTH_SECRET: 'short' }
    const worker = startWorker('http', database.url, [], env)
    assert.equal(await exited(worker), 78)
    assert.match(worker.output(), /RESERVATION_TTL must be a whole number/)
    assert.match(worker.output(), /INTERNAL_AUTH_SECRET must have at least 16/)
    assert.match(worker.output(), /CONSOLE_PASSWORD is not set/)
    assert.doesNotMatch(worker.output(), /short/)
    const mock = {
      NODE_ENV: 'production',
      INTERNAL_AUTH_SECRET: secret,
      CONSOLE_PASSWORD: secret,
    }
    const second = startWorker('http', database.url, [], mock)
    assert.equal(await exited(second), 78)
    assert.match(second.output(), /AUTH_MODE mock is refused/)
  })

  test('names the port that is taken', async () => {
    const { worker, base } = await start()
    const { port } = new URL(base)
    const second = startWorker('http', database.url, [], {
      HTTP_PORT: port,
      INTERNAL_AUTH_SECRET: secret,
      CONSOLE_PASSWORD: secret,
    })
    assert.equal(await exited(second), 1)
    assert.match(
      second.output(),
      new RegExp(`HTTP_PORT ${port} on 127.0.0.1 cannot be listened on`),
    )
    worker.process.kill('SIGTERM')
    assert.equal(await exited(worker), 0)
  })
})
