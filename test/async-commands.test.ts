// Writes asked for with Prefer: respond-async: accepted durably, run once, told as the synchronous call would be.

import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { after, before, beforeEach, describe, test } from 'node:test'
import { sql } from 'kysely'
import { v7 as uuidv7 } from 'uuid'
import { type CommandJob, closeDeadCommands, pruneCommands, readOutcome } from '../db/commands.ts'
import type { Job } from '../db/jobs.ts'
import { cancelJob } from '../db/operate.ts'
import { findFailed } from '../db/redrive.ts'
import { AppError } from '../domain/errors.ts'
import type { Commands } from '../workers/http/commands.ts'
import { createCommandHandler } from '../workers/http/later.ts'
import { cancelledCommand, givenUpCommand } from '../workers/problem.ts'
import { removeFailed } from '../workers/removeFailed.ts'
import { type Api, newKey, openApi, unreachableDatabase } from './api.ts'
import { type TestDatabase, testDatabase } from './database.ts'

let database: TestDatabase
let api: Api
let eventId: string

before(async () => {
  database = await testDatabase()
  api = await openApi(database.database)
})
after(() => api.close())
beforeEach(async () => {
  eventId = await api.makeEvent()
})

const prefer = { prefer: 'respond-async' }

const ask = (body: object, call: object = {}) =>
  api.call('POST', 'reservations', {
    user: 'ann',
    body: { event_id: eventId, ...body },
    headers: prefer,
    ...call,
  })

const tell = (id: string, user = 'ann') => api.call('GET', `commands/${id}`, { user })

const claim = async () => (await api.jobs.fetch('commands', 100)) as Job<CommandJob>[]

/** Runs what is in the queue, as the worker does. */
async function runAll(commands: Commands = api.commands): Promise<unknown[]> {
  const handle = createCommandHandler({ db: database.db, commands })
  const outcomes = await Promise.allSettled((await claim()).map(handle))
  return outcomes.map((outcome) => (outcome.status === 'rejected' ? outcome.reason : undefined))
}

describe('a write asked for with respond-async', () => {
  test('is accepted, pending, and then told as the synchronous call would be', async () => {
    const accepted = await ask({ seats: ['A-1-1', 'A-1-2'] })
    assert.equal(accepted.status, 202, accepted.text)
    const { command_id: id } = accepted.json
    assert.equal(accepted.headers.location, `/api/v1/commands/${id}`)
    assert.equal(accepted.headers['preference-applied'], 'respond-async')

    const pending = await tell(id)
    assert.deepEqual([pending.status, pending.json], [202, { status: 'pending' }])
    assert.ok(Number(pending.headers['retry-after']) >= 1)

    assert.deepEqual(await runAll(), [undefined])
    const done = await tell(id)
    assert.equal(done.status, 201, done.text)
    assert.deepEqual(done.json.seats, ['A-1-1', 'A-1-2'])
    assert.equal(done.headers['content-type'], 'application/json; charset=utf-8')
    const path = `reservations/${done.json.reservation_id}`
    assert.equal((await api.call('GET', path, { user: 'ann' })).json.status, 'held')
  })

  test('tells refusals too', async () => {
    const first = await ask({ seats: ['A-1-1'] })
    const second = await ask({ seats: ['A-1-1'] })
    const unknown = await ask({ event_id: randomUUID(), quantity: 1 })
    const ids = [first, second, unknown].map(({ json }) => json.command_id)
    await runAll()
    const told = await Promise.all(ids.map((id) => tell(id)))
    const seats = told.slice(0, 2).sort((a, b) => a.status - b.status)
    assert.deepEqual(
      [...seats, told[2]!].map(({ status, json }) => [status, json.code]),
      [
        [201, undefined],
        [409, 'SEATS_UNAVAILABLE'],
        [404, 'EVENT_NOT_FOUND'],
      ],
    )
  })

  test('works for every write', async () => {
    const held = await api.call('POST', 'reservations', {
      user: 'ann',
      body: { event_id: eventId, quantity: 1 },
    })
    const path = `reservations/${held.json.reservation_id}/confirm`
    const confirm = await api.call('POST', path, { user: 'ann', headers: prefer })
    const user = await api.call('PUT', 'users/ann', {
      user: 'ann',
      body: { locale: 'fr' },
      headers: prefer,
    })
    await runAll()
    assert.equal((await tell(confirm.json.command_id)).json.status, 'confirmed')
    assert.equal((await tell(user.json.command_id)).status, 200)
  })

  test('is authenticated, validated and limited before it is accepted', async () => {
    assert.equal((await ask({ quantity: 0 })).status, 400)
    assert.equal((await ask({ quantity: 1 }, { user: undefined })).status, 401)
    assert.equal((await ask({ quantity: 1 }, { key: false })).status, 400)
    assert.deepEqual(await claim(), [])
  })

  test('repeated gets the same 202 and makes one job', async () => {
    const key = newKey()
    const first = await ask({ quantity: 1 }, { key })
    const second = await ask({ quantity: 1 }, { key })
    assert.equal(second.text, first.text)
    assert.equal(second.headers.location, first.headers.location)
    assert.equal(second.headers['idempotent-replayed'], 'true')
    assert.equal((await claim()).length, 1)
  })

  test('reads the preference among others, and no other word for it', async () => {
    const among = await ask({ quantity: 1 }, { headers: { prefer: 'wait=10, Respond-Async; x=1' } })
    assert.equal(among.status, 202)
    const other = await ask({ quantity: 1 }, { headers: { prefer: 'no-respond-async' } })
    assert.equal(other.status, 201)
    await runAll()
  })

  test('is run once, however often its job runs', async () => {
    const { command_id } = (await ask({ quantity: 1 })).json
    const jobs = await claim()
    const handle = createCommandHandler(api)
    await Promise.all([...jobs, ...jobs].map(handle))
    await Promise.all(jobs.map(handle))
    const told = await tell(command_id)
    assert.equal(told.status, 201, told.text)
    const row = await sql<{ n: number }>`
      select count(*)::int as n from reservations where event_id = ${eventId}`.execute(database.db)
    assert.equal(row.rows[0]?.n, 1)
  })
})

