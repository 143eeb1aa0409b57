// The relay to RabbitMQ beside a bare amqplib publisher that waits for its confirms every 1000, in turn on one machine: from
// the commit of many events to the last one confirmed; the same with a second relay, whose order is checked; how late one
// event arrives when all is idle; with --full the same with a million events waiting. Usage: fleet bench outbox [--full]
// [--events N] [--rounds N]. Exit 1 when an event was lost or out of order. DATABASE_URL: on that server, in a database of
// its own. Needs rabbitmq-server.

import { type ChildProcess, spawn } from 'node:child_process'
import { randomBytes, randomUUID } from 'node:crypto'
import { once } from 'node:events'
import { mkdtempSync, rmSync } from 'node:fs'
import { availableParallelism, cpus, loadavg, tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { parseArgs } from 'node:util'
import { type ConfirmChannel, connect } from 'amqplib'
import { sql } from 'kysely'
import pg from 'pg'
import { startEmbedded } from '../db/embedded.ts'
import { migrate } from '../db/migrate.ts'
import { openDatabase } from '../db/open.ts'
import { writeEvents } from '../db/outbox.ts'
import type { Db } from '../db/schema.ts'
import { transaction } from '../db/transaction.ts'
import type { CloudEvent, NewEvent } from '../domain/events.ts'
import { launchRabbit, withoutRabbit } from '../test/servers/rabbitmq.ts'
import { type Figure, noteResult } from './report/results.ts'

const exchange = 'flotilla.events'
const queue = 'bench'
const bodyBytes = 620

const { values: options } = parseArgs({
  options: {
    full: { type: 'boolean', default: false },
    events: { type: 'string' },
    rounds: { type: 'string', default: '3' },
  },
})
const eventCount = Number(options.events ?? (options.full ? 200_000 : 20_000))
const rounds = Number(options.rounds)
const idle = { events: options.full ? 500 : 100, gapMs: 40 }
const deepRows = options.full ? 1_000_000 : 0

const ends: (() => unknown)[] = []
const faults: string[] = []
let ending: Promise<void> | undefined

function end(): Promise<void> {
  ending ??= (async () => {
    for (const one of ends.reverse()) await one()
  })()
  return ending
}

async function openPostgres(): Promise<string> {
  let server = process.env.DATABASE_URL
  if (!server) {
    const dataDir = mkdtempSync(join(tmpdir(), 'flotilla-bench-'))
    ends.push(() => rmSync(dataDir, { recursive: true, force: true }))
    const embedded = await startEmbedded({ dataDir, settings: { shared_buffers: '512MB' } })
    ends.push(embedded.stop)
    server = embedded.url
  }
  const maker = new pg.Client({ connectionString: server })
  await maker.connect()
  ends.push(() => maker.end())
  const database = `flotilla_bench_${randomBytes(4).toString('hex')}`
  await maker.query(`create database ${database}`)
  ends.push(() => maker.query(`drop database ${database} with (force)`))
  const url = new URL(server)
  url.pathname = `/${database}`
  await migrate({ url: url.href })
  return url.href
}

/** Holds of as many reservations; or the `sequence`th event of known ones. */
const eventOf = (subject: string, sequence: number): NewEvent => ({
  messageId: randomUUID(),
  type: 'reservation.held',
  subject,
  sequence,
  requestId: randomUUID(),
  data: {
    reservation_id: subject,
    event_id: '019b0000-0000-7000-8000-000000000000',
    user_id: 'user-1',
    section: 'Stalls',
    quantity: 2,
    seats: ['Stalls-1-1', 'Stalls-1-2'],
    expires_at: '2030-01-01T19:00:00.000Z',
  },
})

/** Committed together, each subject's events in their order. */
async function commit(db: Db, count: number, perSubject = 1): Promise<void> {
  const subjects = Array.from({ length: Math.ceil(count / perSubject) }, () => randomUUID())
  await transaction(db, async (tx) => {
    for (let sequence = 1; sequence <= perSubject; sequence++) {
      for (let i = 0; i < subjects.length; i += 5000) {
        const some = subjects.slice(i, i + 5000)
        await writeEvents(
          tx,
          some.map((subject) => eventOf(subject, sequence)),
        )
      }
    }
  })
}

async function relayed(db: Db): Promise<number> {
  const { rows } = await sql<{ n: number }>`
    select sum(relayed)::int as n from outbox_cursors`.execute(db)
  return rows[0]?.n ?? 0
}

async function until(isSo: () => Promise<boolean>): Promise<void> {
  while (!(await isSo())) await sleep(5)
}

/** Until so many more are confirmed and settled. @returns events a second */
async function measure(db: Db, count: number, from: number): Promise<number> {
  const begun = performance.now()
  await until(async () => (await relayed(db)) >= from + count)
  return (count * 1000) / (performance.now() - begun)
}

async function publishBare(channel: ConfirmChannel): Promise<number> {
  const begun = performance.now()
  const body = randomBytes(bodyBytes / 2).toString('hex')
  for (let sent = 0; sent < eventCount; sent += 1000) {
    for (let i = 0; i < Math.min(1000, eventCount - sent); i++) {
      const messageId = randomUUID()
      const properties = { messageId, persistent: true, mandatory: true }
      channel.publish(exchange, 'reservation.held', Buffer.from(body), properties)
    }
    await channel.waitForConfirms()
  }
  return (eventCount * 1000) / (performance.now() - begun)
}

function startRelay(url: string, broker: string): ChildProcess {
  const main = join(import.meta.dirname, '..', 'workers', 'outbox', 'main.ts')
  const env = { ...process.env, DATABASE_URL: url, BROKER_URL: broker, METRICS_PORT: '0' }
  const child = spawn(process.execPath, [main], {
    env: { ...env, LOG_LEVEL: 'warn' },
    stdio: ['ignore', 'inherit', 'inherit'],
  })
  process.once('exit', () => child.kill('SIGKILL'))
  return child
}

async function stop(child: ChildProcess): Promise<void> {
  const gone = once(child, 'exit')
  child.kill('SIGTERM')
  await gone
}

const holders = async (db: Db): Promise<number> => {
  const { rows } = await sql`
    select leased_by from outbox_cursors where leased_by is not null
    group by 1 having count(*) >= 16 / (select count(*) from outbox_relays)`.execute(db)
  return rows.length
}

const quantile = (sorted: readonly number[], q: number): number =>
  sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * q))] ?? Number.NaN
