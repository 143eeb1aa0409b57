// The relay and the inbox over a real RabbitMQ: what is committed arrives, in order, and takes effect once; what the
// broker refuses holds up its own subject only; a broker that is away costs nothing but time.

import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { after, afterEach, before, beforeEach, describe, test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { type Channel, type ChannelModel, type ConsumeMessage, connect } from 'amqplib'
import { sql } from 'kysely'
import { retryFailed } from '../db/redrive.ts'
import { transaction } from '../db/transaction.ts'
import { putUser } from '../db/users.ts'
import type { CloudEvent } from '../domain/events.ts'
import { askRabbit, exchange } from '../workers/amqp.ts'
import { openConsumer } from '../workers/inbox/rabbitmq.ts'
import { createLog } from '../workers/log.ts'
import { openPublisher } from '../workers/outbox/rabbitmq.ts'
import { remoteRelayPass } from '../workers/outbox/relay.ts'
import { type TestDatabase, testDatabase } from './database.ts'
import { completed, held, order, subjects, toCloudEvent, write } from './events.ts'
import { type RabbitServer, startRabbit, withoutRabbit } from './servers/rabbitmq.ts'
import { exited, startWorker, until } from './worker.ts'

const all = Number.POSITIVE_INFINITY
const log = createLog('test', 'silent')
// Here, not in a hook: what a hook registers to be done after ends with the hook.
const rabbit = withoutRabbit() ? ({} as RabbitServer) : await startRabbit()

describe('over RabbitMQ', { skip: withoutRabbit() }, () => {
  let fresh: TestDatabase
  let connection: ChannelModel
  let channel: Channel

  before(async () => {
    fresh = await testDatabase()
  })
  after(async () => {
    await connection?.close().catch(() => {})
  })
  beforeEach(async () => {
    await sql`truncate outbox, outbox_aside, outbox_relays, inbox_processed`.execute(fresh.db)
    await sql`update outbox_cursors set txid = '0', id = 0, relayed = 0, leased_by = null,
      leased_until = null`.execute(fresh.db)
    await sql`delete from pgboss.job`.execute(fresh.db)
    await sql`truncate job_errors, job_audits`.execute(fresh.db)
    await connection?.close().catch(() => {})
    connection = await connect(rabbit.url)
    connection.on('error', () => {})
    channel = await connection.createChannel()
    channel.on('error', () => {})
    await channel.assertExchange(exchange, 'topic', { durable: true })
  })

  /** A queue of the test's own, and what comes to it. */
  const listen = async (pattern = '#', args: object = {}) => {
    const taken: { event: CloudEvent; properties: ConsumeMessage['properties'] }[] = []
    const { queue } = await channel.assertQueue('', { exclusive: true, arguments: args })
    await channel.bindQueue(queue, exchange, pattern)
    await channel.consume(
      queue,
      (message) => {
        if (!message) return
        const event = JSON.parse(message.content.toString()) as CloudEvent
        taken.push({ event, properties: message.properties })
      },
      { noAck: true },
    )
    return taken
  }

  const opened = new Set<{ end(): Promise<void> }>()
  afterEach(async () => {
    for (const relay of opened) await relay.end()
  })
  const openRelay = (given: { url?: string; sizeMax?: number; unheard?: string } = {}) => {
    const publisher = openPublisher({
      url: given.url ?? rabbit.url,
      log,
      sizeMax: given.sizeMax ?? 1_048_576,
      mayGoUnheard: (type) => type === given.unheard,
    })
    const metrics = { relayed() {}, confirmed() {}, refused() {}, buried() {} }
    const worker = { log, failed() {}, dying: new AbortController().signal }
    const pass = remoteRelayPass({
      db: fresh.database.db,
      publisher,
      windowMax: 500,
      worker,
      metrics,
    })
    const stopping = new AbortController()
    const relay = {
      publisher,
      /** Until it is idle. */
      async drain() {
        for (;;) {
          const outcome = await pass(stopping.signal, all)
          if (outcome === 0) return
          if (typeof outcome === 'object') await sleep(outcome.waitMs)
        }
      },
      pass: () => pass(stopping.signal, all),
      async end() {
        if (!opened.delete(relay)) return
        await pass.finish?.()
        await publisher.close()
      },
    }
    opened.add(relay)
    return relay
  }

  test('relays an event as it is, persistent, under its id and its type', async () => {
    const taken = await listen()
    const [subject = ''] = subjects(1)
    const event = completed(subject, 7)
    await write(fresh.db, [event])
    const relay = openRelay()
    await relay.drain()
    await until(() => taken.length === 1)
    const [
      {
        event: { time, ...rest },
        properties,
      } = assert.fail(),
    ] = taken
    assert.ok(Math.abs(Date.parse(time) - Date.now()) < 60_000)
    assert.deepEqual(rest, {
      specversion: '1.0',
      id: event.messageId,
      source: '/flotilla',
      type: 'order.completed',
      subject,
      datacontenttype: 'application/json',
      sequence: '7',
      requestid: 'request-7',
      data: order,
    })
    assert.equal(properties.messageId, event.messageId)
    assert.equal(properties.deliveryMode, 2)
    assert.equal(properties.contentType, 'application/cloudevents+json; charset=UTF-8')
  })

  test('two relays at once share the slots and keep the order of each subject', async () => {
    const taken = await listen()
    const many = subjects(200)
    for (let sequence = 1; sequence <= 10; sequence++) {
      await write(
        fresh.db,
        many.map((subject) => held(subject, sequence)),
      )
    }
    const relays = [openRelay(), openRelay()]
    await Promise.all(relays.map((relay) => relay.drain()))
    await until(async () => {
      await Promise.all(relays.map((relay) => relay.pass()))
      return taken.length >= 2000
    })
    for (const subject of many) {
      const sequences = taken.filter(({ event }) => event.subject === subject)
      assert.deepEqual(
        sequences.map(({ event }) => Number(event.sequence)),
        [1, 2, 3, 4, 5, 6, 7, 8, 9, 10],
      )
    }
    await until(async () => {
      await Promise.all(relays.map((relay) => relay.pass()))
      const { rows } = await sql<{ n: number }>`
        select count(*)::int as n from outbox_cursors where leased_by is not null
        group by leased_by`.execute(fresh.db)
      return rows.length === 2 && rows.every(({ n }) => n === 8)
    })
    await Promise.all(relays.map((relay) => relay.end()))
    const free = await sql`select from outbox_cursors where leased_by is null`.execute(fresh.db)
    assert.equal(free.rows.length, 16)
  })

  const asides = async () => {
    const { rows } = await sql<{ subject: string; sequence: string; attempts: number }>`
      select subject, event->>'sequence' as sequence, attempts from outbox_aside
      order by subject, txid, id`.execute(fresh.db)
    return rows
  }
  const makeDue = () =>
    sql`update outbox_aside set next_at = clock_timestamp() where next_at is not null`.execute(
      fresh.db,
    )
  const dead = async (queue: string) => {
    const { rows } = await sql<{ data: Record<string, unknown>; error: string; code: string }>`
      select d.data, a.code, a.errors->-1->>'message' as error from pgboss.job d
      join job_audits a on a.dead_job_id = d.id where d.name = ${`${queue}.dead`}`.execute(fresh.db)
    return rows
  }

  test('an event nobody listens for waits aside with its successors, the others flow', async () => {
    const taken = await listen('order.completed')
    const [stuck = '', free = ''] = subjects(2)
    await write(fresh.db, [
      held(stuck, 1),
      completed(stuck, 2),
      completed(free, 1),
      completed(stuck, 3),
    ])
    const relay = openRelay()
    await relay.drain()
    await until(() => taken.length === 1)
    assert.equal(taken[0]?.event.subject, free)
    await until(async () => (await asides()).length === 3)
    const [first, ...behind] = await asides()
    assert.ok(first?.sequence === '1' && first.attempts > 0)
    assert.deepEqual(behind, [
      { subject: stuck, sequence: '2', attempts: 0 },
      { subject: stuck, sequence: '3', attempts: 0 },
    ])
    // What comes later goes behind them, whichever relay holds the slot.
    await relay.end()
    await write(fresh.db, [completed(stuck, 4)])
    const next = openRelay()
    await next.drain()
    assert.equal((await asides()).length, 4)
    const late = await listen('reservation.held')
    await until(async () => {
      await makeDue()
      await next.pass()
      return (await asides()).length === 0
    })
    await until(() => taken.length === 4)
    assert.equal(late.length, 1)
    assert.deepEqual(
      taken.map(({ event }) => event.sequence),
      ['1', '2', '3', '4'],
    )
  })

  test('an event refused for ever ends in the dead letter queue, and its successors flow', async () => {
    const taken = await listen('order.completed')
    const [subject = ''] = subjects(1)
    const event = held(subject, 1)
    await write(fresh.db, [event, completed(subject, 2)])
    const relay = openRelay()
    await until(async () => {
      await makeDue()
      await relay.pass()
      return taken.length === 1
    })
    const [buried] = await dead('outbox')
    assert.equal(buried?.code, 'SASO-INFRA-9100')
    assert.match(buried?.error ?? '', /nobody listens for reservation.held \(NO_ROUTE\)/)
    assert.equal((buried?.data as CloudEvent | undefined)?.id, event.messageId)
    const { rows } = await sql<{ attempt: number }>`
      select attempt from job_errors where job_id = ${event.messageId} order by 1`.execute(fresh.db)
    assert.deepEqual(
      rows.map(({ attempt }) => attempt),
      [1, 2, 3, 4],
    )
    // Mended, and sent once more by an operator.
    const heard = await listen('reservation.held')
    const before = new Date(Date.now() + 60_000)
    await retryFailed(fresh.db, { queues: ['outbox'], before, batchMax: 10 })
    const worker = startWorker('outbox', fresh.url, [], { BROKER_URL: rabbit.url })
    await until(() => heard.length === 1)
    assert.equal(heard[0]?.event.id, event.messageId)
    worker.process.kill('SIGTERM')
    assert.equal(await exited(worker), 0, worker.output())
  })

  test('a broker that refuses every event has none buried, and gets them all when it takes them', async () => {
    const many = subjects(120)
    await write(
      fresh.db,
      many.map((subject) => completed(subject, 1)),
    )
    const relay = openRelay()
    const attempts = async () =>
      (await asides()).reduce((sum, { attempts }) => sum + attempts, 0) - (await asides()).length
    await until(async () => {
      await relay.pass()
      return (await asides()).length >= 100
    })
    // Far more often than any of them may be refused.
    for (let i = 0; i < 5; i++) {
      await makeDue()
      await relay.pass()
    }
    assert.ok((await attempts()) <= 10, `${await attempts()} attempts were spent`)
    assert.deepEqual(await dead('outbox'), [])
    const taken = await listen()
    await until(async () => {
      await makeDue()
      await relay.pass()
      return (await asides()).length === 0 && taken.length === 120
    })
  })

  test('fleet check names a wrong password and a virtual host that is not there', async () => {
    await askRabbit(rabbit.url, 10_000)
    const wrong = new URL(rabbit.url)
    wrong.password = 'hidden'
    await assert.rejects(askRabbit(wrong.href, 10_000), /refuses the user name or the password/)
    const nowhere = new URL('/nowhere', rabbit.url)
    await assert.rejects(askRabbit(nowhere.href, 10_000), /there is no such virtual host/)
  })

  test('an event the user may not send waits with its type, and the others flow', async () => {
    rabbit.control('add_user', 'narrow', 'narrow')
    rabbit.control('set_permissions', 'narrow', '.*', '.*', '.*')
    rabbit.control('set_topic_permissions', 'narrow', exchange, '^reservation\\..*', '.*')
    const taken = await listen()
    const many = subjects(60)
    await write(fresh.db, [
      ...many.slice(0, 30).map((subject) => held(subject)),
      completed(many[0] ?? '', 2),
      ...many.slice(30).map((subject) => held(subject)),
    ])
    const relay = openRelay({ url: rabbit.url.replace('guest:guest', 'narrow:narrow') })
    const ids = () => new Set(taken.map(({ event }) => event.id)).size
    await until(async () => {
      await relay.pass()
      return ids() === 60 && (await asides()).length === 1
    })
    const [error] = (
      await sql<{ message: string }>`select message from job_errors`.execute(fresh.db)
    ).rows
    assert.match(error?.message ?? '', /ACCESS_REFUSED.*order.completed/)
    rabbit.control('clear_topic_permissions', 'narrow')
    await until(async () => {
      await makeDue()
      await relay.pass()
      return ids() === 61
    })
    assert.deepEqual(await dead('outbox'), [])
  })

  test('a queue that rejects what it has no room for refuses, and nothing is given up', async () => {
    const args = { 'x-max-length': 1, 'x-overflow': 'reject-publish' }
    const { queue } = await channel.assertQueue('', { exclusive: true, arguments: args })
    await channel.bindQueue(queue, exchange, 'order.completed')
    const taken = await listen('reservation.held')
    await write(
      fresh.db,
      subjects(130).map((subject) => completed(subject, 1)),
    )
    const relay = openRelay()
    for (let i = 0; i < 6; i++) {
      await write(fresh.db, [held(randomUUID())])
      await relay.pass()
      await makeDue()
    }
    await until(async () => {
      await relay.pass()
      return taken.length === 6
    })
    const { messages } = await sql<{ message: string }>`select message from job_errors`
      .execute(fresh.db)
      .then(({ rows }) => ({ messages: rows.map(({ message }) => message) }))
    assert.match(messages[0] ?? '', /could not store it \(nack\)/)
    assert.deepEqual(await dead('outbox'), [])
    await channel.deleteQueue(queue)
    const later = await listen('order.completed')
    await until(async () => {
      await makeDue()
      await relay.pass()
      return (await asides()).length === 0 && later.length >= 128
    })
  })

  test('a type that may go unheard counts as relayed', async () => {
    const [subject = ''] = subjects(1)
    await write(fresh.db, [held(subject)])
    const relay = openRelay({ unheard: 'reservation.held' })
    await relay.drain()
    assert.deepEqual(await asides(), [])
    assert.equal(await relayed(), 1)
  })

  const relayed = async () => {
    const { rows } = await sql<{ n: number }>`
      select sum(relayed)::int as n from outbox_cursors`.execute(fresh.db)
    return rows[0]?.n
  }

  test('an event that is too large is refused by name, ours or the broker’s limit', async () => {
    const taken = await listen()
    const [large = '', small = ''] = subjects(2)
    const wide = { ...order, event_name: 'x'.repeat(5000) }
    await write(fresh.db, [
      { ...completed(large, 1), data: wide } as ReturnType<typeof completed>,
      completed(small, 1),
    ])
    const relay = openRelay({ sizeMax: 4096 })
    await relay.drain()
    await until(() => taken.length === 1)
    assert.equal(taken[0]?.event.subject, small)
    const { rows } = await sql<{ message: string }>`select message from job_errors`.execute(
      fresh.db,
    )
    assert.match(rows.at(-1)?.message ?? '', /it has \d+ bytes, and the broker takes 4096 at most/)
  })

  test('a broker that is killed loses nothing, and order is kept', async () => {
    const queue = 'kept'
    await channel.assertQueue(queue, { durable: true })
    await channel.bindQueue(queue, exchange, '#')
    const relay = openRelay()
    const many = subjects(50)
    await write(
      fresh.db,
      many.map((subject) => held(subject, 1)),
    )
    await relay.pass()
    await rabbit.kill()
    for (let sequence = 2; sequence <= 4; sequence++) {
      await write(
        fresh.db,
        many.map((subject) => held(subject, sequence)),
      )
    }
    await until(() => relay.publisher.away() !== undefined)
    assert.match(relay.publisher.away() ?? '', /^RabbitMQ at 127.0.0.1:\d+: /)
    await relay.pass()
    await rabbit.start()
    await until(async () => {
      await relay.pass()
      return (await relayed()) === 200
    })
    assert.deepEqual(await asides(), [])
    connection = await connect(rabbit.url)
    const again = await connection.createChannel()
    const seen = new Map<string, { subject: string; sequence: number }>()
    for (;;) {
      const message = await again.get(queue, { noAck: true })
      if (message === false) break
      const { id, subject, sequence } = JSON.parse(message.content.toString()) as CloudEvent
      if (!seen.has(id)) seen.set(id, { subject, sequence: Number(sequence) })
    }
    await again.deleteQueue(queue)
    for (const subject of many) {
      const mine = [...seen.values()].filter((one) => one.subject === subject)
      assert.deepEqual(
        mine.map(({ sequence }) => sequence),
        [1, 2, 3, 4],
      )
    }
  })

  test('says what is wrong, keeps the event, and goes on when it is mended', async () => {
    const [subject = ''] = subjects(1)
    await write(fresh.db, [completed(subject, 1)])
    const wrong = openRelay({ url: rabbit.url.replace('guest:guest', 'guest:hunter2') })
    await until(() => /refuses the user name or the password/.test(wrong.publisher.away() ?? ''))
    assert.doesNotMatch(wrong.publisher.away() ?? '', /hunter2/)
    await wrong.end()
    const tls = openRelay({ url: rabbit.url.replace('amqp:', 'amqps:') })
    await until(() => /TLS failed/.test(tls.publisher.away() ?? ''))
    await tls.end()
    const vhost = openRelay({ url: `${rabbit.url}/nowhere` })
    await until(() => /virtual host/.test(vhost.publisher.away() ?? ''))
    await vhost.end()
    await channel.deleteExchange(exchange)
    await channel.assertExchange(exchange, 'fanout', { durable: true })
    const relay = openRelay()
    await until(() => /of another kind is already there/.test(relay.publisher.away() ?? ''))
    await relay.pass()
    assert.equal(await relayed(), 0)
    await channel.deleteExchange(exchange)
    await channel.assertExchange(exchange, 'topic', { durable: true })
    const taken = await listen()
    await until(async () => {
      await relay.pass()
      return taken.length === 1
    })
  })

  test('waits while the broker blocks publishers', async () => {
    const taken = await listen()
    const [one = '', two = ''] = subjects(2)
    rabbit.control('set_vm_memory_high_watermark', '0.000001')
    try {
      const relay = openRelay()
      await write(fresh.db, [completed(one, 1), completed(two, 1)])
      await until(async () => {
        await relay.pass()
        return /blocks publishers/.test(relay.publisher.away() ?? '')
      })
      rabbit.control('set_vm_memory_high_watermark', '0.6')
      await until(async () => {
        await relay.pass()
        return taken.length === 2
      })
      assert.deepEqual(await asides(), [])
    } finally {
      rabbit.control('set_vm_memory_high_watermark', '0.6')
    }
  })

  test('run from cron it relays as many as it may, and ends', async () => {
    const taken = await listen()
    await write(
      fresh.db,
      subjects(250).map((subject) => completed(subject, 1)),
    )
    const env = { BROKER_URL: rabbit.url }
    const args = ['--limit=100', '--time-limit=55']
    const worker = startWorker('outbox', fresh.url, args, env)
    assert.equal(await exited(worker), 0, worker.output())
    assert.equal(await relayed(), 100)
    const rest = startWorker('outbox', fresh.url, ['--once', '--time-limit=55'], env)
    assert.equal(await exited(rest), 0, rest.output())
    assert.equal(await relayed(), 250)
    await until(() => taken.length === 250)
  })

  test('an exchange that is deleted while an inbox listens is bound again', async () => {
    const queue = `bound-${randomUUID()}`
    const types = ['order.completed'] as const
    const consumer = openConsumer({ url: rabbit.url, log, queue, types, prefetch: 10 })
    const { signal } = new AbortController()
    try {
      await until(() => consumer.away() === undefined)
      await channel.deleteExchange(exchange)
      // The relay makes it anew, without the bindings.
      await channel.assertExchange(exchange, 'topic', { durable: true })
      await until(async () => {
        channel.publish(exchange, 'order.completed', Buffer.from('{}'))
        return (await consumer.take(10, 100, signal)).length > 0
      })
    } finally {
      await consumer.close()
      await channel.deleteQueue(queue)
    }
  })

  const mails = async () => {
    const { rows } = await sql<{ id: string; data: { template: string } }>`
      select id, data from pgboss.job where name = 'email'`.execute(fresh.db)
    return rows
  }
  const send = (body: string | object) =>
    channel.publish(
      exchange,
      'order.completed',
      Buffer.from(typeof body === 'string' ? body : JSON.stringify(body)),
    )
  const waiting = async () => {
    const { messageCount } = await channel.checkQueue('flotilla.inbox')
    return messageCount
  }

  test('outbox and inbox as processes: an order becomes one mail, however often it is sent', async () => {
    await transaction(fresh.db, (tx) => putUser(tx, { userId: 'anna', email: 'anna@example.org' }))
    const env = { BROKER_URL: rabbit.url }
    const inbox = startWorker('inbox', fresh.url, [], env)
    await until(async () => (await bound()) > 0)
    const outbox = startWorker('outbox', fresh.url, [], env)
    const [subject = ''] = subjects(1)
    const event = completed(subject, 1)
    await write(fresh.db, [event, held(randomUUID())])
    await until(async () => (await mails()).length === 1)
    send(toCloudEvent(event))
    send(toCloudEvent(completed(subject, 2)))
    await until(async () => (await mails()).length === 2)
    for (const worker of [inbox, outbox]) worker.process.kill('SIGTERM')
    assert.equal(await exited(inbox), 0, inbox.output())
    assert.equal(await exited(outbox), 0, outbox.output())
    assert.equal(await waiting(), 0)
  })

  const bound = async () => {
    const probe = await connection.createChannel()
    probe.on('error', () => {})
    const found = await probe.checkQueue('flotilla.inbox').catch(() => undefined)
    return found?.consumerCount ?? 0
  }

  test('what cannot be read is buried and never blocks; killed, it does nothing twice', async () => {
    await transaction(fresh.db, (tx) => putUser(tx, { userId: 'anna', email: 'anna@example.org' }))
    const env = { BROKER_URL: rabbit.url, INBOX_BATCH: '10' }
    const inbox = startWorker('inbox', fresh.url, [], env)
    await until(async () => (await bound()) > 0)
    send('{"specversion":')
    send('{"specversion":"1.0","type":"order.eaten"}')
    send('\u0000\u0001')
    const events = Array.from({ length: 200 }, () => toCloudEvent(completed(randomUUID(), 1)))
    for (const event of events) send(event)
    await until(async () => (await mails()).length > 0)
    inbox.process.kill('SIGKILL')
    for (const event of events) send(event)
    const again = startWorker('inbox', fresh.url, [], env)
    await until(async () => (await bound()) > 0 && (await waiting()) === 0)
    await until(async () => (await mails()).length === 200)
    again.process.kill('SIGTERM')
    assert.equal(await exited(again), 0, again.output())
    assert.equal(await waiting(), 0)
    const buried = await dead('inbox')
    assert.deepEqual(buried.map(({ error }) => error.replace(/: the cat.*/, '')).sort(), [
      'the message cannot be read: it is not JSON',
      'the message cannot be read: it is not JSON',
      'the message cannot be read: type "order.eaten" is not known',
    ])
    assert.ok(buried.some(({ data }) => data.text === '{"specversion":'))
    assert.ok(buried.some(({ data }) => data.type === 'order.eaten'))
    assert.ok(buried.some(({ data }) => data.base64 === 'AAE='))
  })
})
