// The module that other services' consumers use, on a real Postgres and a real Redis.

import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { after, before, describe, test } from 'node:test'
import { Redis } from 'ioredis'
import { ddl, once, prune } from '../consumer/dedupe.js'
import { openDedupe } from '../consumer/redis.js'
import { needs, type TestDatabase, testDatabase } from './database.ts'

describe('once, in Postgres', () => {
  let fresh: TestDatabase
  before(async () => {
    fresh = await testDatabase({ empty: true })
    await fresh.database.pool.query(ddl)
    await fresh.database.pool.query('create table effects (message_id uuid)')
  })

  /** A consumer's transaction: the effect, and the mark. */
  async function consume(consumer: string, ids: string[], fail = false): Promise<string[]> {
    const client = await fresh.database.pool.connect()
    try {
      await client.query('begin')
      const mine = await once(client, consumer, ids)
      for (const id of mine) await client.query('insert into effects values ($1)', [id])
      if (fail) throw new Error('killed before the commit')
      await client.query('commit')
      return mine
    } catch (error) {
      await client.query('rollback')
      throw error
    } finally {
      client.release()
    }
  }

  test('a message has its effect once for each consumer, in the order they came', async () => {
    const ids = Array.from({ length: 5 }, () => randomUUID())
    assert.deepEqual(await consume('one', [...ids.slice(0, 3), ids[0] ?? '']), ids.slice(0, 3))
    assert.deepEqual(await consume('one', ids), ids.slice(3))
    assert.deepEqual(await consume('two', ids), ids)
    assert.deepEqual(await consume('two', []), [])
  })

  test('an id is one message however it is written, and what is no UUID is refused', async () => {
    const id = randomUUID()
    assert.deepEqual(await consume('case', [id.toUpperCase(), id]), [id.toUpperCase()])
    assert.deepEqual(await consume('case', [id]), [])
    const bare = randomUUID().replaceAll('-', '')
    await assert.rejects(consume('case', [randomUUID(), bare]), /must be a UUID, not "/)
  })

  test('what was rolled back is not marked', async () => {
    const ids = [randomUUID()]
    await assert.rejects(consume('one', ids, true), /killed/)
    assert.deepEqual(await consume('one', ids), ids)
  })

  test('many at once with the same messages do each once', async () => {
    const ids = Array.from({ length: 100 }, () => randomUUID())
    const mine = await Promise.all(
      Array.from({ length: 8 }, (_, i) => consume('many', i % 2 ? ids : ids.toReversed())),
    )
    assert.deepEqual(mine.flat().sort(), ids.toSorted())
  })

  test('forgets after eight days', async () => {
    const ids = [randomUUID()]
    await consume('old', ids)
    await fresh.database.pool.query(
      `update processed_events set processed_at = processed_at - interval '9 days'
       where consumer = 'old'`,
    )
    assert.equal(await prune(fresh.database.pool), 1)
    assert.equal(await prune(fresh.database.pool), 0)
  })
})

describe('claim and finish, in Redis', { skip: needs('redis') }, () => {
  let redis: Redis
  before(() => {
    redis = new Redis(process.env.TEST_REDIS_URL ?? '')
  })
  after(() => redis.disconnect())

  test('one of many claims a message; finished, it is done for everybody', async () => {
    const dedupe = openDedupe(redis, 'one')
    const id = randomUUID()
    const claims = await Promise.all(Array.from({ length: 10 }, () => dedupe.claim(id)))
    const mine = claims.filter((claim) => claim.is === 'mine')
    assert.equal(mine.length, 1)
    assert.equal(claims.filter((claim) => claim.is === 'busy').length, 9)
    assert.equal(await dedupe.finish(id, mine[0]?.fence ?? 0), true)
    assert.deepEqual(await dedupe.claim(id), { is: 'done' })
    assert.deepEqual(await dedupe.claim(id.toUpperCase()), { is: 'done' })
    assert.equal((await openDedupe(redis, 'two').claim(id)).is, 'mine')
    const lifeMs = await redis.pttl(`processed:one:{${id}}`)
    assert.ok(lifeMs > 7 * 86_400_000)
  })

  test('who outlived his claim cannot finish over the next one, whose fence is higher', async () => {
    const dedupe = openDedupe(redis, 'late')
    const id = randomUUID()
    const first = await dedupe.claim(id)
    assert.ok(first.is === 'mine')
    assert.equal(await dedupe.extend(id, first.fence, 60_000), true)
    // His time is over.
    await redis.del(`processed:late:{${id}}`)
    const second = await dedupe.claim(id)
    assert.ok(second.is === 'mine' && second.fence > first.fence)
    assert.equal(await dedupe.finish(id, first.fence), false)
    assert.equal(await dedupe.release(id, first.fence), false)
    assert.equal(await dedupe.release(id, second.fence), true)
    assert.equal((await dedupe.claim(id)).is, 'mine')
  })
})
