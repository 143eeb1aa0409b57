// Jobs through our runtime beside graphile-worker, BullMQ, Symfony Messenger and pg-boss's own loop, in turn on one machine: bulk insert, no-op
// jobs and jobs of 1 ms, one process and two, and how late a job begins when all is idle; with --full longer, and with a
// million jobs waiting or finished. Usage: fleet bench jobs [--full] [--jobs N] [--rows N] [--rounds N] [--only a,b]
// [--no-analyze]. Exit 1 when a job was lost or ran twice. DATABASE_URL: on that server, in a database of its own.

import { randomBytes } from 'node:crypto'
import { mkdtempSync, rmSync } from 'node:fs'
import { availableParallelism, cpus, loadavg, tmpdir } from 'node:os'
import { join } from 'node:path'
import { parseArgs } from 'node:util'
import pg from 'pg'
import { startEmbedded } from '../db/embedded.ts'
import {
  type Contender,
  entries,
  findSymfony,
  installPeers,
  openContender,
} from './jobs/entries.ts'
import { type Drain, drain, type Sample, trickle } from './jobs/measure.ts'
import { parentOf, startRedis } from './jobs/servers.ts'
import { type Row, tellLatencies, tellRates, tellThroughput } from './jobs/tell.ts'

const { values: options } = parseArgs({
  options: {
    full: { type: 'boolean', default: false },
    jobs: { type: 'string' },
    rows: { type: 'string' },
    rounds: { type: 'string', default: '3' },
    only: { type: 'string' },
    analyze: { type: 'boolean', default: true },
  },
  allowNegative: true,
})
const jobCount = Number(options.jobs ?? (options.full ? 100_000 : 8000))
const deepRows = Number(options.rows ?? (options.full ? 1_000_000 : 0))
const rounds = Number(options.rounds)
const idle = { jobs: options.full ? 300 : 100, gapMs: 20 }

type Scenario = Drain & { title: string; finished?: number }

const plain = { processes: 1, delayMs: 0, jobs: jobCount, deep: 0 }
const scenarios: Scenario[] = [
  { ...plain, title: 'no-op jobs, one process' },
  { ...plain, title: 'no-op jobs, two processes', processes: 2 },
  { ...plain, title: 'jobs of 1 ms, one process', delayMs: 1 },
]
const deep: Scenario[] = [
  { ...plain, title: `no-op jobs, one process, ${deepRows} more waiting`, deep: deepRows },
  { ...plain, title: `no-op jobs, one process, ${deepRows} finished`, finished: deepRows },
]

const folder = mkdtempSync(join(tmpdir(), 'flotilla-bench-'))
const ends: (() => unknown)[] = []
const faults: string[] = []

/** All in turn, so that what the machine does meanwhile meets them alike; every other round backwards. */
async function inTurn<T>(
  contenders: Contender[],
  measure: (contender: Contender) => Promise<T | undefined>,
): Promise<Row<T>[]> {
  const rows = contenders.map((contender) => ({ ...contender, of: [] as T[] }))
  for (let round = 0; round < rounds; round++) {
    for (const row of round % 2 ? rows.toReversed() : rows) {
      await row.driver.call('clear')
      const result = await measure(row)
      if (result !== undefined) row.of.push(result)
      await row.driver.call('clear')
    }
  }
  return rows
}

async function compare(contenders: Contender[], admin: pg.Client): Promise<void> {
  const inserts = await inTurn(contenders, async ({ driver, share }) => {
    const count = jobCount * share
    return count / (await driver.call<number>('insert', count, 0))
  })
  tellRates('bulk insert, 1000 at a time', inserts)
  for (const scenario of deepRows > 0 ? [...scenarios, ...deep] : scenarios) {
    const samples = await inTurn(contenders, (contender) => measure(contender, scenario, admin))
    tellThroughput(`${scenario.title}, ${jobCount} jobs`, samples)
  }
  const rows: Row<number>[] = []
  for (const contender of contenders) {
    const { latencies, faults: found } = await trickle(contender, idle)
    faults.push(...found.map((fault) => `${contender.name}: ${fault}`))
    rows.push({ ...contender, of: latencies })
  }
  tellLatencies(`idle, a job every ${idle.gapMs} ms, ${idle.jobs} jobs`, rows)
}

async function measure(
  contender: Contender,
  scenario: Scenario,
  admin: pg.Client,
): Promise<Sample | undefined> {
  const { name, driver } = contender
  const { finished = 0, deep } = scenario
  if (finished + deep > 0 && contender.share < 1) return undefined
  if (finished > 0 && !(await driver.call<boolean>('insertFinished', finished))) return undefined
  const analyze = async () => options.analyze && admin.query('analyze')
  const sample = await drain(contender, scenario, analyze)
  faults.push(...sample.faults.map((fault) => `${name}, ${scenario.title}: ${fault}`))
  return sample
}

/** A database of our own on the server that is given, else on one of our own. */
async function openPostgres(): Promise<{ url: string; admin: pg.Client }> {
  let server = process.env.DATABASE_URL
  if (!server) {
    const settings = { shared_buffers: '1GB' }
    const embedded = await startEmbedded({ dataDir: folder, settings })
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
  const admin = new pg.Client({ connectionString: url.href })
  await admin.connect()
  ends.push(() => admin.end())
  return { url: url.href, admin }
}

let ending: Promise<void> | undefined

function end(): Promise<void> {
  ending ??= (async () => {
    for (const one of ends.reverse()) await one()
    rmSync(folder, { recursive: true, force: true })
  })()
  return ending
}

// The servers must not outlive a run that is cut short.
for (const signal of ['SIGINT', 'SIGTERM'] as const) {
  process.once(signal, () => void end().finally(() => process.exit(1)))
}
try {
  installPeers()
  const { url, admin } = await openPostgres()
  const redis = await startRedis(folder)
  if (redis) ends.push(redis.stop)
  const { rows } = await admin.query(
    `select current_setting('server_version') as version, current_setting('fsync') as fsync,
      pg_backend_pid() as pid`,
  )
  const { version, fsync, pid } = rows[0]
  const servers = { url, redis, postmaster: parentOf(pid), symfony: findSymfony() }
  console.log(
    `${availableParallelism()} cores (${cpus()[0]?.model ?? 'unknown'}), load ${loadavg()[0]?.toFixed(1)}; ` +
      `Node ${process.version}, Postgres ${version} (fsync ${fsync}), Redis ${redis?.version ?? 'none'} ` +
      `without persistence\njobs of about 100 bytes, ${rounds} rounds in turn, statistics ` +
      `${options.analyze ? 'fresh' : 'as they come'}`,
  )
  const only = options.only?.split(',')
  const contenders: Contender[] = []
  for (const entry of entries.filter(({ name }) => only?.includes(name) ?? true)) {
    if (entry.redis && !redis) {
      console.log(`${entry.name}: not at hand, there is no redis-server on the PATH`)
      continue
    }
    if (entry.php && !servers.symfony) {
      console.log(
        `${entry.name}: not at hand, there is no php on the PATH or nothing of it for php`,
      )
      continue
    }
    const contender = await openContender(entry, servers)
    ends.push(contender.driver.stop)
    contenders.push(contender)
  }
  await compare(contenders, admin)
} finally {
  await end()
}
console.log(`\n${faults.length === 0 ? 'every job ran, each once' : faults.join('\n')}`)
if (faults.length > 0) process.exitCode = 1