describe('the outcome', () => {
  test('is for who asked', async () => {
    const { command_id } = (await ask({ quantity: 1 })).json
    for (const run of [() => undefined, runAll]) {
      await run()
      const other = await tell(command_id, 'bob')
      assert.deepEqual([other.status, other.json.code], [404, 'COMMAND_NOT_FOUND'])
      const internal = await api.call('GET', `commands/${command_id}`, { internal: true })
      assert.equal(internal.status, 404)
    }
    assert.equal((await api.call('GET', `commands/${command_id}`)).status, 401)
  })

  test('of an internal program’s command is for internal programs', async () => {
    const body = {
      name: 'x',
      starts_at: '2030-01-01T00:00:00Z',
      sections: [{ name: 'A', capacity: 5, price_minor: 1, currency: 'EUR' }],
    }
    const asked = await api.call('POST', 'events', { internal: true, body, headers: prefer })
    assert.equal(asked.status, 202, asked.text)
    await runAll()
    const path = `commands/${asked.json.command_id}`
    const told = await api.call('GET', path, { internal: true })
    assert.equal(told.status, 201)
    assert.ok(told.json.event_id)
    assert.equal((await api.call('GET', path, { user: 'ann' })).status, 404)
  })

  test('of what nobody asked for is not found', async () => {
    for (const id of [randomUUID(), 'x']) {
      const answer = await tell(id)
      assert.deepEqual([answer.status, answer.json.code], [404, 'COMMAND_NOT_FOUND'])
    }
  })
})

describe('a command that cannot be run', () => {
  const failing = (error: Error): Commands => ({
    run: async () => {
      throw error
    },
  })

  test('stays pending while attempts are left, and tells why after the last', async () => {
    const { command_id: id } = (await ask({ quantity: 1 })).json
    const [job] = await claim()
    assert.ok(job)
    const busy = new AppError('LOCK_TIMEOUT', 'contended', { retryAfterMs: 1000 })
    const handle = createCommandHandler({ db: database.db, commands: failing(busy) })
    await assert.rejects(handle({ ...job, attempt: job.attemptsMax - 1 }), busy)
    assert.equal((await tell(id)).status, 202)
    await assert.rejects(handle({ ...job, attempt: job.attemptsMax }), busy)
    const told = await tell(id)
    assert.deepEqual([told.status, told.json.code], [503, 'LOCK_TIMEOUT'])
    // What was told as failed does not happen afterwards.
    await createCommandHandler(api)(job)
    assert.equal((await tell(id)).status, 503)
    assert.equal((await readOutcome(database.db, id))?.response?.status, 503)
  })

  test('is refused at once when another attempt would be refused too', async () => {
    const { command_id: id } = (await ask({ quantity: 1 })).json
    const [job] = await claim()
    const refused = failing(new AppError('QUEUE_TOKEN_REQUIRED', 'join the queue'))
    await createCommandHandler({ db: database.db, commands: refused })(job!)
    const told = await tell(id)
    assert.deepEqual([told.status, told.json.code], [403, 'QUEUE_TOKEN_REQUIRED'])
  })

  test('tells nothing of an error of ours', async () => {
    const { command_id: id } = (await ask({ quantity: 1 })).json
    const [job] = await claim()
    const handle = createCommandHandler({
      db: database.db,
      commands: failing(new Error('a secret of the house')),
    })
    await assert.rejects(handle({ ...job!, attempt: job!.attemptsMax }))
    const told = await tell(id)
    assert.deepEqual([told.status, told.json.code], [500, 'INTERNAL'])
    assert.doesNotMatch(told.text, /secret/)
  })
})

