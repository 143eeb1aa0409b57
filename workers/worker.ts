// The life of a worker process, the same for all: command line and settings, the wait for a database with this code's
// schema, the loops, the metrics port, and the end. The first SIGTERM or SIGINT (or the death of the supervisor, or a
// limit) lets it finish what it has in hand within --grace; a second signal ends it at once. Exit codes: 0 stopped as
// asked, 1 a fault that a restart may mend, 2 wrong command line, 78 what a restart cannot mend.

import { setTimeout as sleep } from 'node:timers/promises'
import { schemaStatus } from '../db/migrate.ts'
import { type Database, openDatabase, pingDatabase } from '../db/open.ts'
import { redact } from '../domain/redact.ts'
import { createBeat, listenForJobs } from './beat.ts'
import { ConfigError, type commonSettings, type Environment, type Values } from './config.ts'
import { createDatabaseMetrics } from './databaseMetrics.ts'
import {
  type Budget,
  createBudget,
  describeLimits,
  isBounded,
  type Limits,
  parseLimits,
  UsageError,
  usage,
} from './limits.ts'
import { createLog, type Log } from './log.ts'
import { createLoopState, type Loop, type LoopState, runLoop } from './loop.ts'
import { createLoopMetrics, type MetricsServer, serveMetrics } from './metrics.ts'
import { openTracing } from './trace.ts'

export const exitCodes = { done: 0, failed: 1, usage: 2, config: 78 } as const

type CommonConfig = Values<typeof commonSettings>

/** What a worker is given to build its loops from. */
export type Worker<C = CommonConfig> = {
  name: string
  config: C
  log: Log
  database: Database
  /** Aborts when the worker is to stop: begin nothing new. */
  stopping: AbortSignal
  /** Aborts when the grace is over: drop what is in hand, and give it back. */
  dying: AbortSignal
  /** --concurrency, or the worker's own default. */
  concurrency(fallback: number): number
  /** Counts failures that a pass dealt with itself, for --failure-limit. */
  failed(count: number): void
}

export type Parts = {
  loops: readonly Loop[]
  /** Why it is not ready, besides its loops and the database. */
  notReady?(): string[]
  /** Called when the worker is to stop, beside the loops' ending: lets what it serves finish. */
  stop?(): Promise<void>
  /** Called at the end, before the database is closed. */
  close?(): Promise<void>
}

export type Main<C> = {
  name: string
  env: Environment
  /** @throws ConfigError */
  read(env: Environment): C
  /** Used when METRICS_PORT is unset; taken: any free one. */
  metricsPort: number
  poolMax?: number
  setup(worker: Worker<C>): Parts | Promise<Parts>
}

/** A worker's loop that has not come back for so long is stuck. */
const stuckMs = 300_000
/** What is left of the grace for giving back and closing. */
const closingMs = 2000
/** npm and a terminal may both pass on one Ctrl-C: what comes within half a second is the same one. */
const sameSignalMs = 500
const pingMs = 2000

/** Runs the worker and ends the process. */
export async function main<C extends CommonConfig>(program: Main<C>): Promise<never> {
  let limits: Limits
  let config: C
  try {
    limits = parseLimits(process.argv.slice(2))
    config = program.read(program.env)
  } catch (error) {
    return refuse(program.name, error)
  }
  const log = createLog(program.name, config.LOG_LEVEL)
  const died = (error: unknown) => {
    log.fatal({ err: error }, 'an error nobody caught: the worker ends')
    process.exit(exitCodes.failed)
  }
  process.on('uncaughtException', died).on('unhandledRejection', died)
  const code = await live(program, config, limits, log).catch(died)
  return process.exit(code)
}

function refuse(name: string, error: unknown): never {
  if (error instanceof UsageError) {
    process.stderr.write(`${name}: ${error.message}\n${usage}\n`)
    process.exit(exitCodes.usage)
  }
  if (!(error instanceof ConfigError)) throw error
  for (const fault of error.faults) process.stderr.write(`${name}: ${fault}\n`)
  process.exit(exitCodes.config)
}

