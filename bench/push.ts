// Pushes to many devices over a stand-in of FCM whose answers take 50 ms, by two worker processes: requests a second and
// the fullest second as the server sees them, devices that were sent to twice, and how fast a push of the priority queue
// overtakes a backlog of as many. Usage: fleet bench push [--devices N] [--rate N] [--ramp S]. Exit 1 when a device was
// missed or had two, or a second had more than the rate and a twentieth. DATABASE_URL: on that server, in a database of its own.

import { type ChildProcess, spawn } from 'node:child_process'
import { randomBytes, randomUUID } from 'node:crypto'
import { once } from 'node:events'
import { mkdtempSync, rmSync } from 'node:fs'
import { availableParallelism, cpus, loadavg, tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { parseArgs } from 'node:util'
import pg from 'pg'
import { startEmbedded } from '../db/embedded.ts'
import { type Jobs, openJobs } from '../db/jobs.ts'
import { migrate } from '../db/migrate.ts'
import { openDatabase } from '../db/open.ts'
import type { Db } from '../db/schema.ts'
import { type PushJob, targetsMax } from '../domain/pushes.ts'
import { type Fcm, launchFcm } from '../test/servers/fcm.ts'
import { noteResult } from './report/results.ts'

const { values: options } = parseArgs({
  options: {
    devices: { type: 'string', default: '100000' },
    rate: { type: 'string', default: '1000' },
    ramp: { type: 'string', default: '0' },
  },
})
const devices = Number(options.devices)
const perSecond = Number(options.rate)
const latencyMs = 50
const urgentPushes = 50

const ends: (() => unknown)[] = []
const faults: string[] = []

async function end(): Promise<void> {
  for (const one of ends.splice(0).reverse()) await one()
}

async function openPostgres(): Promise<string> {
  let server = process.env.DATABASE_URL
  if (!server) {
    const dataDir = mkdtempSync(join(tmpdir(), 'flotilla-bench-'))
    ends.push(() => rmSync(dataDir, { recursive: true, force: true }))
    const embedded = await startEmbedded({ dataDir, settings: { shared_buffers: '256MB' } })
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

function startWorker(url: string, fcm: Fcm): ChildProcess {
  const child = spawn(
    process.execPath,
    [join(import.meta.dirname, '..', 'workers', 'push', 'main.ts')],
    {
      env: {
        ...process.env,
        DATABASE_URL: url,
        METRICS_PORT: '0',
        LOG_LEVEL: 'warn',
        PUSH_PROVIDER: 'fcm',
        FCM_URL: fcm.url,
        FCM_CREDENTIALS: fcm.credentials,
        PUSH_RATE: String(perSecond),
        PUSH_RAMP: String(options.ramp),
      },
      stdio: ['ignore', 'inherit', 'inherit'],
    },
  )
  process.once('exit', () => child.kill('SIGKILL'))
  return child
}

async function stop(child: ChildProcess): Promise<void> {
  const gone = once(child, 'exit')
  child.kill('SIGTERM')
  await gone
}

const pushTo = (fcm_tokens: string[], template: PushJob['template'] = 'ticket_ready'): PushJob => ({
  job_id: randomUUID(),
  type: 'push',
  template,
  user_id: 'anna',
  fcm_tokens,
  payload: {
    title: 'Your tickets are here',
    body: 'Opening night: open the app to see them.',
    data: { order_id: randomUUID() },
  },
  created_at: new Date().toISOString(),
})

/** Calls of 500 devices each. */
async function fill(db: Db, jobs: Jobs, count: number, prefix: string): Promise<void> {
  for (let from = 0; from < count; from += targetsMax) {
    const tokens = Array.from(
      { length: Math.min(targetsMax, count - from) },
      (_, i) => `${prefix}-${from + i}-${'x'.repeat(140)}`,
    )
    const data = pushTo(tokens)
    await jobs.send(db, 'push', [{ id: data.job_id, data }])
  }
}

async function sustain(db: Db, jobs: Jobs, fcm: Fcm): Promise<void> {
  const begun = performance.now()
  await fill(db, jobs, devices, 'device')
  while ((await fcm.stats('none')).ok < devices) await sleep(200)
  const { requests, secondMax, spanSeconds, repeatedOk, opened, streamsMax } =
    await fcm.stats('none')
  const seconds = ((performance.now() - begun) / 1000).toFixed(1)
  const rate = Math.round(requests / spanSeconds)
  console.log(
    `${devices} devices in calls of ${targetsMax}, ${perSecond}/s, answers after ${latencyMs} ms, 2 workers:`,
  )
  console.log(`  at the server ${rate}/s, ${secondMax} in the fullest second, ${seconds} s in all`)
  console.log(`  ${repeatedOk} devices twice; ${opened} sessions, ${streamsMax} streams at most`)
  noteResult({
    title: `pushes a second at FCM, ${perSecond} allowed`,
    unit: 'requests/s',
    better: 'more',
    figures: [{ name: 'sustained', value: rate, target: { value: 0.95 * perSecond } }],
  })
  noteResult({
    title: 'pushes in the fullest second at FCM',
    unit: 'requests',
    better: 'less',
    figures: [{ name: 'any second', value: secondMax, target: { value: perSecond } }],
  })
  if (repeatedOk > 0) faults.push(`${repeatedOk} devices were sent to twice`)
  if (requests !== devices) faults.push(`${requests} requests for ${devices} devices`)
  // What left apart may arrive together.
  if (secondMax > 1.05 * perSecond) faults.push(`${secondMax} requests in one second`)
}

/** From the job of one urgent push to its request at the server, while the backlog is sent. */
async function overtake(db: Db, jobs: Jobs, fcm: Fcm): Promise<void> {
  await fcm.forget()
  await fill(db, jobs, devices, 'backlog')
  while ((await fcm.stats('none')).requests < Math.min(perSecond, devices / 10)) await sleep(50)
  const waits: number[] = []
  for (let i = 0; i < urgentPushes; i++) {
    const device = `urgent-${i}`
    const data = pushTo([device], 'queue_your_turn')
    const sentAt = Date.now()
    await jobs.send(db, 'push:priority', [{ id: data.job_id, data }])
    let arrivedAt: number | undefined
    while (arrivedAt === undefined) {
      await sleep(20)
      arrivedAt = (await fcm.stats(device)).arrivals[device]?.[0]
    }
    waits.push(arrivedAt - sentAt)
  }
  const { requests } = await fcm.stats('none')
  const left = devices + urgentPushes - requests
  const sorted = waits.toSorted((a, b) => a - b)
  const at = (q: number) => sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * q))]
  console.log(
    `${urgentPushes} priority pushes over a backlog of ${devices} (${left} left at the end):`,
  )
  console.log(
    `  from the job to the server p50 ${at(0.5)} ms, p95 ${at(0.95)} ms, most ${at(1)} ms`,
  )
  noteResult({
    title: `a priority push over ${devices} that wait`,
    unit: 'ms',
    better: 'less',
    figures: [
      { name: 'p50', value: at(0.5) ?? Number.NaN },
      { name: 'most', value: at(1) ?? Number.NaN, target: { value: 1000 } },
    ],
  })
  if ((at(1) ?? 0) > 1000) faults.push(`a priority push took ${at(1)} ms`)
}

for (const signal of ['SIGINT', 'SIGTERM'] as const) {
  process.once(signal, () => void end().finally(() => process.exit(1)))
}
try {
  const url = await openPostgres()
  const fcm = await launchFcm(['--latency', String(latencyMs)])
  ends.push(fcm.stop)
  const database = openDatabase({ url, name: 'bench', poolMax: 3, statementMaxMs: 0 })
  ends.push(database.close)
  const jobs = openJobs(database)
  ends.push(jobs.close)
  const load = loadavg()[0]?.toFixed(1)
  console.log(
    `${availableParallelism()} cores (${cpus()[0]?.model ?? 'unknown'}), load ${load}; Node ${process.version}`,
  )
  const two = [1, 2].map(() => startWorker(url, fcm))
  await sustain(database.db, jobs, fcm)
  await overtake(database.db, jobs, fcm)
  await Promise.all(two.map(stop))
} finally {
  await end()
}
console.log(faults.length === 0 ? 'every device once, within the rate' : faults.join('\n'))
if (faults.length > 0) process.exitCode = 1
