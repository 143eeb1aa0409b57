// Jobs through our runtime beside graphile-worker, BullMQ and pg-boss's own loop, in turn on the same machine: no-op jobs
// and jobs of 1 ms, one process and two, bulk insert, and how late a job begins when all is idle; with --full also with a
// million jobs waiting or finished. Usage: fleet bench jobs [--full] [--jobs N] [--rows N] [--rounds N] [--only a,b]
// [--no-analyze]. Exit 1 when a job was lost or ran twice. DATABASE_URL: on that server, in a database of its own.

import { execFileSync } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { availableParallelism, cpus, loadavg, tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { parseArgs } from 'node:util'
import pg from 'pg'
import { startEmbedded } from '../db/embedded.ts'
import { type Child, startChild } from './jobs/child.ts'
import type { Report } from './jobs/contender.ts'
import { cpuMsOf, startRedis } from './jobs/servers.ts'

const { values: options } = parseArgs({
  options: {
    full: { type: 'boolean', default: false },
    quick: { type: 'boolean', default: true },
    jobs: { type: 'string' },
    rows: { type: 'string' },
    rounds: { type: 'string', default: '3' },
    only: { type: 'string' },
    analyze: { type: 'boolean', default: true },
  },
  allowNegative: true,
})
const jobCount = Number(options.jobs ?? (options.full ? 100_000 : 20_000))
const deepRows = Number(options.rows ?? (options.full ? 1_000_000 : 0))
const rounds = Number(options.rounds)
const drainMaxMs = 300_000
const here = import.meta.dirname

type Name =
  | 'flotilla'
  | 'flotilla batch'
  | 'flotilla kept'
  | 'graphile-worker'
  | 'BullMQ'
  | 'pg-boss'
type Entry = { file: string; env?: Record<string, string>; peer?: true; redis?: true }

const ours = (queue: string, pass: string): Entry => ({
  file: 'jobs/flotilla.ts',
  env: { BENCH_QUEUE: queue, BENCH_PASS: pass },
})
/** `kept`: its finished jobs stay for a day, as pg-boss's do. The peers we are measured by keep none. */
const entries: Record<Name, Entry> = {
  flotilla: ours('inbox', 'job'),
  'flotilla batch': ours('inbox', 'batch'),
  'flotilla kept': ours('email', 'job'),
  'graphile-worker': { file: 'peers/graphile.js', peer: true },
  BullMQ: { file: 'peers/bullmq.js', peer: true, redis: true },
  'pg-boss': { file: 'jobs/pgboss.ts', peer: true },
}

type Sample = {
  perSecond: number
  /** Processor time a job, µs. */
  workerCpu: number
  serverCpu: number
  peakBytes: number
}

type Contender = { name: Name; driver: Child; startWorker(): Promise<Child>; serverPid: number }

const faults: string[] = []
let admin: pg.Client

/** One run: the jobs are there, so many processes begin, until none is left. */
async function drain(
  { name, driver, startWorker, serverPid }: Contender,
  { processes, delayMs, jobs, total }: Scenario & { total: number },
): Promise<Sample> {
  if (options.analyze) await admin.query('analyze')
  const workers = await Promise.all(Array.from({ length: processes }, startWorker))
  const serverBefore = cpuMsOf(serverPid)
  await Promise.all(workers.map((worker) => worker.call('work', { total, delayMs })))
  const firstAt = await untilHandled(workers, jobs)
  // What is drained out of a deep table leaves the rest there.
  while (firstAt && jobs === total && (await driver.call<number>('remaining')) > 0) await sleep(2)
  const seconds = Number(process.hrtime.bigint() - BigInt(firstAt ?? 0)) / 1e9
  const serverCpuMs = cpuMsOf(serverPid) - serverBefore
  const reports = await Promise.all(workers.map((worker) => worker.call<Report>('report')))
  await Promise.all(workers.map((worker) => worker.stop()))
  if (!firstAt) faults.push(`${name}: ${jobs} jobs were not done within ${drainMaxMs / 1000} s`)
  const handled = countRuns(name, reports, total, jobs === total)
  return {
    perSecond: handled / seconds,
    workerCpu: (sum(reports.map(({ cpuMs }) => cpuMs)) * 1000) / handled,
    serverCpu: (serverCpuMs * 1000) / handled,
    peakBytes: Math.max(...reports.map(({ peakBytes }) => peakBytes)),
  }
}

/** @returns when the first job began; undefined when it took too long */
async function untilHandled(workers: Child[], jobs: number): Promise<string | undefined> {
  const giveUpAt = performance.now() + drainMaxMs
  while (performance.now() < giveUpAt) {
    type Progress = { handled: number; firstAt: string }
    const told = await Promise.all(workers.map((worker) => worker.call<Progress>('progress')))
    if (sum(told.map(({ handled }) => handled)) >= jobs) {
      return told.map(({ firstAt }) => firstAt).sort((a, b) => (BigInt(a) < BigInt(b) ? -1 : 1))[0]
    }
    await sleep(5)
  }
  return undefined
}

const sum = (numbers: number[]): number => numbers.reduce((a, b) => a + b, 0)

/** Every job once: none lost, none twice. @returns how many ran */
function countRuns(name: Name, reports: Report[], total: number, all: boolean): number {
  const runs = new Uint8Array(total)
  for (const report of reports) {
    Buffer.from(report.runs, 'base64').forEach((count, n) => {
      runs[n] = runs[n]! + count
    })
  }
  const lost = all ? runs.filter((count) => count === 0).length : 0
  const twice = runs.filter((count) => count > 1).length
  if (lost > 0 || twice > 0) faults.push(`${name}: ${lost} jobs lost, ${twice} run twice`)
  return runs.reduce((a, b) => a + b, 0)
}

type Scenario = { title: string; processes: number; delayMs: number; jobs: number; fill?: Fill }
type Fill = 'waiting' | 'finished'

const scenarios: Scenario[] = [
  { title: 'no-op jobs, one process', processes: 1, delayMs: 0, jobs: jobCount },
  { title: 'no-op jobs, two processes', processes: 2, delayMs: 0, jobs: jobCount },
  { title: 'jobs of 1 ms, one process', processes: 1, delayMs: 1, jobs: jobCount },
]
const fills: Fill[] = ['waiting', 'finished']
const deep: Scenario[] = fills.map((fill) => ({
  title: `no-op jobs, one process, ${deepRows} jobs ${fill}`,
  processes: 1,
  delayMs: 0,
  jobs: jobCount,
  fill,
}))

/** All contenders in turn, so that what the machine does meanwhile meets them alike; every other round backwards. */
async function compare(contenders: Contender[], scenario: Scenario): Promise<void> {
  const samples = new Map<Name, Sample[]>(contenders.map(({ name }) => [name, []]))
  const skipped = new Set<Name>()
  for (let round = 0; round < rounds; round++) {
    for (const contender of round % 2 ? contenders.toReversed() : contenders) {
      const { name, driver } = contender
      if (skipped.has(name)) continue
      await driver.call('clear')
      const isDeep = scenario.fill === 'waiting'
      const total = scenario.jobs + (isDeep ? deepRows : 0)
      const isFinished = scenario.fill === 'finished'
      if (isFinished && !(await driver.call<boolean>('insertFinished', deepRows))) {
        skipped.add(name)
        continue
      }
      await driver.call('insert', total, 0)
      samples.get(name)?.push(await drain(contender, { ...scenario, total }))
      await driver.call('clear')
    }
  }
  tellThroughput(scenario.title, samples)
}

function tellThroughput(title: string, samples: Map<Name, Sample[]>): void {
  const rates = new Map([...samples].map(([name, of]) => [name, of.map((one) => one.perSecond)]))
  console.log(`\n${title}: jobs/s, median (lowest to highest) of ${rounds}`)
  const better = betterPeer(rates, Math.max)
  for (const [name, of] of samples) {
    if (of.length === 0) {
      console.log(`  ${name.padEnd(16)} keeps no finished jobs`)
      continue
    }
    const perSecond = rates.get(name) ?? []
    const spread = `(${whole(Math.min(...perSecond))} to ${whole(Math.max(...perSecond))})`
    const cpu = `worker ${whole(middle(of, 'workerCpu'))}, server ${whole(middle(of, 'serverCpu'))} µs/job`
    const memory = `${whole(middle(of, 'peakBytes') / 2 ** 20)} MB`
    const ratio = entries[name].peer ? '' : `  ${ratioTo(better, median(perSecond))}`
    console.log(
      `  ${name.padEnd(16)}${whole(median(perSecond)).padStart(8)} ${spread.padEnd(20)}` +
        `${cpu}, ${memory}${ratio}`,
    )
  }
}

const middle = (of: Sample[], field: keyof Sample) => median(of.map((sample) => sample[field]))
const median = (numbers: number[]): number =>
  numbers.toSorted((a, b) => a - b)[numbers.length >> 1] ?? Number.NaN
const whole = (number: number): string => number.toFixed(0)

type Better = { name: string; figure: number } | undefined

function betterPeer(of: Map<Name, number[]>, best: (...numbers: number[]) => number): Better {
  const peers = [...of]
    .filter(([name, numbers]) => entries[name].peer && numbers.length > 0)
    .map(([name, numbers]) => ({ name, figure: median(numbers) }))
  const figure = best(...peers.map((peer) => peer.figure))
  return peers.find((peer) => peer.figure === figure)
}

const ratioTo = (better: Better, figure: number): string =>
  better ? `${(figure / better.figure).toFixed(2)} × ${better.name}` : ''

async function compareInserts(contenders: Contender[]): Promise<void> {
  const rates = new Map<Name, number[]>(contenders.map(({ name }) => [name, []]))
  for (let round = 0; round < rounds; round++) {
    for (const { name, driver } of round % 2 ? contenders.toReversed() : contenders) {
      await driver.call('clear')
      rates.get(name)?.push(jobCount / (await driver.call<number>('insert', jobCount, 0)))
      await driver.call('clear')
    }
  }
  console.log(`\nbulk insert, 1000 at a time: jobs/s, median of ${rounds}`)
  const better = betterPeer(rates, Math.max)
  for (const [name, of] of rates) {
    const ratio = entries[name].peer ? '' : `  ${ratioTo(better, median(of))}`
    console.log(`  ${name.padEnd(16)}${whole(median(of)).padStart(8)}${ratio}`)
  }
}

const idle = { jobs: options.full ? 300 : 100, gapMs: 20 }

async function compareLatencies(contenders: Contender[]): Promise<void> {
  const latencies = new Map<Name, number[]>()
  for (const { name, driver, startWorker } of contenders) {
    await driver.call('clear')
    const worker = await startWorker()
    await worker.call('work', { total: idle.jobs, delayMs: 0 })
    await sleep(1000)
    await driver.call('trickle', idle.jobs, idle.gapMs)
    await untilHandled([worker], idle.jobs)
    const report = await worker.call<Report>('report')
    countRuns(name, [report], idle.jobs, true)
    latencies.set(
      name,
      report.latencies.sort((a, b) => a - b),
    )
    await worker.stop()
  }
  console.log(`\nidle, one job every ${idle.gapMs} ms, ${idle.jobs} jobs: sent until begun, ms`)
  const better = betterPeer(latencies, Math.min)
  for (const [name, of] of latencies) {
    const at = (share: number) => (of[Math.floor(of.length * share)] ?? Number.NaN).toFixed(1)
    const ratio = entries[name].peer ? '' : `  ${ratioTo(better, median(of))}`
    console.log(
      `  ${name.padEnd(16)}p50 ${at(0.5).padStart(6)}  p99 ${at(0.99).padStart(6)}${ratio}`,
    )
  }
}

/** Into bench/peers/node_modules, so that the fleet's own install does without them. */
function installPeers(): void {
  const folder = join(here, 'peers')
  const wanted = JSON.parse(readFileSync(join(folder, 'package.json'), 'utf8')).dependencies
  const isThere = Object.entries(wanted).every(([name, version]) => {
    const path = join(folder, 'node_modules', name, 'package.json')
    return existsSync(path) && JSON.parse(readFileSync(path, 'utf8')).version === version
  })
  if (isThere) return
  console.log('installing the peers into bench/peers')
  execFileSync('npm', ['ci', '--ignore-scripts', '--prefix', folder], { stdio: 'inherit' })
}

/** The server's processes hang on its postmaster. */
async function postmasterOf(client: pg.Client): Promise<number> {
  try {
    const { rows } = await client.query('select pg_backend_pid() as pid')
    return Number(
      readFileSync(`/proc/${rows[0].pid}/stat`, 'utf8').split(') ').pop()?.split(' ')[1],
    )
  } catch {
    return 0
  }
}

const folder = mkdtempSync(join(tmpdir(), 'flotilla-bench-'))
const ends: (() => Promise<unknown>)[] = []
try {
  installPeers()
  const embedded = process.env.DATABASE_URL
    ? undefined
    : await startEmbedded({ dataDir: folder, settings: { shared_buffers: '1GB' } })
  if (embedded) ends.push(() => embedded.stop())
  const server = new URL(process.env.DATABASE_URL ?? embedded!.url)
  const maker = new pg.Client({ connectionString: server.href })
  await maker.connect()
  ends.push(() => maker.end())
  const database = `flotilla_bench_${randomBytes(4).toString('hex')}`
  await maker.query(`create database ${database}`)
  ends.push(() => maker.query(`drop database ${database} with (force)`))
  const url = new URL(server.href)
  url.pathname = `/${database}`
  admin = new pg.Client({ connectionString: url.href })
  await admin.connect()
  ends.push(() => admin.end())
  const redis = await startRedis(folder)
  if (redis) ends.push(() => redis.stop())
  const { rows } = await admin.query('show server_version')
  const postmaster = await postmasterOf(admin)

  const only = options.only?.split(',')
  const contenders: Contender[] = []
  for (const [name, { file, env, redis: needsRedis }] of Object.entries(entries)) {
    if (only && !only.includes(name)) continue
    if (needsRedis && !redis) {
      console.log(`${name}: not at hand, there is no redis-server on the PATH`)
      continue
    }
    const all = { ...env, DATABASE_URL: url.href, REDIS_URL: redis?.url ?? '' }
    const path = join(here, file)
    const driver = await startChild(path, { ...all, BENCH_ROLE: 'driver' })
    ends.push(() => driver.stop())
    await driver.call('install')
    contenders.push({
      name: name as Name,
      driver,
      startWorker: () => startChild(path, { ...all, BENCH_ROLE: 'worker' }),
      serverPid: needsRedis ? (redis?.pid ?? 0) : postmaster,
    })
  }

  const model = cpus()[0]?.model ?? 'unknown'
  console.log(
    `${availableParallelism()} cores (${model}), load ${loadavg()[0]?.toFixed(1)}, Node ${process.version}, ` +
      `Postgres ${rows[0].server_version} with fsync, Redis ${redis?.version ?? 'none'} without persistence\n` +
      `${jobCount} jobs of about 100 bytes a run; statistics ${options.analyze ? 'fresh' : 'as they come'}`,
  )
  await compareInserts(contenders)
  for (const scenario of scenarios) await compare(contenders, scenario)
  await compareLatencies(contenders)
  if (deepRows > 0) for (const scenario of deep) await compare(contenders, scenario)
  console.log('\nSymfony Messenger: not at hand, it needs PHP')
} finally {
  for (const end of ends.reverse()) await end().catch(() => {})
  rmSync(folder, { recursive: true, force: true })
}
console.log(faults.length === 0 ? 'every job ran, each once' : faults.join('\n'))
if (faults.length > 0) process.exitCode = 1