async function live<C extends CommonConfig>(
  program: Main<C>,
  config: C,
  limits: Limits,
  log: Log,
): Promise<number> {
  const { name, poolMax } = program
  const stopper = createStopper(limits.graceSeconds, log)
  const budget = createBudget(limits)
  const database = openDatabase({
    url: config.DATABASE_URL,
    name,
    ...(poolMax === undefined ? {} : { poolMax }),
    onIdleError: (error) => log.warn({ err: error }, 'a connection to the database broke'),
  })
  const running: Running = { states: [], parts: undefined, database, stopping: stopper.stopping }
  const observer = createLoopMetrics()
  createDatabaseMetrics(database)
  const metrics = await openMetrics(program, config, limits, log, running)
  if (metrics === 'taken') return exitCodes.config
  const at = metrics && `${config.METRICS_HOST}:${metrics.port}`
  log.info({ node: process.version, ...(at && { metrics: at }) }, describeLimits(limits))

  const tracing = await openTracing(config, name, log)
  if (!(await untilMigrated(database, log, budget, stopper))) return exitCodes.config
  const worker: Worker<C> = {
    name,
    config,
    log,
    database,
    stopping: stopper.stopping,
    dying: stopper.dying,
    concurrency: (fallback) => limits.concurrency ?? fallback,
    failed(count) {
      budget.failed(count)
      // A pass may go on for as long as there is work: this limit does not wait for its end.
      const reached = budget.reached()
      if (reached !== undefined) stopper.stop(reached)
    },
  }
  if (!stopper.stopping.aborted) {
    const parts = await program.setup(worker)
    running.parts = parts
    const { once } = limits
    const context = { signal: stopper.stopping, budget, once, log, observer, stop: stopper.stop }
    const beat = createBeat(name, database, stopper.stop)
    const loops = [...parts.loops, beat.loop].map((loop) => ({
      loop,
      state: createLoopState(loop),
    }))
    running.states.push(...loops.map(({ state }) => state))
    const url = config.DATABASE_DIRECT_URL ?? config.DATABASE_URL
    const waits = !once && parts.loops.some(({ wokenBy }) => wokenBy !== undefined)
    const listener = waits ? listenForJobs({ name, url, database, log }, loops) : undefined
    const ended = loops.map(({ loop, state }) => runLoop(loop, state, context))
    // Nothing left to do (--once) is a reason to stop as well. Upkeep is no work of its own.
    const own = ended.filter((_, i) => !loops[i]?.loop.upkeep)
    const idle = own.length > 0 ? Promise.all(own) : new Promise(() => {})
    await Promise.race([idle, aborted(stopper.stopping)])
    stopper.stop('there is nothing left to do')
    await Promise.all([...ended, parts.stop?.(), listener?.close()])
    await parts.close?.()
    await beat.leave().catch((error) => log.warn({ err: error }, 'could not leave the registry'))
  }
  await tracing.close()
  await database.close()
  await metrics?.close()
  log.info('stopped')
  return exitCodes.done
}

const aborted = (signal: AbortSignal) =>
  new Promise<void>((resolve) => {
    if (signal.aborted) resolve()
    else signal.addEventListener('abort', () => resolve(), { once: true })
  })

type Stopper = ReturnType<typeof createStopper>

function createStopper(graceSeconds: number, log: Log) {
  const stopping = new AbortController()
  const dying = new AbortController()
  let askedAt = Number.NEGATIVE_INFINITY

  function stop(reason: string): void {
    if (stopping.signal.aborted) return
    log.info({ reason }, 'stopping')
    stopping.abort(new Error(`the worker stops: ${reason}`))
    const graceMs = graceSeconds * 1000
    setTimeout(
      () => {
        log.warn(`what is in hand did not finish within ${graceSeconds} s: it is given back`)
        dying.abort(new Error('the grace is over'))
      },
      Math.max(0, graceMs - closingMs),
    ).unref()
    setTimeout(() => {
      log.error('did not end in time: the worker ends now')
      process.exit(exitCodes.failed)
    }, Math.max(graceMs, closingMs) + 500).unref()
  }

  function onSignal(signal: NodeJS.Signals): void {
    if (!stopping.signal.aborted) askedAt = performance.now()
    else if (performance.now() - askedAt > sameSignalMs) {
      log.warn({ signal }, 'told twice: the worker ends now')
      process.exit(exitCodes.failed)
    }
    stop(signal)
  }

  process.on('SIGTERM', onSignal).on('SIGINT', onSignal)
  if (process.connected) {
    process.on('disconnect', () => stop('its supervisor is gone'))
    process.channel?.unref()
  }
  return { stop, stopping: stopping.signal, dying: dying.signal }
}

