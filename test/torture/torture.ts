// Torture: two of every worker under load, while processes are killed and frozen, connections cut and Postgres stopped,
// crashed and killed, as the dice say. Then calm, and the tables are asked whether anything was lost, doubled or mixed
// up. By hand: `node test/torture/torture.ts --minutes 10 --seed 42`; the data folder stays when a check fails.

import { randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { chmodSync, mkdtempSync, realpathSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { parseArgs } from 'node:util'
import { workers } from '../../cli/workers.ts'
import { readQueueStats } from '../../db/jobStats.ts'
import { migrate } from '../../db/migrate.ts'
import { openDatabase } from '../../db/open.ts'
import { readRelayed } from '../../db/sales.ts'
import type { Db } from '../../db/schema.ts'
import { type Buyers, createBuyers } from './buyers.ts'
import { createDice } from './dice.ts'
import { createFaults, type Faults } from './faults.ts'
import { type Machine, startMachine } from './machines.ts'
import { type Postgres, startPostgres } from './postgres.ts'
import { type Check, describeChecks, keepInbox, mailDirOf, prove } from './proof.ts'

export type TortureOptions = {
  seconds: number
  seed: number
  /** Buyers at once. */
  buyers: number
  /** Ends the torture early; everything is stopped and nothing proven. */
  signal: AbortSignal
  say(line: string): void
}

export type Outcome = { checks: Check[]; dataDir: string; faults: ReadonlyMap<string, number> }

const ttlSeconds = 4
/** Locks of dead holders 30 s, jobs of dead workers 15 s and a retry after 30 s, more than once. */
const settleMaxMs = 180_000
const tickMs = 5000

export async function torture(options: TortureOptions): Promise<Outcome> {
  const { seed, seconds, say, signal } = options
  const dataDir = mkdtempSync(join(tmpdir(), 'flotilla-torture-'))
  // As root the server runs as another user, who has to get in.
  chmodSync(dataDir, 0o755)
  say(`seed ${seed}, ${seconds} s of faults, data in ${dataDir}`)
  const ends: (() => Promise<unknown>)[] = []
  try {
    const postgres = await startPostgres(dataDir)
    ends.push(() => postgres.stop())
    await migrate({ url: postgres.url })
    await keepInbox(postgres.url)
    const secret = randomBytes(16).toString('hex')
    const machines: Machine[] = []
    for (const name of ['machine-1', 'machine-2']) {
      const env = environment(postgres.url, secret, dataDir)
      const machine = await startMachine({ name, dataDir: join(dataDir, name), env })
      ends.push(() => machine.stop())
      machines.push(machine)
    }
    const ports = machines.map(({ apiPort }) => apiPort)
    const dice = createDice(seed)
    const buyers = createBuyers({ ports, secret, ttlSeconds, dice, count: options.buyers })
    ends.push(async () => buyers.close())
    await allReady(machines, signal)
    await buyers.open()
    const faults = createFaults({ machines, postgres, buyers }, createDice(seed + 1), say)
    await storm(options, buyers, faults)
    say('calm: everything runs again, and what was begun comes to its end')
    const checks = await untilCalm(postgres, machines, options)
    const mailDirs = machines.map(({ name }) => mailDirOf(join(dataDir, name)))
    const { writes, faults: seen } = buyers
    const sent = sumUp(machines.map((machine) => machine.sent))
    checks.push(...(await prove({ url: postgres.url, writes, seen, mailDirs, sent })))
    for (const line of report(buyers, faults, machines, sent)) say(line)
    if (checks.every((check) => check.faults.length === 0))
      ends.unshift(async () => remove(dataDir))
    return { checks, dataDir, faults: faults.counts }
  } finally {
    for (const end of ends.reverse()) await end().catch((error: Error) => say(error.message))
  }
}

const environment = (url: string, secret: string, dataDir: string) => ({
  DATABASE_URL: url,
  INTERNAL_AUTH_SECRET: secret,
  NODE_ENV: 'development',
  NODE_COMPILE_CACHE: join(dataDir, 'compiled'),
  AUTH_MODE: 'mock',
  EMAIL_PROVIDER: 'log',
  EMAIL_RATE: '2000',
  RESERVATION_TTL: String(ttlSeconds),
  EXPIRY_INTERVAL: '1',
  RATE_LIMIT_USER_PER_MINUTE: '0',
  RATE_LIMIT_GLOBAL_PER_MINUTE: '0',
})

async function storm(
  { seconds, signal, say }: TortureOptions,
  buyers: Buyers,
  faults: Faults,
): Promise<void> {
  const began = performance.now()
  const over = AbortSignal.any([signal, AbortSignal.timeout(seconds * 1000)])
  const ticker = setInterval(() => {
    const { answered, again, lost, busy } = buyers.counts
    const struck = [...faults.counts.values()].reduce((sum, count) => sum + count, 0)
    say(
      `${((performance.now() - began) / 1000).toFixed(0)} s: ${struck} faults, ${answered} writes answered ` +
        `(${again} again, ${lost} lost, ${busy} busy), ${buyers.sold()} places sold`,
    )
  }, tickMs)
  try {
    const load = buyers.run(over)
    await faults.run(over)
    signal.throwIfAborted()
    buyers.giveUpAfter(settleMaxMs)
    await Promise.race([load, once(signal, 'abort')])
    signal.throwIfAborted()
  } finally {
    clearInterval(ticker)
  }
}

/** Every worker of every machine says that it is ready. */
async function allReady(machines: readonly Machine[], signal: AbortSignal): Promise<string[]> {
  const endsAt = performance.now() + settleMaxMs
  for (;;) {
    signal.throwIfAborted()
    const missing = await notReady(machines)
    if (missing.length === 0 || performance.now() > endsAt) return missing
    await sleep(200)
  }
}

async function notReady(machines: readonly Machine[]): Promise<string[]> {
  const missing: string[] = []
  for (const machine of machines) {
    const running = machine.running()
    for (const { name } of workers) {
      const one = running.find((worker) => worker.name === name)
      const options = { signal: AbortSignal.timeout(2000) }
      const ready =
        one && (await fetch(`http://${one.metrics}/readyz`, options).catch(() => undefined))
      if (!ready?.ok) missing.push(`${name} on ${machine.name}`)
    }
  }
  return missing
}

/** All up, nothing left to do; or what is, when it takes too long. */
async function untilCalm(
  postgres: Postgres,
  machines: readonly Machine[],
  { signal, say }: TortureOptions,
): Promise<Check[]> {
  const missing = await allReady(machines, signal)
  let told = performance.now()
  const { db, close } = openDatabase({ url: postgres.url, name: 'torture' })
  const endsAt = performance.now() + settleMaxMs
  try {
    for (;;) {
      signal.throwIfAborted()
      const busy = await leftToDo(db)
      if (busy.length === 0 || performance.now() > endsAt) {
        return [
          { name: 'every worker is back and ready', faults: missing },
          { name: 'nothing is left to do', faults: busy },
        ]
      }
      if (performance.now() - told > tickMs) {
        say(busy.join('; '))
        told = performance.now()
      }
      await sleep(250)
    }
  } finally {
    await close()
  }
}

async function leftToDo(db: Db): Promise<string[]> {
  const { written, relayed } = await readRelayed(db)
  const queues = await readQueueStats(db)
  const { held } = await db
    .selectFrom('reservations')
    .select((eb) => eb.fn.countAll<string>().as('held'))
    .where('state', '=', 'held')
    .executeTakeFirstOrThrow()
  return [
    ...(written > relayed ? [`${written - relayed} events to relay`] : []),
    ...(held === '0' ? [] : [`${held} holds to expire`]),
    ...queues.flatMap(({ queue, ready, delayed, active }) =>
      ready + delayed + active > 0
        ? [`${queue}: ${ready} ready, ${delayed} later, ${active} active`]
        : [],
    ),
  ]
}

const sumUp = <K>(maps: readonly ReadonlyMap<K, number>[]): Map<K, number> => {
  const sums = new Map<K, number>()
  for (const map of maps) for (const [key, n] of map) sums.set(key, (sums.get(key) ?? 0) + n)
  return sums
}

function report(
  buyers: Buyers,
  faults: Faults,
  machines: readonly Machine[],
  sent: ReadonlyMap<string, number>,
): string[] {
  const { writes, counts } = buyers
  const table = (title: string, rows: Iterable<readonly [string, number]>) => [
    title,
    ...[...rows].sort(([a], [b]) => a.localeCompare(b)).map(([name, n]) => `  ${n} × ${name}`),
  ]
  const answers = writes.map(({ what, later, answer, outcome }): [string, number] => {
    const status = (later ? (outcome ?? answer) : answer)?.status ?? 'none'
    return [`${what}${later ? ' later' : ''}: ${status}`, 1]
  })
  const twice = [...sent.values()].filter((times) => times > 1).length
  return [
    `${counts.sent} requests, ${counts.lost} without an answer, ${counts.busy} told to come back`,
    ...table('faults', faults.counts),
    ...table('answers', sumUp(answers.map((pair) => new Map([pair])))),
    ...table('errors the workers logged', sumUp(machines.map(({ errors }) => errors))),
    `${sent.size} mails, ${twice} of them sent again because the worker died before it could note it`,
  ]
}

/** Its Postgres may lie elsewhere, behind a link. */
function remove(dataDir: string): void {
  rmSync(realpathSync(join(dataDir, 'postgres')), { recursive: true, force: true })
  rmSync(dataDir, { recursive: true, force: true })
}

async function main(): Promise<void> {
  const { values } = parseArgs({
    options: {
      minutes: { type: 'string', default: '10' },
      seed: { type: 'string', default: String(Date.now() % 100_000) },
      buyers: { type: 'string', default: '40' },
    },
  })
  const stopper = new AbortController()
  for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) {
    process.on(signal, () => stopper.abort(new Error(`ended by ${signal}: nothing is proven`)))
  }
  const say = (line: string) => process.stdout.write(`${line}\n`)
  const seed = Number(values.seed)
  const { checks, dataDir } = await torture({
    seed,
    seconds: Number(values.minutes) * 60,
    buyers: Number(values.buyers),
    signal: stopper.signal,
    say,
  })
  for (const line of describeChecks(checks)) say(line)
  const broken = checks.filter(({ faults }) => faults.length > 0).length
  say(broken === 0 ? 'all proven' : `${broken} checks failed: seed ${seed}, data in ${dataDir}`)
  process.exitCode = broken === 0 ? 0 : 1
}

if (import.meta.main) {
  await main().catch((error: Error) => {
    process.stderr.write(`torture: ${error.message}\n`)
    process.exitCode = 1
  })
}
