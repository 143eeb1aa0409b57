// Whoever leads a match, by a clock that is moved and a store that can be away: what it may do at once, and what has to wait.

import assert from 'node:assert/strict'
import { after, before, describe, test } from 'node:test'
import { pino } from 'pino'
import { Registry } from 'prom-client'
import type { Db } from '../db/schema.ts'
import { QueueAway, type QueueStore } from '../domain/waitingroom.ts'
import { createLeader } from '../workers/waitingroom/leader.ts'
import { createWaitingroomMetrics } from '../workers/waitingroom/metrics.ts'
import { createRooms } from '../workers/waitingroom/rooms.ts'
import { openStore } from '../workers/waitingroom/store.ts'
import { type TestDatabase, testDatabase } from './database.ts'
import { makeMatch, openAtOnce } from './waitingrooms.ts'

const log = pino({ level: 'silent' })
const noListener = { onTurn() {}, onWindowOver() {}, onState() {}, onMoved() {}, onReload() {} }
const signal = new AbortController().signal

describe('the leader of a match', () => {
  let database: TestDatabase
  let real: QueueStore
  before(async () => {
    database = await testDatabase()
    const options = { redisUrl: undefined, log, windowSeconds: 60, persistenceSeconds: 1800 }
    real = await openStore({ ...options, db: database.db })
  })
  after(() => real.close())

  async function lead(given: Partial<QueueStore> = {}) {
    const { db } = database
    const matchId = await makeMatch(db, { rate: 60_000 })
    await openAtOnce(db, real, matchId)
    const store = { ...real, ...given }
    const rooms = createRooms({ db, store, listener: noListener, ratePerMinute: 1, capacity: 1 })
    const room = await rooms.get(matchId)
    const registry = new Registry()
    const metrics = createWaitingroomMetrics({
      count: () => 0,
      rooms: () => [],
      leads: () => true,
      registry,
    })
    let now = 0
    const leader = createLeader({
      ...{ db, store, rooms, log, metrics, id: 'one', persistenceSeconds: 1800 },
      nowMs: () => now,
    })
    const step = async (ms: number) => {
      now += ms
      await leader.admissionPass(signal, 1)
    }
    return { matchId, room, leader, step }
  }

  test('drops nobody before those who are connected could be noted as alive', async () => {
    const drops: string[] = []
    let isAway = false
    const { matchId, leader, step } = await lead({
      async drop(match) {
        drops.push(match)
        return 0
      },
      admit: (match, options) =>
        isAway ? Promise.reject(new QueueAway(new Error('away'))) : real.admit(match, options),
    })
    const upkeep = async () => {
      for (let i = 0; i < 5; i++) await leader.upkeepPass(signal, 1)
    }
    await step(1000)
    assert.ok(leader.leads(matchId))
    await upkeep()
    assert.deepEqual(drops, [])
    await step(61_000)
    await upkeep()
    assert.deepEqual(drops, [matchId])
    isAway = true
    await step(31 * 60_000)
    isAway = false
    await step(1000)
    await upkeep()
    assert.deepEqual(drops, [matchId])
    await step(61_000)
    await upkeep()
    assert.deepEqual(drops, [matchId, matchId])
  })

  test('lets nobody in for ten seconds after a loss, and not for longer where clocks differ', async () => {
    const { matchId, room, step } = await lead()
    await real.join(matchId, 'ann')
    room.state = { ...room.state, revivedAtMs: Date.now() + 3_600_000 }
    const isIn = async () => (await real.find(matchId, 'ann'))?.is === 'admitted'
    for (const ms of [1000, 1000, 8000]) await step(ms)
    assert.ok(!(await isIn()))
    for (const ms of [2000, 1000]) await step(ms)
    assert.ok(await isIn())
  })
})

test('on Postgres those are told whose step was taken while its answer was lost', async () => {
  const { db } = await testDatabase()
  let cut = false
  const own = losingCommits(db, () => cut)
  const options = { redisUrl: undefined, log, windowSeconds: 60, persistenceSeconds: 60 }
  const store = await openStore({ ...options, db: own })
  const matchId = await makeMatch(db)
  await openAtOnce(db, store, matchId)
  const told: string[] = []
  const listener = { ...noListener, onReload: () => told.push('all of it') }
  const rooms = createRooms({ db, store, listener, ratePerMinute: 1, capacity: 1 })
  const room = await rooms.get(matchId)
  for (const user of ['ann', 'bob']) await store.join(matchId, user)
  await room.sync()
  assert.equal(room.line.size, 2)
  cut = true
  await assert.rejects(store.admit(matchId, { leader: 'one', want: 1 }), QueueAway)
  cut = false
  await room.sync()
  assert.deepEqual(told, ['all of it'])
  assert.deepEqual(
    [room.line.size, [...room.windows.values()].map(({ userId }) => userId)],
    [1, ['ann']],
  )
  await store.close()
})

/** Each COMMIT is done, and the connection breaks before its answer, while `isCut`. */
function losingCommits(db: Db, isCut: () => boolean): Db {
  const begin: Db['startTransaction'] = () => {
    const builder = db.startTransaction()
    const execute = async () => {
      const tx = await builder.execute()
      if (!isCut()) return tx
      const commit = tx.commit.bind(tx)
      const lost = Object.assign(new Error('terminated'), { code: '08006' })
      return Object.assign(tx, {
        commit: () => ({
          async execute() {
            await commit().execute()
            throw lost
          },
        }),
      })
    }
    return Object.assign(Object.create(builder), { setIsolationLevel: () => ({ execute }) })
  }
  return new Proxy(db, {
    get: (target, name) =>
      name === 'startTransaction' ? begin : Reflect.get(target, name, target),
  })
}
