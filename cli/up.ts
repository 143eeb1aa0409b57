// fleet up: all workers on one screen. Checks the settings of every worker and the ports first, then brings up the
// database (the embedded one when DATABASE_URL is unset) and its schema, starts the workers and keeps them running. The
// first signal stops all, workers first and the database last; a second one does not wait for the workers.

import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, mkdirSync } from 'node:fs'
import { join } from 'node:path'
import { migrate } from '../db/migrate.ts'
import type { Environment } from '../workers/config.ts'
import { claimFolder } from './claim.ts'
import { givenDatabase, givenDirectly, withoutPassword } from './database.ts'
import { prefixer } from './lines.ts'
import { checkServedPorts, metricsPorts } from './ports.ts'
import { type KeptPostgres, keepPostgres } from './postgres.ts'
import { type Command, type Context, dataDirOf, Exit, givenOnce, known } from './program.ts'
import { createSupervisor } from './supervisor.ts'
import { tryItLines } from './tryIt.ts'
import { allFaults, severalOf, startOf, type Worker, workers } from './workers.ts'

export const up: Command<{ only?: string }> = (context) => ({
  command: 'up',
  describe: 'start all workers, on an embedded Postgres when DATABASE_URL is unset',
  builder: (yargs) =>
    yargs.option('only', {
      type: 'string',
      requiresArg: true,
      describe: `comma list of the workers to start (${workers.map(({ name }) => name).join(',')})`,
    }),
  handler: ({ only }) => runFleet(context, chooseWorkers(givenOnce('only', only))),
})

function chooseWorkers(only: string | undefined): readonly Worker[] {
  if (only === undefined) return workers
  const names = only.split(',').map((name) => name.trim())
  const wanted = new Set(names.map((name) => known('worker', name, workers)))
  return workers.filter((worker) => wanted.has(worker))
}

async function runFleet(context: Context, chosen: readonly Worker[]): Promise<void> {
  const dataDir = dataDirOf(context.env)
  const env: Environment = { ...context.env, FLEET_DATA_DIR: dataDir }
  // Made here first: a folder of 0755 is one that root's Postgres can reach.
  mkdirSync(dataDir, { recursive: true, mode: 0o755 })
  checkSettings(chosen, env)
  const release = claimFolder(dataDir)
  let embedded: KeptPostgres | undefined
  const stop = stopper(context)
  try {
    await checkServedPorts(chosen, env)
    const processes = severalOf(chosen, env)
    const ports = await metricsPorts(processes, env)
    const compiled = compileOnce(chosen, env, dataDir)
    embedded = givenDatabase(env) ? undefined : await keepPostgres(context, dataDir)
    if (embedded) env.DATABASE_URL = embedded.url
    const url = embedded?.url ?? givenDatabase(env) ?? ''
    context.say(`database ${withoutPassword(url)}`)
    await migrate({ url: embedded?.url ?? givenDirectly(env) ?? url, onStep: context.say })
    await compiled
    if (!stop.asked) await supervise(context, processes, env, ports, stop, embedded?.lost)
  } finally {
    await embedded?.stop()
    release()
  }
}

function checkSettings(chosen: readonly Worker[], env: Environment): void {
  const embedded = !givenDatabase(env)
  if (embedded && env.NODE_ENV === 'production') {
    throw new Exit('config', 'DATABASE_URL is not set, and NODE_ENV is production')
  }
  const placeholder = embedded ? { DATABASE_URL: 'postgres://embedded' } : {}
  const faults = allFaults(chosen, { ...env, ...placeholder })
  if (faults.length > 0) throw new Exit('config', `bad configuration:\n  ${faults.join('\n  ')}`)
}

/** A process of Node's may hang as it ends (seen once: V8's threads wait for each other): nobody waits for that. */
const compileMaxMs = 30_000

/** The first time, while Postgres starts: each worker only loads its code, refuses its command line and leaves the cache. */
async function compileOnce(
  chosen: readonly Worker[],
  env: Environment,
  dataDir: string,
): Promise<void> {
  if (existsSync(join(dataDir, 'compiled'))) return
  const runs = chosen.map(async (worker) => {
    const start = startOf(worker, env, dataDir)
    const child = spawn(process.execPath, [...start.args, '--limit=0'], {
      env: start.env,
      stdio: 'ignore',
      timeout: compileMaxMs,
      killSignal: 'SIGKILL',
    })
    await once(child, 'exit')
  })
  await Promise.allSettled(runs)
}

