// Holds of two seats on one hot event over HTTP, each with its idempotency record and outbox row: ours beside a plain
// transaction-a-request implementation, same tables, same load, in turn. Usage: fleet bench holds [--seconds 6]
// [--connections 16,64,256]. Postgres is a private one with fsync on, or DATABASE_URL's. Ends with the ratios.

import { spawn } from 'node:child_process'
import { randomUUID } from 'node:crypto'
import { chmodSync, existsSync, mkdtempSync, realpathSync, rmSync } from 'node:fs'
import { createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { parseArgs } from 'node:util'
import { sql } from 'kysely'
import { startEmbedded } from '../db/embedded.ts'
import { analyzeSeats, createEvent } from '../db/events.ts'
import { auditLedger } from '../db/ledger.ts'
import { migrate } from '../db/migrate.ts'
import { openDatabase } from '../db/open.ts'
import { transaction } from '../db/transaction.ts'
import { type LoadResult, load, percentile } from './holds/load.ts'
import { noteResult } from './report/results.ts'

const { values } = parseArgs({
  options: {
    seconds: { type: 'string', default: '6' },
    connections: { type: 'string', default: '16,64,256' },
  },
})
const seconds = Number(values.seconds)
const root = join(import.meta.dirname, '..')
const implementations = { plain: 'bench/holds/plain.ts', flotilla: 'workers/http/main.ts' }
type Implementation = keyof typeof implementations

const freePort = () =>
  new Promise<number>((resolve) => {
    const server = createServer().listen(0, '127.0.0.1', () => {
      const { port } = server.address() as { port: number }
      server.close(() => resolve(port))
    })
  })

async function serve(implementation: Implementation, databaseUrl: string, dataDir: string) {
  const port = await freePort()
  const child = spawn(process.execPath, [join(root, implementations[implementation])], {
    stdio: ['ignore', 'ignore', 'inherit'],
    env: {
      ...process.env,
      DATABASE_URL: databaseUrl,
      FLEET_DATA_DIR: dataDir,
      HTTP_PORT: String(port),
      METRICS_PORT: '0',
      LOG_LEVEL: 'warn',
      RATE_LIMIT_USER_PER_MINUTE: '0',
      RATE_LIMIT_GLOBAL_PER_MINUTE: '0',
      REDIS_URL: '',
    },
  })
  for (let i = 0; i < 200; i++) {
    const up = await fetch(`http://127.0.0.1:${port}/`).catch(() => undefined)
    if (up) break
    await sleep(50)
  }
  const stop = () =>
    new Promise<void>((resolve) => {
      child.once('exit', () => resolve())
      child.kill('SIGTERM')
    })
  return { port, stop }
}

/** A hold of two seats by a new user under a new key. */
function request(eventId: string, port: number): string {
  const body = JSON.stringify({ event_id: eventId, quantity: 2 })
  return (
    `POST /api/v1/reservations HTTP/1.1\r\nHost: 127.0.0.1:${port}\r\n` +
    `X-Mock-User-Id: ${randomUUID()}\r\nIdempotency-Key: ${randomUUID().replaceAll('-', '')}\r\n` +
    `Content-Type: application/json\r\nContent-Length: ${body.length}\r\n\r\n${body}`
  )
}

const folder = mkdtempSync(join(tmpdir(), 'flotilla-bench-'))
// As root the server runs as another user, who has to get in.
chmodSync(folder, 0o711)
const embedded = process.env.DATABASE_URL
  ? undefined
  : await startEmbedded({ dataDir: folder, settings: { shared_buffers: '1GB' } })
const databaseUrl = process.env.DATABASE_URL ?? embedded!.url
await migrate({ url: databaseUrl })
const { db, close } = openDatabase({ url: databaseUrl, name: 'bench', statementMaxMs: 0 })

/** Where the folder cannot be reached by the server's user, it has a link to the data instead. */
function removeData(): void {
  const data = join(folder, 'postgres')
  if (existsSync(data)) rmSync(realpathSync(data), { recursive: true, force: true })
  rmSync(folder, { recursive: true, force: true })
}
for (const signal of ['SIGINT', 'SIGTERM'] as const) {
  process.once(signal, async () => {
    await embedded?.stop()
    removeData()
    process.exit(130)
  })
}

function noteHolds(connections: number, results: ReadonlyMap<Implementation, LoadResult>): void {
  const figures = [...results].map(([name, result]) => ({ name, peer: name === 'plain', result }))
  const title = `holds of 2 seats of one event, ${connections} connections`
  noteResult({
    title,
    unit: 'holds/s',
    better: 'more',
    figures: figures.map(({ name, peer, result }) => ({ name, peer, value: rate(result) })),
  })
  noteResult({
    title: `${title}, p99`,
    unit: 'ms',
    better: 'less',
    figures: figures.map(({ name, peer, result }) => ({
      name,
      peer,
      value: percentile(result.latencies, 0.99),
    })),
  })
}

const rate = (result: LoadResult) => (result.statuses.get(201) ?? 0) / result.seconds

async function measure(implementation: Implementation, connections: number): Promise<LoadResult> {
  const sections = [
    { name: 'A', rows: 1000, seats_per_row: 100, price_minor: 5000, currency: 'EUR' },
  ]
  const eventId = await transaction(db, (tx) =>
    createEvent(tx, {
      name: 'Final',
      starts_at: '2027-07-01T18:00:00Z',
      waiting_room: false,
      sections,
    }),
  )
  await analyzeSeats(db)
  const { port, stop } = await serve(implementation, databaseUrl, folder)
  const run = (duration: number) =>
    load({ port, connections, seconds: duration, request: () => request(eventId, port) })
  await run(1)
  const result = await run(seconds)
  await stop()
  return result
}

console.log(
  `holds of 2 seats on one event, ${seconds} s each after 1 s of warming up, rate limits off\n`,
)
console.log('connections  implementation   holds/s  p50 ms  p99 ms  other answers')
const ratios: string[] = []
try {
  for (const connections of values.connections.split(',').map(Number)) {
    const results = new Map<Implementation, LoadResult>()
    for (const implementation of Object.keys(implementations) as Implementation[]) {
      const result = await measure(implementation, connections)
      results.set(implementation, result)
      const others = [...result.statuses].filter(([status]) => status !== 201)
      console.log(
        [
          String(connections).padStart(11),
          implementation.padEnd(14),
          rate(result).toFixed(0).padStart(9),
          percentile(result.latencies, 0.5).toFixed(1).padStart(7),
          percentile(result.latencies, 0.99).toFixed(1).padStart(7),
          ` ${others.map(([status, n]) => `${status}: ${n}`).join(', ') || 'none'}`,
        ].join('  '),
      )
    }
    noteHolds(connections, results)
    const ratio = rate(results.get('flotilla')!) / rate(results.get('plain')!)
    ratios.push(`${connections} connections: ${ratio.toFixed(1)}×`)
  }
  // Thousands of rows that nobody has counted yet mislead the audit's plans.
  await sql`analyze`.execute(db)
  const faults = await auditLedger(db)
  console.log(`\nours / plain at ${ratios.join(', ')}`)
  console.log(`ledger: ${faults.length === 0 ? 'balances' : faults.join('; ')}`)
  if (faults.length > 0) process.exitCode = 1
} finally {
  await close()
  await embedded?.stop()
  removeData()
}
