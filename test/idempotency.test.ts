// One suite over both idempotency stores: what one caller, two callers and fifty callers of a key are told, and what
// outlives a dead holder, a flushed Redis and 48 hours.

import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { after, describe, test } from 'node:test'
import { openIdempotency } from '../db/idempotency.ts'
import { saveReceipts } from '../db/receipts.ts'
import { transaction } from '../db/transaction.ts'
import {
  type Begun,
  type IdempotencyStore,
  parseKey,
  type StoredResponse,
} from '../domain/idempotency.ts'
import { openRedisIdempotency } from '../redis/idempotency.ts'
import { openRedis } from '../redis/open.ts'
import { needs, testDatabase } from './database.ts'

const { db, open, database } = await testDatabase()
const redisUrl = process.env.TEST_REDIS_URL ?? ''
const { pool } = database

const newKey = () => randomUUID().replaceAll('-', '')
const mine = (begun: Begun): string => {
  assert.equal(begun.is, 'mine')
  return begun.is === 'mine' ? begun.token : ''
}
const response: StoredResponse = {
  status: 201,
  headers: { 'content-type': 'application/json', location: '/api/v1/reservations/1' },
  body: '{"name":"Zoë – 日本 😀","n":1.50,"nul":"\\u0000"}\n ',
}

/** As the command does it: the record commits with the effect. */
const commit = (key: string, fingerprint: string) =>
  transaction(db, (tx) =>
    saveReceipts(tx, [{ receipt: { kind: 'key', key, fingerprint }, response }]),
  )

type Backend = {
  /** A store as another process has it. */
  store(): IdempotencyStore
  /** Lets the 30 s of a lock pass. */
  outliveLock(key: string): Promise<void>
}

function postgres(): Backend {
  return {
    store: () => openIdempotency(open().db),
    async outliveLock(key) {
      await pool.query(
        `update idempotency_locks set locked_until = locked_until - interval '30 s' where key = $1`,
        [key],
      )
    },
  }
}

function redis(): Backend {
  const client = openRedis({ url: redisUrl, name: 'test', commandTimeoutMs: 10_000 })
  const clients = [client]
  after(() => Promise.all(clients.map((one) => one.close())))
  return {
    store() {
      const own = openRedis({ url: redisUrl, name: 'test', commandTimeoutMs: 10_000 })
      clients.push(own)
      const opened = openRedisIdempotency({
        redis: own.redis,
        find: openIdempotency(open().db).find,
      })
      const ready = own.ready()
      return { ...opened, begin: (...args) => ready.then(() => opened.begin(...args)) }
    },
    async outliveLock(key) {
      await client.ready()
      assert.equal(await client.redis.pexpire(`idempotency:lock:${key}`, 0), 1)
    },
  }
}