const median = (values: readonly number[]): number =>
  quantile(
    values.toSorted((a, b) => a - b),
    0.5,
  )
const rate = (perSecond: number): string => `${Math.round(perSecond)}/s`.padStart(9)

async function compare(url: string, broker: string, db: Db): Promise<void> {
  const connection = await connect(broker)
  ends.push(() => connection.close().catch(() => {}))
  const channel = await connection.createConfirmChannel()
  await channel.assertExchange(exchange, 'topic', { durable: true })
  await channel.assertQueue(queue, { durable: true })
  await channel.bindQueue(queue, exchange, '#')
  const arrived = async (count: number, what: string) => {
    const { messageCount } = await channel.checkQueue(queue)
    if (messageCount < count) faults.push(`${what}: ${count - messageCount} events did not arrive`)
    await channel.purgeQueue(queue)
  }

  const first = startRelay(url, broker)
  await until(async () => (await holders(db)) === 1)
  const [bare, ours]: [number[], number[]] = [[], []]
  for (let round = 0; round < rounds; round++) {
    bare.push(await publishBare(channel))
    await arrived(eventCount, 'bare')
    const from = await relayed(db)
    await commit(db, eventCount)
    ours.push(await measure(db, eventCount, from))
    await arrived(eventCount, 'the relay')
  }
  const peer = median(bare)
  const figures: Figure[] = []
  const tell = (what: string, perSecond: number) => {
    console.log(`${what.padEnd(46)}${rate(perSecond)}  ${(perSecond / peer).toFixed(2)}`)
    const isPeer = figures.length === 0
    figures.push({
      name: what,
      value: perSecond,
      peer: isPeer,
      target: isPeer ? undefined : { ratio: 0.8 },
    })
  }
  console.log(`\n${eventCount} events from commit to confirm, median of ${rounds} rounds`)
  tell('bare amqplib, confirms every 1000', peer)
  tell('the relay', median(ours))

  const second = startRelay(url, broker)
  await until(async () => (await holders(db)) === 2)
  const from = await relayed(db)
  await commit(db, eventCount, 10)
  tell('two relays, 10 events a subject', await measure(db, eventCount, from))
  await checkOrder(channel, eventCount)
  await stop(second)

  if (deepRows === 0) noteRates(figures)
  if (deepRows > 0) {
    await stop(first)
    for (let rows = 0; rows < deepRows; rows += 100_000) await commit(db, 100_000)
    const before = await relayed(db)
    const relay = startRelay(url, broker)
    await measure(db, 5000, before)
    tell(`${deepRows} waiting`, await measure(db, eventCount, await relayed(db)))
    noteRates(figures)
    await until(async () => (await relayed(db)) >= before + deepRows)
    await arrived(deepRows, `${deepRows} waiting`)
    await trickle(db, channel)
    await stop(relay)
  } else {
    await until(async () => (await holders(db)) === 1)
    await trickle(db, channel)
    await stop(first)
  }
}

