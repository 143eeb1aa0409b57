// The e-mail workers against a stand-in of Mailgun, each a process of its own: how many mails a second they sustain, how
// many arrived in the fullest second, and that each arrived once, all as seen at the server. The second between any two
// arrivals counts, not only those of a clock. Usage: fleet bench email [--jobs N] [--workers N] [--rate N] [--latency MS]
// [--redis]. Exit 1 when a mail is missing or came twice, less than 98 % of the rate was sustained, or a second held more
// than the bucket allows (its tokens and what is refilled meanwhile: twice the rate; on a machine with time to spare it is
// the rate itself). DATABASE_URL: on that server, in a database of its own.

import { type ChildProcess, spawn } from 'node:child_process'
import { randomBytes, randomUUID } from 'node:crypto'
import { once } from 'node:events'
import { mkdtempSync, rmSync } from 'node:fs'
import { availableParallelism, cpus, loadavg, tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { parseArgs } from 'node:util'
import { sql } from 'kysely'
import pg from 'pg'
import { table } from '../cli/table.ts'
import { startEmbedded } from '../db/embedded.ts'
import { type Jobs, openJobs } from '../db/jobs.ts'
import { migrate } from '../db/migrate.ts'
import { openDatabase } from '../db/open.ts'
import type { Db } from '../db/schema.ts'
import type { EmailJob } from '../domain/emails.ts'
import {
  apiKey,
  domain,
  type Mailgun,
  type Message,
  startMailgun,
} from '../test/servers/mailgun.ts'
import { cpuMsOf, startRedis } from './jobs/servers.ts'
import { noteResult } from './report/results.ts'

const text = (fallback: string) => ({ type: 'string', default: fallback }) as const
const { values: options } = parseArgs({
  options: {
    jobs: text('20000'),
    workers: text('4'),
    rate: text('100'),
    latency: text('100'),
    redis: { type: 'boolean', default: false },
  },
})
const [jobCount, workerCount, rate] = [options.jobs, options.workers, options.rate].map(Number) as [
  number,
  number,
  number,
]

const ends: (() => unknown)[] = []
let ending: Promise<void> | undefined
function end(): Promise<void> {
  ending ??= (async () => {
    for (const one of ends.reverse()) await one()
  })()
  return ending
}

let postgresPid: number | undefined

async function openPostgres(dataDir: string): Promise<string> {
  let server = process.env.DATABASE_URL
  if (!server) {
    const embedded = await startEmbedded({ dataDir })
    ends.push(embedded.stop)
    postgresPid = embedded.pid
    server = embedded.url
  }
  const maker = new pg.Client({ connectionString: server })
  await maker.connect()
  ends.push(() => maker.end())
  const name = `flotilla_bench_${randomBytes(4).toString('hex')}`
  await maker.query(`create database ${name}`)
  ends.push(() => maker.query(`drop database ${name} with (force)`))
  const url = new URL(server)
  url.pathname = `/${name}`
  await migrate({ url: url.href })
  return url.href
}

function mailJob(): EmailJob {
  return {
    job_id: randomUUID(),
    type: 'email',
    template: 'ticket_delivery',
    recipient: `buyer-${randomBytes(4).toString('hex')}@example.org`,
    payload: {
      order_id: randomUUID(),
      event_name: 'Opening night',
      starts_at: '2030-05-01T19:00:00.000Z',
      section: 'Stalls',
      quantity: 2,
      seats: ['Stalls-1-1', 'Stalls-1-2'],
      total: { amount_minor: 9000, currency: 'EUR' },
      tickets: [1, 2].map((seat) => ({
        ticket_id: randomUUID(),
        seat: `Stalls-1-${seat}`,
        code: randomBytes(6).toString('hex'),
      })),
    },
    created_at: new Date().toISOString(),
    attempts: 0,
    max_attempts: 3,
  }
}

async function enqueue(db: Db, jobs: Jobs): Promise<Set<string>> {
  const ids = new Set<string>()
  for (let left = jobCount; left > 0; left -= 1000) {
    const some = Array.from({ length: Math.min(left, 1000) }, mailJob)
    for (const { job_id } of some) ids.add(job_id)
    await jobs.send(
      db,
      'email',
      some.map((data) => ({ id: data.job_id, data })),
    )
  }
  return ids
}

function startWorker(env: Record<string, string>): ChildProcess {
  const main = join(import.meta.dirname, '..', 'workers', 'email', 'main.ts')
  const child = spawn(process.execPath, [main], {
    env: { PATH: process.env.PATH, METRICS_PORT: '0', LOG_LEVEL: 'warn', ...env },
    stdio: ['ignore', 'inherit', 'inherit'],
  })
  process.once('exit', () => child.kill('SIGKILL'))
  return child
}

async function stop(child: ChildProcess): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return
  const gone = once(child, 'exit')
  child.kill('SIGTERM')
  await gone
}

const left = async (db: Db): Promise<number> => {
  const { rows } = await sql<{ n: number }>`
    select (select count(*) from pgboss.job where name = 'email')
      + (select count(*) from claims where queue = 'email') as n`.execute(db)
  return Number(rows[0]?.n)
}

async function untilSent(db: Db, server: Mailgun): Promise<void> {
  const everyMs = Math.max(2000, Math.min(10_000, jobCount))
  for (;;) {
    await sleep(everyMs)
    if ((await left(db)) === 0) return
    if (process.stdout.isTTY) {
      const { messages } = await server.seen()
      process.stdout.write(`\r\x1b[K${messages.length} of ${jobCount} mails arrived`)
    }
  }
}

