// A broker that is away for minutes under a steady load: how fast the API answers before, meanwhile and after, how large
// the workers grow, how long the backlog takes to drain, and whether every event arrived, those of a subject in their
// order. Usage: fleet bench outage [--minutes 10] [--events 500]. Exit 1 when an event was lost or out of order, or a mail
// is missing or there twice. Needs rabbitmq-server.

import { execFileSync } from 'node:child_process'
import { randomUUID } from 'node:crypto'
import { mkdtempSync, rmSync } from 'node:fs'
import { availableParallelism, cpus, loadavg, tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { parseArgs } from 'node:util'
import { connect } from 'amqplib'
import { sql } from 'kysely'
import { startEmbedded } from '../db/embedded.ts'
import { createEvent } from '../db/events.ts'
import { migrate } from '../db/migrate.ts'
import { openDatabase } from '../db/open.ts'
import { readOutboxLag } from '../db/outbox.ts'
import type { Db } from '../db/schema.ts'
import { transaction } from '../db/transaction.ts'
import { putUser } from '../db/users.ts'
import type { CloudEvent } from '../domain/events.ts'
import { launchRabbit, type RabbitServer, withoutRabbit } from '../test/servers/rabbitmq.ts'
import { type Buyers, startBuyers } from './outage/buyers.ts'
import { startWorkers, type Workers } from './outage/workers.ts'
import { noteResult } from './report/results.ts'

const exchange = 'flotilla.events'
const witness = 'bench.witness'
const aroundSeconds = 30
const sampleMs = 1000

const { values: options } = parseArgs({
  options: {
    minutes: { type: 'string', default: '10' },
    events: { type: 'string', default: '500' },
  },
})
const outageSeconds = Number(options.minutes) * 60
const eventsPerSecond = Number(options.events)

const ends: (() => unknown)[] = []
const faults: string[] = []

async function run(): Promise<void> {
  const dataDir = mkdtempSync(join(tmpdir(), 'flotilla-bench-'))
  ends.push(() => rmSync(dataDir, { recursive: true, force: true }))
  const embedded = await startEmbedded({ dataDir, settings: { shared_buffers: '512MB' } })
  ends.push(embedded.stop)
  const { url } = embedded
  await migrate({ url })
  const { db, close } = openDatabase({ url, name: 'bench', poolMax: 3, statementMaxMs: 0 })
  ends.push(close)
  const rabbit = await launchRabbit()
  ends.push(rabbit.stop)
  await listen(rabbit.url)
  const workers = await startWorkers({ url, broker: rabbit.url, dataDir })
  ends.push(workers.stop)
  const eventId = await makeEvent(db)
  const userId = randomUUID()
  await transaction(db, (tx) => putUser(tx, { userId, email: 'buyer@example.com' }))
  const buyers = startBuyers({ port: workers.apiPort, eventId, userId, eventsPerSecond })
  ends.push(buyers.stop)
  await storm(db, rabbit, workers, buyers)
}

/** A queue that gets every event, and that nobody reads before the end. */
async function listen(url: string): Promise<void> {
  const connection = await connect(url)
  const channel = await connection.createChannel()
  await channel.assertExchange(exchange, 'topic', { durable: true })
  await channel.assertQueue(witness, { durable: true })
  await channel.bindQueue(witness, exchange, '#')
  await connection.close()
}

const makeEvent = (db: Db): Promise<string> =>
  transaction(db, (tx) =>
    createEvent(tx, {
      name: 'Final',
      starts_at: '2030-07-01T18:00:00Z',
      waiting_room: false,
      sections: [{ name: 'Field', capacity: 5_000_000, price_minor: 5000, currency: 'EUR' }],
    }),
  )

async function storm(
  db: Db,
  rabbit: RabbitServer,
  workers: Workers,
  buyers: Buyers,
): Promise<void> {
  const phase = async (name: string, isOver: (seconds: number) => Promise<boolean>) => {
    const begun = performance.now()
    buyers.take()
    const peaks = new Map<string, number>()
    let rows = 0
    for (let n = 1; ; n++) {
      await sleep(sampleMs)
      for (const [worker, pid] of workers.pids) {
        peaks.set(worker, Math.max(peaks.get(worker) ?? 0, residentMb(pid)))
      }
      const lag = (await readOutboxLag(db)).rows
      rows = Math.max(rows, lag)
      const seconds = (performance.now() - begun) / 1000
      if (n % 60 === 0) console.log(`${name}: ${seconds.toFixed(0)} s, ${lag} events wait`)
      if (await isOver(seconds)) break
    }
    tell(name, (performance.now() - begun) / 1000, buyers, rows, peaks)
  }
  tellHead(workers)
  await phase('broker up', async (seconds) => seconds >= aroundSeconds)
  await rabbit.kill()
  await phase('broker down', async (seconds) => seconds >= outageSeconds)
  await rabbit.start()
  await phase('draining', async () => (await readOutboxLag(db)).rows < 2 * eventsPerSecond)
  await phase('broker up again', async (seconds) => seconds >= aroundSeconds)
  await buyers.stop()
  notePhases()
  await prove(db, rabbit)
}

const residentMb = (pid: number): number =>
  Number(execFileSync('ps', ['-o', 'rss=', '-p', String(pid)], { encoding: 'utf8' })) / 1024

const phases: { name: string; p99: number; mb: number }[] = []

function notePhases(): void {
  const title = `a broker away for ${outageSeconds} s at ${eventsPerSecond} events/s`
  noteResult({
    title: `${title}: writes, p99`,
    unit: 'ms',
    better: 'less',
    figures: phases.map(({ name, p99 }) => ({ name, value: p99 })),
  })
  noteResult({
    title: `${title}: resident, all workers`,
    unit: 'MB',
    better: 'less',
    figures: phases.map(({ name, mb }) => ({ name, value: mb })),
  })
}

function tellHead({ pids }: Workers): void {
  const [cpu] = cpus()
  console.log(
    `${availableParallelism()} cores (${cpu?.model}), load ${loadavg()[0]?.toFixed(1)}; ` +
      `about ${eventsPerSecond} events/s of holds and confirmed orders; broker away for ${outageSeconds} s\n`,
  )
  const names = [...pids.keys()].map((name) => `${name} MB`.padStart(10)).join('')
  console.log(`${'phase'.padEnd(16)}    time  writes/s  failed  p50 ms  p99 ms   waiting${names}`)
}

function tell(
  name: string,
  seconds: number,
  buyers: Buyers,
  waiting: number,
  peaks: ReadonlyMap<string, number>,
): void {
  const { latencies, faults: found } = buyers.take()
  const failed = [...found.values()].reduce((sum, count) => sum + count, 0)
  const at = (share: number) =>
    (latencies[Math.min(latencies.length - 1, Math.floor(latencies.length * share))] ?? 0).toFixed(
      1,
    )
  console.log(
    [
      name.padEnd(16),
      `${seconds.toFixed(0)} s`.padStart(8),
      (latencies.length / seconds).toFixed(0).padStart(10),
      String(failed).padStart(8),
      at(0.5).padStart(8),
      at(0.99).padStart(8),
      (waiting >= 160_000 ? '> 160000' : String(waiting)).padStart(10),
      ...[...peaks.values()].map((mb) => mb.toFixed(0).padStart(10)),
    ].join(''),
  )
  phases.push({ name, p99: Number(at(0.99)), mb: [...peaks.values()].reduce((a, b) => a + b, 0) })
  for (const [what, count] of found) faults.push(`${name}: ${count} × ${what}`)
}

/** What the witness has against the outbox, and the orders' mails. */
async function prove(db: Db, rabbit: RabbitServer): Promise<void> {
  await until(async () => (await readOutboxLag(db)).rows === 0)
  const { rows } = await sql<{ id: string }>`select message_id as id from outbox`.execute(db)
  const missing = new Set(rows.map(({ id }) => id))
  const last = new Map<string, number>()
  let repeated = 0
  const connection = await connect(rabbit.url)
  const channel = await connection.createChannel()
  const { messageCount } = await channel.checkQueue(witness)
  let read = 0
  const take = (content: Buffer) => {
    const { id, subject, sequence } = JSON.parse(content.toString()) as CloudEvent
    if (!missing.delete(id)) repeated++
    const before = last.get(subject) ?? 0
    if (Number(sequence) > before + 1) faults.push(`${subject}: ${sequence} after ${before}`)
    last.set(subject, Math.max(before, Number(sequence)))
    read++
  }
  await channel.consume(witness, (message) => message && take(message.content), { noAck: true })
  await until(async () => read >= messageCount)
  await connection.close()
  if (missing.size > 0) faults.push(`${missing.size} events did not arrive`)
  const mails = async () => {
    const found = await sql<{ orders: number; mails: number; each: number }>`
      select (select count(*)::int from orders) as orders, count(*)::int as mails,
        count(distinct data->>'job_id')::int as each
      from pgboss.job where name = 'email'`.execute(db)
    return found.rows[0]!
  }
  await until(async () => (await mails()).mails >= 2 * (await mails()).orders)
  const made = await mails()
  if (made.mails !== 2 * made.orders || made.each !== made.mails) {
    faults.push(`${made.orders} orders have ${made.mails} mails, ${made.each} different ones`)
  }
  console.log(
    `\n${rows.length} events committed, ${rows.length - missing.size} arrived, ${repeated} of them more than once; ` +
      `${made.orders} orders, ${made.mails} mails to send`,
  )
}

async function until(isSo: () => Promise<boolean>): Promise<void> {
  const endsAt = performance.now() + 300_000
  while (!(await isSo())) {
    if (performance.now() > endsAt) throw new Error('what should have happened did not, for 5 min')
    await sleep(100)
  }
}

async function end(): Promise<void> {
  for (const one of ends.splice(0).reverse()) await one()
}

const reason = withoutRabbit()
if (reason) {
  console.error(reason)
  process.exit(1)
}
for (const signal of ['SIGINT', 'SIGTERM'] as const) {
  process.once(signal, () => end().finally(() => process.exit(130)))
}
try {
  await run()
} catch (error) {
  faults.push((error as Error).stack ?? String(error))
} finally {
  await end()
}
for (const fault of faults.slice(0, 20)) console.error(fault)
if (faults.length === 0) console.log('every event arrived, in order, and none was acted on twice')
process.exitCode = faults.length === 0 ? 0 : 1
