// The Redis client of the house: what REDIS_URL may say, and that one server, a Cluster and a master behind a sentinel
// all serve idempotency and limits.

import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { describe, test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { inspect } from 'node:util'
import { parseRedisUrl } from '../redis/address.ts'
import { openRedisIdempotency } from '../redis/idempotency.ts'
import { openRedisLimits } from '../redis/limits.ts'
import { openRedis, RedisUnavailable } from '../redis/open.ts'
import { startRedis, withoutRedisServer } from './servers/redis.ts'

describe('REDIS_URL', () => {
  test('names one server', () => {
    const { kind, tls, nodes, username, password, db } = parseRedisUrl('rediss://u:p%40s:s@h/3')
    assert.deepEqual(
      { kind, tls, nodes, username, password, db },
      {
        kind: 'server',
        tls: true,
        nodes: [{ host: 'h', port: 6379 }],
        username: 'u',
        password: 'p@s:s',
        db: 3,
      },
    )
    assert.equal(parseRedisUrl('redis://:secret@127.0.0.1:7000').password, 'secret')
    assert.deepEqual(parseRedisUrl('redis://[::1]:7000').nodes, [{ host: '::1', port: 7000 }])
  })

  test('names sentinels and their master', () => {
    const read = parseRedisUrl('redis+sentinel://u:p@a,b:1/tickets/2?sentinel_password=s')
    assert.equal(read.kind, 'sentinel')
    assert.deepEqual(read.nodes, [
      { host: 'a', port: 26379 },
      { host: 'b', port: 1 },
    ])
    assert.equal(read.master, 'tickets')
    assert.equal(read.db, 2)
    assert.equal(read.sentinelPassword, 's')
  })

  test('names nodes of a Cluster', () => {
    const read = parseRedisUrl('rediss+cluster://a:1,b')
    assert.equal(read.kind, 'cluster')
    assert.equal(read.tls, true)
    assert.deepEqual(read.nodes, [
      { host: 'a', port: 1 },
      { host: 'b', port: 6379 },
    ])
  })

  test('is refused with what is right, and without the password', () => {
    for (const [wrong, right] of [
      ['http://u:hunter2@h', /redis:\/\/host:port/],
      ['redis://u:hunter2@a,b', /redis\+cluster/],
      ['redis://u:hunter2@a:99999', /host:port/],
      ['redis://u:hunter2@a/first', /number of a database/],
      ['redis+sentinel://u:hunter2@a,b', /name the master/],
      ['redis+cluster://u:hunter2@a/1', /only 0/],
    ] as const) {
      assert.throws(
        () => parseRedisUrl(wrong),
        (error: Error) => right.test(error.message) && !error.message.includes('hunter2'),
        wrong,
      )
    }
  })
})

describe('a client', { skip: withoutRedisServer() }, () => {
  if (withoutRedisServer()) return

  /** One begin, finish, replay, and one take. That it serves is asked here, not how soon. */
  async function serves(url: string): Promise<void> {
    const { redis, ready, close } = openRedis({ url, name: 'test', commandTimeoutMs: 10_000 })
    try {
      await ready()
      const store = openRedisIdempotency({ redis, find: async () => undefined })
      const limits = openRedisLimits(redis)
      const response = { status: 201, headers: {}, body: '{}' }
      // Enough keys to lie on each node, many at once.
      await Promise.all(
        Array.from({ length: 50 }, async () => {
          const key = randomUUID()
          const begun = await store.begin(key, 'f')
          assert.equal(begun.is, 'mine')
          if (begun.is === 'mine') await store.finish(key, 'f', begun.token, response)
          assert.deepEqual(await store.begin(key, 'f'), { is: 'done', response })
          const { granted } = await limits.take({ subject: `user:${key}`, perMinute: 1 })
          assert.equal(granted, true)
        }),
      )
    } finally {
      await close()
    }
  }

  test('serves on one server, under its name', async () => {
    const { port } = await startRedis(['requirepass hunter2'])
    await serves(`redis://:hunter2@127.0.0.1:${port}`)
    const { redis, ready, close } = openRedis({
      url: `redis://:hunter2@127.0.0.1:${port}`,
      name: 'http',
      commandTimeoutMs: 10_000,
    })
    await ready()
    assert.match(String(await redis.client('LIST')), /name=flotilla:http /)
    await close()
  })

  test('serves on a Cluster of three', async () => {
    const config = ['cluster-enabled yes', 'cluster-node-timeout 2000']
    const servers = await Promise.all([1, 2, 3].map(() => startRedis(config)))
    const ports = servers.map(({ port }) => port)
    const nodes = ports.map((port) =>
      openRedis({ url: `redis://127.0.0.1:${port}`, name: 'test', commandTimeoutMs: 10_000 }),
    )
    await Promise.all(nodes.map((node) => node.ready()))
    const third = Math.ceil(16384 / 3)
    for (const [i, { redis }] of nodes.entries()) {
      await redis.call('CLUSTER', 'ADDSLOTSRANGE', i * third, Math.min(16383, (i + 1) * third - 1))
      for (const port of ports) await redis.call('CLUSTER', 'MEET', '127.0.0.1', port)
    }
    for (const { redis, close } of nodes) {
      while (!String(await redis.call('CLUSTER', 'INFO')).includes('cluster_state:ok'))
        await sleep(20)
      await close()
    }
    await serves(`redis+cluster://127.0.0.1:${ports[0]},127.0.0.1:${ports[1]}`)
  })

  test('serves on the master that a sentinel knows', async () => {
    const { port } = await startRedis()
    const sentinel = await startRedis(
      [`sentinel monitor tickets 127.0.0.1 ${port} 1`],
      ['--sentinel'],
    )
    await serves(`redis+sentinel://127.0.0.1:1,127.0.0.1:${sentinel.port}/tickets`)
  })

  test('does not tell the password when it is refused', async () => {
    const { port } = await startRedis(['requirepass correct'])
    const errors: Error[] = []
    const { ready, close } = openRedis({
      url: `redis://:hunter2@127.0.0.1:${port}`,
      name: 'test',
      onError: (error) => errors.push(error),
    })
    await assert.rejects(ready(300), /WRONGPASS/)
    await close()
    assert.ok(errors.length > 0)
    assert.doesNotMatch(inspect(errors, { depth: null }), /hunter2/)
  })

  test('gives up on a server that is not there, and comes back when it is', async () => {
    const server = await startRedis()
    await server.kill()
    const errors: Error[] = []
    const { redis, ready, close } = openRedis({
      url: `redis://127.0.0.1:${server.port}`,
      name: 'test',
      onError: (error) => errors.push(error),
    })
    await assert.rejects(ready(100), RedisUnavailable)
    await assert.rejects(redis.get('x'))
    assert.ok(errors.length > 0)
    await server.start()
    await ready()
    assert.equal(await redis.get('x'), null)
    await close()
  })
})