for (const name of ['postgres', 'redis'] as const) {
  describe(name, { skip: name === 'redis' && needs('redis') }, () => {
    if (name === 'redis' && needs('redis')) return
    const backend = { postgres, redis }[name]()
    const [a, b] = [backend.store(), backend.store()]

    test('the first caller of a key runs it, the next one hears to ask again soon', async () => {
      const key = newKey()
      mine(await a.begin(key, 'f'))
      const second = await b.begin(key, 'f')
      assert.equal(second.is, 'running')
      if (second.is !== 'running') return
      assert.equal(second.retryAfterMs, 1000)
    })

    test('of fifty callers of a key in two processes one runs it', async () => {
      const key = newKey()
      const begun = await Promise.all(
        Array.from({ length: 50 }, (_, i) => (i % 2 ? a : b).begin(key, 'f')),
      )
      const counts = Object.groupBy(begun, (one) => one.is)
      assert.equal(counts.mine?.length, 1)
      assert.equal(counts.running?.length, 49)
    })

    test('many keys at once in two processes have one holder each and block nobody', async () => {
      const keys = Array.from({ length: 300 }, newKey)
      const calls = await Promise.all(
        [...keys, ...keys.toReversed()].map(async (key, i) => {
          const store = i < 300 ? a : b
          const begun = await store.begin(key, 'f')
          if (begun.is === 'mine') await store.release(key, begun.token)
          return begun.is
        }),
      )
      assert.ok(calls.every((is) => is === 'mine' || is === 'running'))
      assert.ok(calls.filter((is) => is === 'mine').length >= 300)
    })

    test('a finished answer is replayed byte for byte, in any process', async () => {
      const key = newKey()
      const token = mine(await a.begin(key, 'f'))
      await commit(key, 'f')
      await a.finish(key, 'f', token, response)
      for (const store of [a, b]) {
        assert.deepEqual(await store.begin(key, 'f'), { is: 'done', response })
      }
    })

    test('another request under the key is told so before the state, running or done', async () => {
      const key = newKey()
      const token = mine(await a.begin(key, 'f'))
      assert.deepEqual(await b.begin(key, 'other'), { is: 'reused' })
      await commit(key, 'f')
      await a.finish(key, 'f', token, response)
      assert.deepEqual(await b.begin(key, 'other'), { is: 'reused' })
      assert.deepEqual(await b.begin(key, 'f'), { is: 'done', response })
    })

    test('of two requests that take one key at the same moment the later is told it is reused', async () => {
      const key = newKey()
      const begun = await Promise.all([a.begin(key, 'f'), a.begin(key, 'other'), a.begin(key, 'f')])
      assert.deepEqual(
        begun.map((one) => one.is),
        ['mine', 'reused', 'running'],
      )
    })

    test('a released key is free at once, also for another request', async () => {
      const key = newKey()
      await a.release(key, mine(await a.begin(key, 'f')))
      mine(await b.begin(key, 'other'))
    })

    test('the lock of a dead holder is free after 30 s', async () => {
      const key = newKey()
      mine(await a.begin(key, 'f'))
      assert.equal((await b.begin(key, 'f')).is, 'running')
      await backend.outliveLock(key)
      mine(await b.begin(key, 'f'))
    })

    test('a holder that outlived its lock does not free the next one’s', async () => {
      const key = newKey()
      const stale = mine(await a.begin(key, 'f'))
      await backend.outliveLock(key)
      const token = mine(await b.begin(key, 'f'))
      await a.release(key, stale)
      assert.equal((await a.begin(key, 'f')).is, 'running')
      await b.release(key, token)
      mine(await a.begin(key, 'f'))
    })

    test('a committed answer is found though its holder died before it could say so', async () => {
      const key = newKey()
      mine(await a.begin(key, 'f'))
      await commit(key, 'f')
      assert.deepEqual(await b.begin(key, 'f'), { is: 'done', response })
      await backend.outliveLock(key).catch(() => {})
      assert.deepEqual(await b.begin(key, 'f'), { is: 'done', response })
      assert.deepEqual(await b.begin(key, 'other'), { is: 'reused' })
    })

    test('no retry runs a command again while its holder commits and finishes', async () => {
      for (let round = 0; round < 20; round++) {
        const key = newKey()
        const token = mine(await a.begin(key, 'f'))
        let finished = false
        const holder = commit(key, 'f')
          .then(() => a.finish(key, 'f', token, response))
          .then(() => {
            finished = true
          })
        while (!finished) assert.notEqual((await b.begin(key, 'f')).is, 'mine')
        await holder
        assert.deepEqual(await b.begin(key, 'f'), { is: 'done', response })
      }
    })

    test('an answer of 48 hours ago is forgotten and its key can be used again', async () => {
      const key = newKey()
      await commit(key, 'f')
      await age(key, '48 hours')
      const token = mine(await a.begin(key, 'other'))
      await commit(key, 'other')
      await a.finish(key, 'other', token, response)
      assert.deepEqual(await b.begin(key, 'other'), { is: 'done', response })
    })
  })
}

const age = (key: string, by: string) =>
  pool.query(
    'update idempotency_records set created_at = created_at - $2::interval where key = $1',
    [key, by],
  )