type Stopper = { asked: boolean; first: Promise<void>; second: Promise<void> }

/** npm and a terminal may both pass on one Ctrl-C: what comes within half a second is the same one. */
const sameSignalMs = 500

function stopper(context: Context): Stopper {
  const first = Promise.withResolvers<void>()
  const second = Promise.withResolvers<void>()
  const stop: Stopper = { asked: false, first: first.promise, second: second.promise }
  let askedAt = 0
  context.onStop(() => {
    if (!stop.asked) {
      context.say('stopping (once more: at once)')
      askedAt = performance.now()
      first.resolve()
    } else if (performance.now() - askedAt > sameSignalMs) second.resolve()
    stop.asked = true
  })
  return stop
}

async function supervise(
  context: Context,
  chosen: readonly Worker[],
  env: Environment,
  ports: Map<string, number>,
  stop: Stopper,
  lost: Promise<never> = new Promise(() => {}),
): Promise<void> {
  const terminal = process.stdout.isTTY === true
  const names = ['fleet', ...chosen.map(({ name }) => name)]
  const idle = Promise.withResolvers<never>()
  const supervisor = createSupervisor({
    listen: prefixer(names, terminal, context.say),
    note: (line) => context.warn(`fleet: ${line}`),
    onIdle: () => idle.reject(new Exit('config', 'no worker is left running')),
  })
  for (const line of overview(chosen, env, ports)) context.say(line)
  for (const worker of chosen) {
    const own = { ...env, METRICS_PORT: String(ports.get(worker.name)) }
    supervisor.start({ name: worker.name, ...startOf(worker, own, String(env.FLEET_DATA_DIR)) })
  }
  stop.second.then(supervisor.kill)
  try {
    await Promise.race([stop.first, idle.promise, lost])
  } finally {
    await supervisor.stop()
  }
}

function consoleLine(api: string, env: Environment): string {
  const made = join(String(env.FLEET_DATA_DIR), 'secrets', 'CONSOLE_PASSWORD')
  const where = env.CONSOLE_PASSWORD ? 'CONSOLE_PASSWORD' : env.CONSOLE_PASSWORD_FILE || made
  return `  console  ${api}/console  (password: ${where})`
}

function overview(
  chosen: readonly Worker[],
  env: Environment,
  ports: Map<string, number>,
): string[] {
  const lines = chosen.map(({ name, purpose }) => {
    const port = ports.get(name)
    const metrics = port ? `http://${env.METRICS_HOST || '127.0.0.1'}:${port}/metrics` : 'off'
    return `  ${name.padEnd(10)}${purpose.padEnd(40)}metrics ${metrics}`
  })
  const api = `http://${env.HTTP_HOST || '127.0.0.1'}:${env.HTTP_PORT || 8080}`
  if (chosen.some(({ name }) => name === 'http')) {
    lines.push('', `  API   ${api}/api/v1`, `  docs  ${api}/docs`, consoleLine(api, env))
  }
  const waits = `http://${env.WAITINGROOM_HOST || '127.0.0.1'}:${env.WAITINGROOM_PORT || 8090}`
  if (chosen.some(({ name }) => name === 'waitingroom')) {
    lines.push(`  waiting room  ${waits}/demo/waitingroom`)
  }
  if (chosen.some(({ name }) => name === 'email') && !env.EMAIL_PROVIDER) {
    lines.push(`  mail  ${join(String(env.FLEET_DATA_DIR), 'mail')}`)
  }
  const pushes = chosen.some(({ name }) => name === 'push')
  if (pushes && (env.PUSH_PROVIDER || 'log') === 'log') {
    lines.push(`  push  ${join(String(env.FLEET_DATA_DIR), 'push')}`)
  }
  lines.push('', '  Ctrl-C stops')
  if (chosen.length >= workers.length && env.AUTH_MODE !== 'jwt') {
    const pasted = tryItLines(api, String(env.FLEET_DATA_DIR), env)
    lines.push('', '  try it, in another terminal:', '', ...pasted)
  }
  return ['', ...lines, '']
}
