// Relay and inbox over NATS JetStream and over a Redis stream, on real servers: every event arrives in its order and takes
// effect once, whatever is killed; what is wrong with the broker is said, and the event kept.

import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { before, beforeEach, describe, type TestContext, test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { jetstreamManager } from '@nats-io/jetstream'
import { connect } from '@nats-io/transport-node'
import { Redis } from 'ioredis'
import { sql } from 'kysely'
import { transaction } from '../db/transaction.ts'
import { putUser } from '../db/users.ts'
import type { Publisher, Verdict } from '../domain/broker.ts'
import type { CloudEvent } from '../domain/events.ts'
import { openStream } from '../redis/stream.ts'
import { createLog } from '../workers/log.ts'
import { askNats } from '../workers/nats.ts'
import type { PublisherOptions } from '../workers/outbox/brokers.ts'
import { openPublisher as openNats } from '../workers/outbox/nats.ts'
import { openPublisher as openRedisStream } from '../workers/outbox/redisStream.ts'
import { remoteRelayPass } from '../workers/outbox/relay.ts'
import { type TestDatabase, testDatabase } from './database.ts'
import { completed, order, subjects, write } from './events.ts'
import { type NatsServer, startNats, withoutNats } from './servers/nats.ts'
import { type RedisServer, startRedis, withoutRedisServer } from './servers/redis.ts'
import { exited, startWorker, until } from './worker.ts'

// Here, not in a hook: what a hook registers to be done after ends with the hook.
const nats = withoutNats() ? ({} as NatsServer) : await startNats()
const redis = withoutRedisServer()
  ? ({} as RedisServer)
  : await startRedis(['appendonly yes', 'appendfsync always'])

const log = createLog('test', 'silent')

type Tried = {
  name: string
  skip: string | false
  url: string
  server: { kill(): Promise<void>; start(): Promise<void> }
  open(options: PublisherOptions): Publisher
  empty(): Promise<void>
  /** What the broker has, in its order. */
  read(): Promise<CloudEvent[]>
}

const redisUrl = `redis://127.0.0.1:${redis.port}`
const withRedis = async <T>(work: (client: Redis) => Promise<T>): Promise<T> => {
  const client = new Redis(redisUrl)
  try {
    return await work(client)
  } finally {
    client.disconnect()
  }
}

const tried: Tried[] = [
  {
    name: 'NATS JetStream',
    skip: withoutNats(),
    url: nats.url,
    server: nats,
    open: openNats,
    async empty() {
      const connection = await connect({ servers: nats.url.slice(7) })
      const manager = await jetstreamManager(connection)
      await manager.streams.delete('flotilla_events').catch(() => {})
      await connection.close()
    },
    async read() {
      const connection = await connect({ servers: nats.url.slice(7) })
      const manager = await jetstreamManager(connection)
      const { state } = await manager.streams.info('flotilla_events')
      const events: CloudEvent[] = []
      for (let seq = state.first_seq; seq <= state.last_seq; seq++) {
        const message = await manager.streams.getMessage('flotilla_events', { seq })
        if (message) events.push(message.json() as CloudEvent)
      }
      await connection.close()
      return events
    },
  },
  {
    name: 'a Redis stream',
    skip: withoutRedisServer(),
    url: redisUrl,
    server: redis,
    open: openRedisStream,
    empty: () => withRedis(async (client) => void (await client.flushall())),
    read: () =>
      withRedis(async (client) => {
        const entries = await client.xrange('flotilla:events', '-', '+')
        return entries.map(([, fields]) => JSON.parse(fields.at(-1) ?? '') as CloudEvent)
      }),
  },
]

for (const { name, skip, url, server, open, empty, read } of tried) {
  describe(`over ${name}`, { skip }, () => {
    let fresh: TestDatabase
    before(async () => {
      fresh = await testDatabase()
      await transaction(fresh.db, (tx) =>
        putUser(tx, { userId: 'anna', email: 'anna@example.org' }),
      )
    })
    beforeEach(async () => {
      await sql`truncate outbox, outbox_aside, outbox_relays, inbox_processed`.execute(fresh.db)
      await sql`update outbox_cursors set txid = '0', id = 0, relayed = 0, leased_by = null,
        leased_until = null`.execute(fresh.db)
      await sql`delete from pgboss.job`.execute(fresh.db)
      await empty()
    })

    const relayed = async () => {
      const { rows } = await sql<{ n: number }>`
        select sum(relayed)::int as n from outbox_cursors`.execute(fresh.db)
      return rows[0]?.n
    }
    const mails = async () => {
      const { rows } = await sql<{ id: string }>`
        select id from pgboss.job where name = 'email'`.execute(fresh.db)
      return rows.length
    }

    /** Runs `work` with a relay, and ends it. */
    async function withRelay(
      options: Partial<PublisherOptions>,
      work: (relay: { pass(): Promise<void>; publisher: Publisher }) => Promise<void>,
    ): Promise<void> {
      const publisher = open({ url, log, sizeMax: 1e6, mayGoUnheard: () => false, ...options })
      const metrics = { relayed() {}, confirmed() {}, refused() {}, buried() {} }
      const worker = { log, failed() {}, dying: new AbortController().signal }
      const pass = remoteRelayPass({ db: fresh.db, publisher, windowMax: 200, worker, metrics })
      const { signal } = new AbortController()
      try {
        await work({
          publisher,
          async pass() {
            const outcome = await pass(signal, Number.POSITIVE_INFINITY)
            if (typeof outcome === 'object') await sleep(outcome.waitMs)
          },
        })
      } finally {
        await pass.finish?.()
        await publisher.close()
      }
    }

    test('relays events as they are, in the order of each subject', async () => {
      const many = subjects(30)
      for (let sequence = 1; sequence <= 5; sequence++) {
        await write(
          fresh.db,
          many.map((subject) => completed(subject, sequence)),
        )
      }
      await withRelay({}, async ({ pass }) => {
        await until(async () => {
          await pass()
          return (await relayed()) === 150
        })
      })
      const events = await read()
      assert.equal(events.length, 150)
      for (const subject of many) {
        const mine = events.filter((event) => event.subject === subject)
        assert.deepEqual(
          mine.map(({ sequence }) => Number(sequence)),
          [1, 2, 3, 4, 5],
        )
      }
      assert.deepEqual(events[0]?.data, order)
    })

    test('refuses by name what is too large, and says why it is away', async () => {
      const [large = '', small = ''] = subjects(2)
      const wide = { ...order, event_name: 'x'.repeat(5000) }
      await write(fresh.db, [
        { ...completed(large, 1), data: wide } as ReturnType<typeof completed>,
        completed(small, 1),
      ])
      await withRelay({ sizeMax: 4096 }, async ({ pass }) => {
        await until(async () => {
          await pass()
          return (await relayed()) === 2
        })
      })
      assert.deepEqual(
        (await read()).map(({ subject }) => subject),
        [small],
      )
      const { rows } = await sql<{ subject: string }>`select subject from outbox_aside`.execute(
        fresh.db,
      )
      assert.deepEqual(rows, [{ subject: large }])
      const nowhere = url.replace(/:\d+$/, ':1')
      await withRelay({ url: nowhere }, async ({ publisher }) => {
        await until(() => /ECONNREFUSED|connection refused/.test(publisher.away() ?? ''))
      })
    })

    test('as processes: each event becomes one mail, with every part killed in turn', async () => {
      const env = { BROKER_URL: url, INBOX_BATCH: '10', OUTBOX_WINDOW: '20' }
      const start = (worker: string) => startWorker(worker, fresh.url, [], env)
      let [outbox, inbox] = [start('outbox'), start('inbox')]
      const send = (count: number) =>
        write(
          fresh.db,
          Array.from({ length: count }, () => completed(randomUUID(), 1)),
        )
      await send(100)
      await until(async () => (await mails()) > 0)
      inbox.process.kill('SIGKILL')
      outbox.process.kill('SIGKILL')
      await send(100)
      ;[outbox, inbox] = [start('outbox'), start('inbox')]
      await until(async () => (await mails()) > 50)
      await server.kill()
      await send(100)
      await server.start()
      await until(async () => (await relayed()) === 300)
      await until(async () => (await mails()) === 300)
      for (const worker of [outbox, inbox]) worker.process.kill('SIGTERM')
      assert.equal(await exited(outbox), 0, outbox.output())
      assert.equal(await exited(inbox), 0, inbox.output())
      assert.equal(await mails(), 300)
    })
  })
}

test(
  'a stream is trimmed of what every group has acknowledged',
  { skip: withoutRedisServer() },
  () =>
    withRedis(async (client) => {
      await client.flushall()
      const stream = openStream(client, 'trimmed')
      await stream.ensureGroup('one')
      await stream.ensureGroup('two')
      for (let i = 0; i < 300; i++) await stream.append(['event', String(i)])
      const first = await stream.read('one', 'a', 300, 10)
      await stream.ack(
        'one',
        first.map(({ id }) => id),
      )
      await stream.trim()
      assert.equal(await client.xlen('trimmed'), 300)
      const second = await stream.read('two', 'b', 250, 10)
      await stream.ack(
        'two',
        second.map(({ id }) => id),
      )
      await stream.trim()
      // By whole nodes of the stream, each of a hundred entries.
      const left = await client.xlen('trimmed')
      assert.ok(left >= 51 && left <= 150, String(left))
      assert.equal((await stream.claim('two', 'c', 10, 0)).length, 0)
    }),
)

test('what a dead consumer had in hand is claimed', { skip: withoutRedisServer() }, () =>
  withRedis(async (client) => {
    const stream = openStream(client, 'claimed')
    await stream.ensureGroup('one')
    await stream.append(['event', 'x'])
    assert.equal((await stream.read('one', 'dead', 10, 10)).length, 1)
    assert.equal((await stream.read('one', 'alive', 10, 10)).length, 0)
    assert.equal((await stream.claim('one', 'alive', 10, 60_000)).length, 0)
    const claimed = await stream.claim('one', 'alive', 10, 0)
    assert.deepEqual(
      claimed.map(({ fields }) => fields.get('event')?.toString()),
      ['x'],
    )
  }),
)

test(
  'consumers of a group that died long ago go, those with something in hand stay',
  {
    skip: withoutRedisServer(),
  },
  () =>
    withRedis(async (client) => {
      const stream = openStream(client, 'swept')
      await stream.ensureGroup('one')
      await stream.append(['event', 'x'])
      await stream.read('one', 'busy', 10, 10)
      await client.xgroup('CREATECONSUMER', 'swept', 'one', 'idle')
      await stream.sweep('one', 60_000)
      const count = async () =>
        ((await client.xinfo('CONSUMERS', 'swept', 'one')) as unknown[]).length
      assert.equal(await count(), 2)
      await stream.sweep('one', 0)
      assert.equal(await count(), 1)
    }),
)

test('a frozen Redis is away at once, and nothing spins', {
  skip: withoutRedisServer(),
}, async () => {
  const own = await startRedis()
  const frozen = `redis://127.0.0.1:${own.port}`
  const options = { url: frozen, log, sizeMax: 1e6, mayGoUnheard: () => false }
  const publisher = openRedisStream(options)
  await until(() => publisher.away() === undefined)
  own.pause()
  const event = { id: 'x', type: 'x', subject: 'x', body: Buffer.from('{}') }
  const verdict = await new Promise<Verdict>((tell) => publisher.publish(event, tell))
  assert.deepEqual([verdict, publisher.away() === undefined], [{ is: 'lost' }, false])
  own.resume()
  await until(() => publisher.away() === undefined)
  await publisher.close()
})

test('NATS: a wider stream is used, and what the user may not send is refused by name', {
  skip: withoutNats(),
}, async () => {
  const own = await startNats([
    'authorization { users = [{ user: u, password: hunter22, permissions: { subscribe: ">",',
    '  publish: { allow: [">"], deny: ["flotilla.events.order.completed"] } } }] }',
  ])
  const connection = await connect({ servers: own.url.slice(7), user: 'u', pass: 'hunter22' })
  const manager = await jetstreamManager(connection)
  await manager.streams.add({ name: 'flotilla_events', subjects: ['flotilla.>'] })
  await connection.close()
  const url = own.url.replace('//', '//u:hunter22@')
  await askNats(url, 10_000)
  await assert.rejects(askNats(own.url, 10_000), /refuses the user name or the password/)
  const publisher = openNats({ url, log, sizeMax: 1e6, mayGoUnheard: () => false })
  await until(() => publisher.away() === undefined)
  const send = (type: string) =>
    new Promise<Verdict>((tell) =>
      publisher.publish({ id: randomUUID(), type, subject: 'x', body: Buffer.from('{}') }, tell),
    )
  const [refused, taken] = await Promise.all([send('order.completed'), send('reservation.held')])
  assert.deepEqual(taken, { is: 'taken' })
  assert.ok(refused?.is === 'refused' && refused.blames === 'type', JSON.stringify(refused))
  await publisher.close()
  const wrong = own.url.replace('//', '//u:hunter2@')
  const denied = openNats({ url: wrong, log, sizeMax: 1e6, mayGoUnheard: () => false })
  await until(() => /refuses the user name or the password/.test(denied.away() ?? ''))
  await denied.close()
})

const sent = (publisher: Publisher) =>
  new Promise<Verdict>((tell) => {
    const event = { id: randomUUID(), type: 'order.completed', subject: 'x' }
    publisher.publish({ ...event, body: Buffer.from('{}') }, tell)
  })
function opened(t: TestContext, open: Tried['open'], url: string): Publisher {
  const publisher = open({ url, log, sizeMax: 1e6, mayGoUnheard: () => false })
  t.after(() => publisher.close())
  return publisher
}

/** What is wrong is said, and once it is mended events are taken. */
async function untilMended(publisher: Publisher, why: RegExp, mend: () => unknown): Promise<void> {
  await until(() => why.test(publisher.away() ?? ''))
  await mend()
  await until(async () => publisher.away() === undefined && (await sent(publisher)).is === 'taken')
}

test('Redis: no TLS, a wrong password, a key that is no stream, memory that is full', {
  skip: withoutRedisServer(),
}, async (t) => {
  const own = await startRedis(['maxmemory-policy noeviction'])
  const url = `redis://127.0.0.1:${own.port}`
  const client = new Redis(url)
  t.after(() => client.disconnect())
  const tls = opened(t, openRedisStream, url.replace('redis:', 'rediss:'))
  await until(() => /does not answer to TLS/.test(tls.away() ?? ''))

  await client.set('flotilla:events', 'a text')
  await untilMended(opened(t, openRedisStream, url), /is no stream/, () =>
    client.del('flotilla:events'),
  )

  const full = opened(t, openRedisStream, url)
  await until(() => full.away() === undefined)
  await client.config('SET', 'maxmemory', '1')
  assert.deepEqual(await sent(full), { is: 'lost' })
  await untilMended(full, /OOM|memory/, () => client.config('SET', 'maxmemory', '0'))

  await client.config('SET', 'requirepass', 'right')
  const wrong = opened(t, openRedisStream, url.replace('//', '//:wrong@'))
  await untilMended(wrong, /refuses the user name or the password/, () =>
    client.config('SET', 'requirepass', 'wrong'),
  )
  assert.doesNotMatch(wrong.away() ?? '', /wrong/)
})

test('NATS: no TLS, a stream that is full, deleted, or has other subjects', {
  skip: withoutNats(),
}, async (t) => {
  const own = await startNats()
  const connection = await connect({ servers: own.url.slice(7) })
  t.after(() => connection.close())
  const manager = await jetstreamManager(connection)
  const tls = opened(t, openNats, own.url.replace('nats:', 'tls:'))
  await until(() => /TLS failed|tls/i.test(tls.away() ?? ''))

  const name = 'flotilla_events'
  await manager.streams.add({ name, subjects: ['other.>'] })
  await untilMended(opened(t, openNats, own.url), /without the subjects/, () =>
    manager.streams.delete(name),
  )

  const publisher = opened(t, openNats, own.url)
  await until(() => publisher.away() === undefined)
  await manager.streams.delete(name)
  // Nobody takes it; the stream is made anew, and it is taken.
  assert.deepEqual(await sent(publisher), { is: 'lost' })
  await until(async () => (await sent(publisher)).is === 'taken')
  await manager.streams.update(name, { max_msgs: 1 })
  assert.deepEqual(await sent(publisher), { is: 'lost' })
  await untilMended(publisher, /maximum messages/, () =>
    manager.streams.update(name, { max_msgs: -1 }),
  )
})