function noteRates(figures: Figure[]): void {
  const title = 'events from commit to confirmed at RabbitMQ'
  noteResult({ title, unit: 'events/s', better: 'more', figures })
}

async function checkOrder(channel: ConfirmChannel, count: number): Promise<void> {
  const last = new Map<string, number>()
  let seen = 0
  const { consumerTag } = await channel.consume(
    queue,
    (message) => {
      if (!message) return
      const { subject, sequence } = JSON.parse(message.content.toString()) as CloudEvent
      const before = last.get(subject) ?? 0
      seen++
      if (Number(sequence) > before + 1) faults.push(`${subject}: ${sequence} after ${before}`)
      last.set(subject, Math.max(before, Number(sequence)))
    },
    { noAck: true },
  )
  await until(async () => seen >= count)
  await channel.cancel(consumerTag)
}

/** From the commit of one event to its arrival, when nothing else goes on. */
async function trickle(db: Db, channel: ConfirmChannel): Promise<void> {
  const committed = new Map<string, number>()
  const latencies: number[] = []
  const { consumerTag } = await channel.consume(
    queue,
    (message) => {
      const at = message && committed.get(message.properties.messageId)
      if (at) latencies.push(performance.now() - at)
    },
    { noAck: true },
  )
  for (let i = 0; i < idle.events; i++) {
    const event = eventOf(randomUUID(), 1)
    // Set before the commit, so that none arrives unknown, and again after it.
    committed.set(event.messageId, performance.now())
    await transaction(db, (tx) => writeEvents(tx, [event]))
    if (latencies.length <= i) committed.set(event.messageId, performance.now())
    await sleep(idle.gapMs)
  }
  await until(async () => latencies.length >= idle.events)
  await channel.cancel(consumerTag)
  const sorted = latencies.toSorted((a, b) => a - b)
  const at = (q: number) => `${quantile(sorted, q).toFixed(1)} ms`
  noteResult({
    title: 'one event while all is idle, from commit to the consumer',
    unit: 'ms',
    better: 'less',
    figures: [
      { name: 'p50', value: quantile(sorted, 0.5) },
      { name: 'p99', value: quantile(sorted, 0.99), target: { value: 50 } },
    ],
  })
  console.log(
    `\nidle, an event every ${idle.gapMs} ms, from commit to the consumer: ` +
      `p50 ${at(0.5)}, p95 ${at(0.95)}, p99 ${at(0.99)}`,
  )
}

for (const signal of ['SIGINT', 'SIGTERM'] as const) {
  process.once(signal, () => void end().finally(() => process.exit(1)))
}
try {
  const without = withoutRabbit()
  if (without) throw new Error(without)
  const url = await openPostgres()
  const rabbit = await launchRabbit()
  ends.push(rabbit.stop)
  const database = openDatabase({ url, name: 'bench', poolMax: 3, statementMaxMs: 0 })
  ends.push(database.close)
  const load = loadavg()[0]?.toFixed(1)
  console.log(
    `${availableParallelism()} cores (${cpus()[0]?.model ?? 'unknown'}), load ${load}; Node ${process.version}`,
  )
  await compare(url, rabbit.url, database.db)
} finally {
  await end()
}
console.log(faults.length === 0 ? '\nevery event arrived, in order' : `\n${faults.join('\n')}`)
if (faults.length > 0) process.exitCode = 1
