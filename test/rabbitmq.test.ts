// The relay and the inbox over a real RabbitMQ: what is committed arrives, in order, and takes effect once; what the
// broker refuses holds up its own subject only; a broker that is away costs nothing but time.

import assert from 'node:assert/strict'
import { after, afterEach, before, beforeEach, describe, test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { type Channel, type ChannelModel, type ConsumeMessage, connect } from 'amqplib'
import { sql } from 'kysely'
import type { CloudEvent } from '../domain/events.ts'
import { exchange } from '../workers/amqp.ts'
import { createLog } from '../workers/log.ts'
import { openPublisher } from '../workers/outbox/rabbitmq.ts'
import { remoteRelayPass } from '../workers/outbox/relay.ts'
import { type TestDatabase, testDatabase } from './database.ts'
import { completed, held, order, subjects, write } from './events.ts'
import { type RabbitServer, startRabbit, withoutRabbit } from './servers/rabbitmq.ts'
import { until } from './worker.ts'

const all = Number.POSITIVE_INFINITY
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
    const log = createLog('test', 'silent')
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
})
