// Torture: two of every worker under load, while processes are killed and frozen, connections cut and Postgres stopped,
// crashed and killed, as the dice say. Then calm, and the tables are asked whether anything was lost, doubled or mixed
// up. By hand: `npx node test/torture/torture.ts --minutes 10 --seed 42 [--rabbit]`; the data folder stays when a check fails.

import { randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { chmodSync, mkdtempSync, realpathSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { parseArgs } from 'node:util'
import { migrate } from '../../db/migrate.ts'
import { type Buyers, createBuyers } from './buyers.ts'
import { allReady, settleMaxMs, tickMs, untilCalm } from './calm.ts'
import { createDice } from './dice.ts'
import { createFaults, type Faults } from './faults.ts'
import { type Machine, startMachine } from './machines.ts'
import { startPostgres } from './postgres.ts'
import { type Check, describeChecks, keepInbox, mailDirOf, prove } from './proof.ts'
import { startTortureRabbit } from './rabbit.ts'
import { describeRun, sumUp } from './report.ts'

export type TortureOptions = {
  seconds: number
  seed: number
  /** Buyers at once. */
  buyers: number
  /** The workers of each machine; left out: all on both. */
  only?: readonly [readonly string[] | undefined, readonly string[] | undefined]
  /** Events go over a RabbitMQ that is killed as well, instead of inside the database. */
  rabbit?: boolean
  /** Ends the torture early; everything is stopped and nothing proven. */
  signal: AbortSignal
  say(line: string): void
}

export type Outcome = {
  checks: Check[]
  dataDir: string
  /** Kinds of faults that never struck. */
  missing: string[]
}

const ttlSeconds = 4

/** Ends every process it started, however it ends itself. @throws when it was ended early */
export async function torture(options: TortureOptions): Promise<Outcome> {
  const { seed, seconds, say } = options
  const dataDir = mkdtempSync(join(tmpdir(), 'flotilla-torture-'))
  // As root the server runs as another user, who has to get in.
  chmodSync(dataDir, 0o755)
  say(`seed ${seed}, ${seconds} s of faults, data in ${dataDir}`)
  const ends: (() => unknown)[] = []
  let outcome: Outcome
  try {
    outcome = await runIn(dataDir, options, ends)
  } finally {
    for (const end of ends.reverse()) await end()
  }
  if (outcome.checks.every(({ faults }) => faults.length === 0)) remove(dataDir)
  return outcome
}

async function runIn(
  dataDir: string,
  options: TortureOptions,
  ends: (() => unknown)[],
): Promise<Outcome> {
  const { seed, say, signal } = options
  const postgres = await startPostgres(dataDir)
  ends.push(postgres.stop)
  const { url } = postgres
  await migrate({ url })
  await keepInbox(url)
  const rabbit = options.rabbit ? await startTortureRabbit() : undefined
  if (rabbit) ends.push(rabbit.stop)
  const secret = randomBytes(16).toString('hex')
  const machines: Machine[] = []
  for (const [i, name] of ['machine-1', 'machine-2'].entries()) {
    const env = { ...environment(url, secret), ...(rabbit && { BROKER_URL: rabbit.url }) }
    const machine = await startMachine({
      name,
      dataDir: join(dataDir, name),
      env,
      only: options.only?.[i],
    })
    ends.push(machine.stop)
    machines.push(machine)
  }
  const ports = machines.map(({ apiPort }) => apiPort)
  const dice = createDice(seed)
  const buyers = createBuyers({ ports, secret, ttlSeconds, dice, count: options.buyers })
  ends.push(buyers.close)
  await allReady(machines, signal)
  await buyers.open()

  const faults = createFaults({ machines, postgres, buyers, rabbit }, createDice(seed + 1), say)
  await storm(options, buyers, faults)
  say('calm: everything runs again, and what was begun comes to its end')
  const checks = await untilCalm(url, machines, signal, say, rabbit !== undefined)
  for (const line of describeRun(buyers, faults, machines)) say(line)
  const proof = await prove({
    url,
    rabbit,
    writes: buyers.writes,
    seen: buyers.faults,
    mailDirs: machines.map(({ name }) => mailDirOf(join(dataDir, name))),
    sent: sumUp(machines.flatMap((machine) => [...machine.sent])),
  })
  return { checks: [...checks, ...proof], dataDir, missing: faults.missing() }
}

const environment = (url: string, secret: string) => ({
  DATABASE_URL: url,
  INTERNAL_AUTH_SECRET: secret,
  CONSOLE_PASSWORD: secret,
  NODE_ENV: 'development',
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
  const stopper = new AbortController()
  const over = AbortSignal.any([signal, stopper.signal])
  // A slow machine takes longer to be hit by each kind, not by fewer.
  const watch = setInterval(() => {
    const passed = (performance.now() - began) / 1000
    if (passed >= seconds && (faults.missing().length === 0 || passed >= 4 * seconds)) {
      stopper.abort()
    }
  }, 100)
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
    clearInterval(watch)
  }
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
      rabbit: { type: 'boolean', default: false },
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
    rabbit: values.rabbit,
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
