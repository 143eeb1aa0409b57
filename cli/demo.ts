// fleet demo: the main job, end to end, on an embedded Postgres of its own: thousands of buyers fight for a hall over
// real HTTP, and the tables are asked whether all went right. Exits 0 only if they say so. The mails it wrote stay
// under .fleet/demo/mail until the next demo.

import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { readdirSync, readFileSync, rmSync } from 'node:fs'
import { createServer } from 'node:net'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { findEmbedded } from '../db/embedded.ts'
import { readQueueStats } from '../db/jobStats.ts'
import { auditLedger } from '../db/ledger.ts'
import { openDatabase } from '../db/open.ts'
import { readRelayed, readSales } from '../db/sales.ts'
import type { Db } from '../db/schema.ts'
import { type Buyers, createBuyers } from './demo/buyers.ts'
import { runSale, type Sale, type Stage } from './demo/sale.ts'
import { type Context, dataDirOf, Exit } from './program.ts'
import { root } from './workers.ts'

/** Short, so that nobody waits a quarter of an hour for an unpaid hold. */
const ttlSeconds = 15

export async function demo(context: Context): Promise<void> {
  const dataDir = join(dataDirOf(context.env), 'demo')
  const started = performance.now()
  const stage = createStage(context, started)
  stage.step('starting the fleet')
  const port = await freePort()
  const fleet = startFleet(context, dataDir, port)
  context.onStop(() => fleet.child.kill('SIGINT'))
  try {
    await Promise.race([untilUp(port), fleet.gone])
    const { db, close } = openDatabase({ url: (await findEmbedded(dataDir))!, name: 'demo' })
    const buyers = createBuyers(port)
    try {
      const secret = readFileSync(join(dataDir, 'secrets', 'INTERNAL_AUTH_SECRET'), 'utf8').trim()
      await clearMails(db, dataDir)
      const story = playOut(buyers, db, secret, dataDir, stage)
      const { sale, mails } = await Promise.race([story, fleet.gone])
      const faults = await report(context, db, sale, mails, dataDir, started)
      if (faults.length > 0) throw new Exit('failed', `not right:\n  ${faults.join('\n  ')}`)
    } finally {
      buyers.close()
      await close()
    }
  } finally {
    fleet.child.kill('SIGINT')
    await fleet.ended
  }
}

async function playOut(buyers: Buyers, db: Db, secret: string, dataDir: string, stage: Stage) {
  const sale = await runSale(buyers, db, secret, stage)
  stage.step('the relay and the mails catch up (100 mails a second at most)')
  const mails = await untilQuiet(db, dataDir, stage)
  return { sale, mails }
}

function startFleet(context: Context, dataDir: string, port: number) {
  const { DATABASE_URL: _url, REDIS_URL: _redis, BROKER_URL: _broker, ...env } = context.env
  const child: ChildProcess = spawn(process.execPath, [join(root, 'cli', 'fleet.js'), 'up'], {
    stdio: ['ignore', 'pipe', 'pipe'],
    detached: true,
    env: {
      ...env,
      FLEET_DATA_DIR: dataDir,
      HTTP_PORT: String(port),
      WAITINGROOM_PORT: '0',
      METRICS_PORT: '0',
      LOG_LEVEL: 'warn',
      NODE_ENV: 'development',
      AUTH_MODE: 'mock',
      EMAIL_PROVIDER: 'log',
      RESERVATION_TTL: String(ttlSeconds),
      EXPIRY_INTERVAL: '1',
      RATE_LIMIT_USER_PER_MINUTE: '0',
      RATE_LIMIT_GLOBAL_PER_MINUTE: '0',
    },
  })
  let said = ''
  for (const stream of [child.stdout, child.stderr]) {
    stream?.setEncoding('utf8').on('data', (text: string) => {
      said = (said + text).slice(-4000)
    })
  }
  const ended = once(child, 'close')
  const gone = ended.then((): never => {
    throw new Exit('failed', `the fleet ended:\n${said}`)
  })
  gone.catch(() => {})
  return { child, ended, gone }
}

async function untilUp(port: number): Promise<void> {
  for (;;) {
    const answer = await fetch(`http://127.0.0.1:${port}/api/v1/events/none`).catch(() => undefined)
    if (answer?.status === 404) return
    await sleep(100)
  }
}