/** The most arrivals within any `ms`, by a window that begins at each of them. */
function fullest(times: readonly number[], ms: number): number {
  let [first, most] = [0, 0]
  for (let last = 0; last < times.length; last++) {
    while ((times[last] as number) - (times[first] as number) >= ms) first++
    most = Math.max(most, last - first + 1)
  }
  return most
}

/** Over all but the first and the last second, in which the workers start and run out. */
function sustained(times: readonly number[]): number {
  const [from, to] = [(times[0] ?? 0) + 1000, (times.at(-1) ?? 0) - 1000]
  const within = times.filter((at) => at >= from && at < to)
  return (within.length * 1000) / Math.max(1, to - from)
}

const load = () => loadavg()[0]?.toFixed(1)

function report(messages: readonly Message[], ids: ReadonlySet<string>, cpu: string): string[] {
  const times = messages.map(({ at }) => at).sort((a, b) => a - b)
  const arrived = messages.map(({ fields }) => String(fields['v:flotilla-job']))
  const twice = arrived.length - new Set(arrived).size
  const missing = [...ids].filter((id) => !new Set(arrived).has(id)).length
  const perSecond = sustained(times)
  const most = fullest(times, 1000)
  const gaps = times.slice(1).map((at, i) => at - (times[i] as number))
  const sorted = gaps.toSorted((a, b) => a - b)
  const at = (q: number) => (sorted[Math.floor(sorted.length * q)] ?? 0).toFixed(1)
  const rows = [
    ['mails', String(jobCount)],
    ['workers', String(workerCount)],
    ['rate allowed', `${rate}/s`],
    ['sustained', `${perSecond.toFixed(2)}/s`],
    ['most in any second', String(most)],
    ['most in any 100 ms', String(fullest(times, 100))],
    ['between two', `p1 ${at(0.01)} ms, p50 ${at(0.5)} ms, p99 ${at(0.99)} ms`],
    ['processor time a mail', cpu],
    ['load of the machine', `${load()}`],
    ['arrived twice', String(twice)],
    ['missing', String(missing)],
  ]
  console.log(`\n${table(['seen at the server', ''], rows).join('\n')}`)
  noteResult({
    title: `mails a second at the provider, ${rate} allowed`,
    unit: 'mails/s',
    better: 'more',
    figures: [{ name: 'sustained', value: perSecond, target: { value: 0.98 * rate } }],
  })
  noteResult({
    title: 'mails in the fullest second at the provider',
    unit: 'mails',
    better: 'less',
    figures: [{ name: 'any sliding second', value: most, target: { value: 2 * rate } }],
  })
  return [
    ...(twice > 0 ? [`${twice} mails arrived twice`] : []),
    ...(missing > 0 ? [`${missing} mails did not arrive`] : []),
    ...(most > 2 * rate ? [`a second held ${most} mails`] : []),
    ...(perSecond < 0.98 * rate ? [`${perSecond.toFixed(1)} a second were sustained`] : []),
  ]
}

for (const signal of ['SIGINT', 'SIGTERM'] as const) {
  process.once(signal, () => void end().finally(() => process.exit(1)))
}
let faults: string[] = []
try {
  const dataDir = mkdtempSync(join(tmpdir(), 'flotilla-bench-'))
  ends.push(() => rmSync(dataDir, { recursive: true, force: true }))
  const url = await openPostgres(dataDir)
  const server = await startMailgun()
  ends.push(server.stop)
  await server.mood({ latencyMs: Number(options.latency) })
  const redis = options.redis ? await startRedis(dataDir) : undefined
  if (redis) ends.push(redis.stop)
  else if (options.redis) throw new Error('--redis needs redis-server on the PATH')
  const database = openDatabase({ url, name: 'bench', poolMax: 2, statementMaxMs: 0 })
  ends.push(database.close)
  const jobs = openJobs(database)
  ends.push(jobs.close)
  console.log(
    `${availableParallelism()} cores (${cpus()[0]?.model ?? 'unknown'}), load ${load()}; Node ${process.version}; rate in ${redis ? 'Redis' : 'Postgres'}`,
  )
  const ids = await enqueue(database.db, jobs)
  const env = {
    DATABASE_URL: url,
    FLEET_DATA_DIR: dataDir,
    EMAIL_PROVIDER: 'mailgun',
    EMAIL_RATE: String(rate),
    MAILGUN_URL: server.url,
    MAILGUN_DOMAIN: domain,
    MAILGUN_API_KEY: apiKey,
    ...(redis && { REDIS_URL: redis.url }),
  }
  const workers = Array.from({ length: workerCount }, () => startWorker(env))
  const stopWorkers = () => Promise.all(workers.map(stop))
  ends.push(stopWorkers)
  const postgresMs = postgresPid === undefined ? 0 : cpuMsOf(postgresPid)
  await untilSent(database.db, server)
  const cpuMs = workers.reduce((sum, { pid }) => sum + cpuMsOf(Number(pid)), 0)
  const cpu = [
    `${(cpuMs / jobCount).toFixed(1)} ms of the workers`,
    ...(postgresPid === undefined
      ? []
      : [`${((cpuMsOf(postgresPid) - postgresMs) / jobCount).toFixed(1)} ms of Postgres`]),
  ]
  await stopWorkers()
  faults = report((await server.seen()).messages, ids, cpu.join(', '))
} finally {
  await end()
}
console.log(faults.length === 0 ? '\nall arrived once, at the full rate' : `\n${faults.join('\n')}`)
if (faults.length > 0) process.exitCode = 1