describe('a command whose job is cancelled', () => {
  const cancel = (id: string) => cancelJob(database.db, { queue: 'commands', id }, cancelledCommand)

  test('is told so, and is not carried out any more, wherever its job is', async () => {
    const { command_id: waiting } = (await ask({ quantity: 1 })).json
    assert.equal(await cancel(waiting), 'cancelled')
    const { command_id: running } = (await ask({ quantity: 1 })).json
    const [job] = await claim()
    assert.equal(await cancel(running), 'cancelled')
    await createCommandHandler(api)(job!)
    for (const id of [waiting, running]) {
      const told = await tell(id)
      assert.deepEqual([told.status, told.json.code], [409, 'COMMAND_CANCELLED'])
    }
    const { rows } = await sql`
      select from reservations where event_id = ${eventId}`.execute(database.db)
    assert.equal(rows.length, 0)
  })

  test('is told as cancelled or as done, whichever was first, when both happen at once', async () => {
    const ids: string[] = []
    for (let i = 0; i < 8; i++) ids.push((await ask({ quantity: 1 })).json.command_id)
    const jobs = await claim()
    const handle = createCommandHandler(api)
    await Promise.all(jobs.flatMap((job) => [handle(job), cancel(job.id)]))
    const told = await Promise.all(ids.map((id) => tell(id)))
    for (const { status } of told) assert.ok(status === 201 || status === 409, `${status}`)
    const { rows } = await sql`
      select from reservations where event_id = ${eventId}`.execute(database.db)
    assert.equal(rows.length, told.filter(({ status }) => status === 201).length)
  })
})

describe('the upkeep', () => {
  test('answers a command whose worker died each time', async () => {
    const { command_id: lost } = (await ask({ quantity: 1 })).json
    const { command_id: waiting } = (await ask({ quantity: 1 })).json
    const job = (await claim()).find(({ data }) => data.command_id === lost)
    await api.jobs.fail(job!, 'its worker died', 'dead')
    assert.equal(await closeDeadCommands(database.db, givenUpCommand), 1)
    assert.equal(await closeDeadCommands(database.db, givenUpCommand), 0)
    const told = await tell(lost)
    assert.deepEqual([told.status, told.json.code], [500, 'INTERNAL'])
    assert.equal((await tell(waiting)).status, 202)
  })

  test('a command that was given up is answered before an operator removes its job', async () => {
    const { command_id: lost } = (await ask({ quantity: 1 })).json
    const job = (await claim()).find(({ data }) => data.command_id === lost)
    await api.jobs.fail(job!, 'its worker died', 'dead')
    const { found } = await findFailed(database.db, [lost])
    assert.equal((await removeFailed(database.db, { deadIds: [found[0]!.dead_id] })).length, 1)
    const told = await tell(lost)
    assert.deepEqual([told.status, told.json.code], [500, 'INTERNAL'])
  })

  test('deletes what ended more than two days ago', async () => {
    const ids: string[] = []
    for (let i = 0; i < 3; i++) ids.push((await ask({ quantity: 1 })).json.command_id)
    await runAll()
    const old = uuidv7({ msecs: Date.now() - 48 * 3_600_000 - 1000 })
    await sql`update commands set id = ${old}, finished_at = clock_timestamp() - interval '48 h'
      where id = ${ids[0]}`.execute(database.db)
    ids[0] = old
    assert.equal((await tell(old)).status, 201)
    await sql`update commands set finished_at = clock_timestamp() - interval '47 h'
      where id = ${ids[1]}`.execute(database.db)
    assert.equal(await pruneCommands(database.db), 1)
    const told = await Promise.all(ids.map((id) => tell(id)))
    assert.deepEqual(
      told.map(({ status }) => status),
      [404, 201, 201],
    )
  })
})

test('what could not be made durable is not accepted', async () => {
  const gone = unreachableDatabase()
  const cut = await openApi(gone)
  const answer = await cut.call('POST', 'reservations', {
    user: 'ann',
    body: { event_id: eventId, quantity: 1 },
    headers: prefer,
  })
  assert.deepEqual([answer.status, answer.json.code], [503, 'UNAVAILABLE'])
  await cut.close()
  await gone.close()
})