/** Every event relayed, every job done. Gives the number of mails written. */
async function untilQuiet(db: Db, dataDir: string, stage: Stage): Promise<number> {
  for (;;) {
    const { written, relayed } = await readRelayed(db)
    const queues = await readQueueStats(db)
    const waitingIn = (some: typeof queues) =>
      some.reduce((sum, { ready, delayed, active }) => sum + ready + delayed + active, 0)
    const waiting = waitingIn(queues)
    const toSend = waitingIn(queues.filter(({ queue }) => queue === 'email'))
    const mails = mailsIn(dataDir).length
    stage.progress(
      `${relayed} of ${written} events relayed, ${mails} mails written, ${toSend} mails to send`,
    )
    if (written === relayed && waiting === 0) return mails
    await sleep(250)
  }
}

/** What an earlier demo left behind, the jobs it did not finish included. */
async function clearMails(db: Db, dataDir: string): Promise<void> {
  await untilQuiet(db, dataDir, { step: () => {}, progress: () => {} })
  for (const name of mailsIn(dataDir)) rmSync(join(dataDir, 'mail', name), { force: true })
}

function mailsIn(dataDir: string): string[] {
  try {
    return readdirSync(join(dataDir, 'mail')).filter((name) => name.endsWith('.eml'))
  } catch {
    return []
  }
}

/** Prints the table and gives what is wrong with it. */
async function report(
  context: Context,
  db: Db,
  sale: Sale,
  mails: number,
  dataDir: string,
  started: number,
): Promise<string[]> {
  const sales = await readSales(db, sale.eventId)
  const { written, relayed } = await readRelayed(db)
  const failed = (await readQueueStats(db)).reduce((sum, queue) => sum + queue.failed, 0)
  const ledger = await auditLedger(db)
  const oversold = Math.max(0, sales.sold + sales.held - sales.capacity)
  const { latencies, buyers, seconds } = sale.rush
  const p = (share: number) =>
    ((latencies[Math.floor(latencies.length * share)] ?? 0) / 1000).toFixed(1)
  const rows: [string, string | number][] = [
    ['seats', sales.capacity],
    ['asked for', `${sale.asked} by ${buyers} buyers at once`],
    ['sold', `${sales.sold} in ${sales.confirmed} orders`],
    ['held', sales.held],
    [
      'given back',
      `${sales.given_back} seats (${sales.expired} holds expired, ${sales.cancelled} cancelled)`,
    ],
    ['resold', `${sales.resold} of them`],
    ['oversold', oversold],
    ['requests repeated', sale.repeated],
    ['commands run twice', sale.twice.length],
    ['events', `${written} written, ${relayed} relayed`],
    ['mails', `${mails}, two an order, for ${sales.confirmed} orders`],
    ['jobs failed', failed],
    ['the rush', `${seconds.toFixed(1)} s, half answered in ${p(0.5)} s, 99 % in ${p(0.99)} s`],
    ['ledger', ledger.length === 0 ? 'balances' : `${ledger.length} rules broken`],
  ]
  context.say('')
  for (const [name, value] of rows) context.say(`  ${name.padEnd(20)}${value}`)
  context.say('')
  context.say(`  the mails are in ${join(dataDir, 'mail')}`)
  context.say(`  it took ${Math.round((performance.now() - started) / 1000)} s`)
  context.say('')
  const faults = [...ledger, ...sale.twice.slice(0, 5)]
  if (oversold > 0) faults.push(`${oversold} seats oversold`)
  if (written !== relayed) faults.push(`${written - relayed} events not relayed`)
  if (sales.sold !== sales.capacity) faults.push(`${sales.capacity - sales.sold} seats left over`)
  if (sales.resold === 0) faults.push('no seat was resold')
  if (mails !== 2 * sales.confirmed)
    faults.push(`${2 * sales.confirmed} mails were due, ${mails} written`)
  if (failed > 0) faults.push(`${failed} jobs failed`)
  return faults
}

/** Steps on lines of their own; progress replaces itself on a terminal and is said every few seconds elsewhere. */
function createStage({ say }: Context, started: number): Stage {
  const terminal = process.stdout.isTTY === true
  const everyMs = terminal ? 100 : 5000
  let saidAt = 0
  let drawn = false
  const clear = () => {
    if (drawn) process.stdout.write('\r\x1b[K')
    drawn = false
  }
  const clock = () => `${((performance.now() - started) / 1000).toFixed(0).padStart(4)} s  `
  return {
    step(text) {
      clear()
      say(`${clock()}${text}`)
      saidAt = performance.now()
    },
    progress(text) {
      if (performance.now() - saidAt < everyMs) return
      saidAt = performance.now()
      if (terminal) {
        clear()
        process.stdout.write(`        ${text}`.slice(0, process.stdout.columns - 1))
        drawn = true
      } else say(`        ${text}`)
    },
  }
}

const freePort = () =>
  new Promise<number>((resolve) => {
    const server = createServer().listen(0, '127.0.0.1', () => {
      const { port } = server.address() as { port: number }
      server.close(() => resolve(port))
    })
  })