describe('postgres alone', () => {
  const store = openIdempotency(db)

  test('a key with a record takes no lock', async () => {
    const key = newKey()
    await commit(key, 'f')
    assert.equal((await store.begin(key, 'f')).is, 'done')
    const { rowCount } = await pool.query('select from idempotency_locks where key = $1', [key])
    assert.equal(rowCount, 0)
  })

  test('a record that commits after the look for it and before the lock is taken is not missed', async () => {
    const key = newKey()
    const [holder, watcher] = [await pool.connect(), await pool.connect()]
    try {
      // The holder's lock row is on its way out when the caller meets it: the caller's first statement waits with a
      // snapshot in which there is no record, and takes the lock when the holder has committed.
      mine(await store.begin(key, 'f'))
      await holder.query('begin')
      await holder.query('delete from idempotency_locks where key = $1', [key])
      const begun = store.begin(key, 'f')
      for (;;) {
        const { rows } = await watcher.query(
          `select from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()`,
        )
        if (rows.length > 0) break
      }
      await holder.query(
        `insert into idempotency_records (key, fingerprint, status, headers, body)
         values ($1, 'f', $2, $3, $4)`,
        [key, response.status, response.headers, response.body],
      )
      await holder.query('commit')
      assert.deepEqual(await begun, { is: 'done', response })
      const { rowCount } = await pool.query('select from idempotency_locks where key = $1', [key])
      assert.equal(rowCount, 0)
    } finally {
      holder.release()
      watcher.release()
    }
  })

  test('a key that Postgres cannot store fails alone', async () => {
    const key = newKey()
    const [good, bad] = await Promise.allSettled([store.begin(key, 'f'), store.begin('\0', 'f')])
    assert.equal(good.status, 'fulfilled')
    assert.equal(bad.status, 'rejected')
  })

  test('pruning deletes what is older than 48 hours and dead locks, and nothing else', async () => {
    while ((await store.prune()) > 0);
    const [old, young, dead, held] = [newKey(), newKey(), newKey(), newKey()]
    await commit(old, 'f')
    await commit(young, 'f')
    await age(old, '48 hours')
    await age(young, '47 hours 59 minutes')
    await store.begin(dead, 'f')
    await store.begin(held, 'f')
    await pool.query(
      `update idempotency_locks set locked_until = locked_until - interval '2 minutes' where key = $1`,
      [dead],
    )
    assert.equal(await store.prune(), 2)
    assert.equal(await store.prune(), 0)
    assert.equal((await store.begin(young, 'f')).is, 'done')
    assert.equal((await store.begin(held, 'f')).is, 'running')
  })
})

describe('redis and postgres together', { skip: needs('redis') }, () => {
  if (needs('redis')) return
  const {
    redis: client,
    ready,
    close,
  } = openRedis({ url: redisUrl, name: 'test', commandTimeoutMs: 10_000 })
  const store = openRedisIdempotency({ redis: client, find: openIdempotency(db).find })
  after(close)

  test('keys and lives are those that others can read', async () => {
    await ready()
    const key = newKey()
    const token = mine(await store.begin(key, 'f'))
    assert.equal(await client.get(`idempotency:lock:${key}`), `${token} f`)
    assert.ok((await client.ttl(`idempotency:lock:${key}`)) > 25)
    await store.finish(key, 'f', token, response)
    assert.equal(await client.exists(`idempotency:lock:${key}`), 0)
    assert.deepEqual(await client.hgetall(`idempotency:${key}`), {
      fingerprint: 'f',
      status: '201',
      headers: JSON.stringify(response.headers),
      body: response.body,
    })
    const life = await client.ttl(`idempotency:${key}`)
    assert.ok(life > 48 * 3600 - 60 && life <= 48 * 3600)
  })

  test('a flushed Redis forgets no answer, and knows it again for the rest of its 48 hours', async () => {
    await ready()
    const key = newKey()
    const token = mine(await store.begin(key, 'f'))
    await commit(key, 'f')
    await store.finish(key, 'f', token, response)
    await age(key, '47 hours')
    // FLUSHALL would take the keys of the other test files along.
    await client.del(`idempotency:${key}`)
    assert.deepEqual(await store.begin(key, 'f'), { is: 'done', response })
    assert.equal(await client.exists(`idempotency:lock:${key}`), 0)
    const life = await client.ttl(`idempotency:${key}`)
    assert.ok(life > 3500 && life <= 3600)
    await pool.query('delete from idempotency_records where key = $1', [key])
    assert.deepEqual(await store.begin(key, 'f'), { is: 'done', response })
  })

  test('a fault of Postgres is not called one of Redis, and leaves no lock', async () => {
    await ready()
    const fault = new Error('postgres is away')
    const broken = openRedisIdempotency({ redis: client, find: () => Promise.reject(fault) })
    const key = newKey()
    await assert.rejects(broken.begin(key, 'f'), fault)
    mine(await store.begin(key, 'f'))
  })
})

test('a key is a UUID v4 in lower case without hyphens, bare or quoted', () => {
  const key = 'a0eebc999c0b4ef8bb6d6bb9bd380a11'
  assert.equal(parseKey(key), key)
  assert.equal(parseKey(`"${key}"`), key)
  for (const wrong of [
    '',
    '""',
    key.toUpperCase(),
    'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11',
    'a0eebc999c0b1ef8bb6d6bb9bd380a11',
    `"${key}`,
    `${key}0`,
  ]) {
    assert.equal(parseKey(wrong), undefined, wrong)
  }
})
