// The waiting room as a process: it serves on a port it shares, ends with nobody's place lost, outlives Postgres and
// Redis, and refuses settings that do not go together.

import assert from 'node:assert/strict'
import { before, describe, test } from 'node:test'
import { sql } from 'kysely'
import { needs, type TestDatabase, testDatabase } from './database.ts'
import { freePort, listenAt, makeMatch } from './waitingrooms.ts'
import { exited, startWorker, until, type WorkerProcess } from './worker.ts'

const secrets = {
  INTERNAL_AUTH_SECRET: 'sixteen characters and more',
  QUEUE_TOKEN_SECRET: 'sixteen characters and more',
}

describe('the waitingroom worker', () => {
  let database: TestDatabase
  before(async () => {
    database = await testDatabase()
  })

  async function start(env: Record<string, string> = {}) {
    const worker = startWorker('waitingroom', database.url, [], {
      WAITINGROOM_PORT: '0',
      ...secrets,
      ...env,
    })
    const address = () => /waits at (http:[^"]+)"/.exec(worker.output())?.[1]
    await until(() => address() !== undefined)
    return { worker, base: address()! }
  }
  const post = async (url: string, user?: string) => {
    const answer = await fetch(url, {
      method: 'POST',
      headers: user
        ? { 'x-mock-user-id': user }
        : { 'x-internal-auth': secrets.INTERNAL_AUTH_SECRET },
    })
    assert.equal(answer.status, 200, await answer.clone().text())
    return (await answer.json()) as ReturnType<typeof JSON.parse>
  }
  async function end(worker: WorkerProcess) {
    worker.process.kill('SIGTERM')
    assert.equal(await exited(worker), 0, worker.output())
  }

  test('sends its people elsewhere when it is told to stop, and the next has their places', async () => {
    const matchId = await makeMatch(database.db, { rate: 0 })
    const { worker, base } = await start()
    const queue = `${base}/api/v1/queue/${matchId}`
    for (const user of ['a', 'b']) await post(`${queue}/join`, user)
    const joined = await post(`${queue}/join`, 'ann')
    const ann = listenAt(joined.websocket_url)
    await ann.heard(({ position }) => position === 3)
    await end(worker)
    assert.equal(await ann.closed, 1012)
    const next = await start()
    const again = listenAt(`${next.base.replace('http', 'ws')}/ws/${joined.queue_token}`)
    await again.heard(({ position }) => position === 3)
    again.socket.close()
    await end(next.worker)
  })

  test('outlives the loss of its connections to Postgres', async () => {
    const matchId = await makeMatch(database.db, { rate: 60_000 })
    const { worker, base } = await start()
    const queue = `${base}/api/v1/queue/${matchId}`
    await post(`${queue}/open`)
    const ann = listenAt((await post(`${queue}/join`, 'ann')).websocket_url)
    await ann.heard(({ type }) => type === 'turn_granted')
    await sql`select pg_terminate_backend(pid) from pg_stat_activity
      where application_name = 'flotilla:waitingroom'`.execute(database.db)
    // Who asks just then is told to ask again.
    const join = () => post(`${queue}/join`, 'bob').catch(() => undefined)
    await until(async () => (await join()) !== undefined)
    const bob = listenAt((await post(`${queue}/join`, 'bob')).websocket_url)
    await bob.heard(({ type }) => type === 'turn_granted')
    for (const { socket } of [ann, bob]) socket.close()
    await end(worker)
  })

  test('shares its port with others over Redis', { skip: needs('redis') }, async () => {
    const matchId = await makeMatch(database.db, { rate: 0 })
    const env = {
      REDIS_URL: process.env.TEST_REDIS_URL!,
      WAITINGROOM_PORT: String(await freePort()),
    }
    const all = await Promise.all([start(env), start(env)])
    const queue = `${all[0]!.base}/api/v1/queue/${matchId}`
    const seen = new Set<number>()
    const listeners = []
    for (let i = 0; i < 40; i++) {
      const joined = await post(`${queue}/join`, `u${i}`)
      seen.add(joined.position)
      listeners.push(listenAt(joined.websocket_url))
    }
    assert.equal(seen.size, 40)
    await Promise.all(listeners.map(({ heard }, i) => heard(({ position }) => position === i + 1)))
    // One goes down: its people are told to come back, the others stay.
    await end(all[0]!.worker)
    const gone = listeners.filter(({ socket }) => socket.readyState === WebSocket.CLOSED)
    assert.ok(gone.length > 0 && gone.length < 40, `${gone.length}`)
    for (const { socket } of listeners) socket.close()
    await end(all[1]!.worker)
  })

  test('says what is wrong with its settings', async () => {
    const env = { NODE_ENV: 'production', WAITINGROOM_PROCESSES: '4', QUEUE_WINDOW: 'soon' }
    const worker = startWorker('waitingroom', database.url, [], env)
    assert.equal(await exited(worker), 78)
    assert.match(worker.output(), /QUEUE_WINDOW must be a whole number/)
    assert.match(worker.output(), /QUEUE_TOKEN_SECRET is not set/)
    const several = startWorker('waitingroom', database.url, [], {
      ...secrets,
      NODE_ENV: 'production',
      WAITINGROOM_PROCESSES: '4',
    })
    assert.equal(await exited(several), 78)
    assert.match(several.output(), /AUTH_MODE mock is refused/)
    assert.match(several.output(), /WAITINGROOM_PROCESSES above 1 needs REDIS_URL/)
  })

  test('names the port that is taken', async () => {
    const { worker, base } = await start()
    const second = startWorker('waitingroom', database.url, [], {
      ...secrets,
      WAITINGROOM_PORT: new URL(base).port,
    })
    assert.equal(await exited(second), 1)
    assert.match(second.output(), /WAITINGROOM_PORT \d+ on 127\.0\.0\.1 cannot be listened on/)
    await end(worker)
  })
})