/** Waits as long as it takes, or as the limits let it. @returns false when the schema belongs to newer code */
async function untilMigrated(
  { db }: Database,
  log: Log,
  budget: Budget,
  { stop, stopping: signal }: Stopper,
): Promise<boolean> {
  let told = ''
  const tellOnce = (what: string, fields: object) => {
    if (told !== what) log.warn(fields, what)
    told = what
  }
  for (let waitMs = 250; !signal.aborted; waitMs = Math.min(waitMs * 2, 5000)) {
    try {
      const { is, missing, unknown } = await schemaStatus(db)
      if (is === 'newer') {
        const names = unknown.join(', ')
        log.fatal(`the database's schema is newer than this code (${names}): run newer code`)
        return false
      }
      if (is === 'current') return true
      tellOnce('the database is behind this code: waits for `fleet migrate`', { missing })
    } catch (error) {
      tellOnce('the database cannot be reached: tries again', { err: error })
    }
    await sleep(Math.min(waitMs, budget.timeLeftMs), undefined, { signal }).catch(() => {})
    const reached = budget.reached()
    if (reached !== undefined) stop(reached)
  }
  return true
}

type Running = {
  states: LoopState[]
  parts: Parts | undefined
  database: Database
  stopping: AbortSignal
}

async function openMetrics<C extends CommonConfig>(
  program: Main<C>,
  config: C,
  limits: Limits,
  log: Log,
  running: Running,
): Promise<MetricsServer | 'taken' | undefined> {
  const { METRICS_PORT: asked, METRICS_HOST: host } = config
  if (asked === 0 || (asked === undefined && isBounded(limits))) return undefined
  const health = { stuck: () => stuck(running), notReady: () => notReady(running) }
  try {
    return await serveMetrics({ host, port: asked ?? program.metricsPort }, health)
  } catch (error) {
    const { code, message } = error as NodeJS.ErrnoException
    if (asked !== undefined) {
      log.fatal(`METRICS_PORT ${asked} on ${host} cannot be listened on: ${message}`)
      return 'taken'
    }
    if (code !== 'EADDRINUSE') throw error
    log.warn(`port ${program.metricsPort} is taken: metrics are on another, set METRICS_PORT`)
    return await serveMetrics({ host, port: 0 }, health)
  }
}

function stuck({ states }: Running): string[] {
  const now = performance.now()
  return states
    .filter(({ busySince }) => busySince !== undefined && now - busySince > stuckMs)
    .map(({ name }) => `${name}: its pass has not come back for ${stuckMs / 1000} s`)
}

async function notReady({ states, parts, database, stopping }: Running): Promise<string[]> {
  if (stopping.aborted) return ['stopping']
  const reasons = parts === undefined ? ['starting'] : (parts.notReady?.() ?? [])
  for (const { name, failures, lastError, good } of states) {
    if (failures > 0) reasons.push(`${name}: ${redact(lastError ?? 'failed')}`)
    else if (!good) reasons.push(`${name}: has not run yet`)
  }
  const ping = pingDatabase(database).then(
    () => undefined,
    (error: Error) => `database: ${redact(error.message)}`,
  )
  const late = sleep(pingMs, 'database: does not answer', { ref: false })
  const fault = await Promise.race([ping, late])
  return fault === undefined ? reasons : [...reasons, fault]
}
