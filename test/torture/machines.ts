// Two machines, each a `fleet up` with all workers on the same database: two of everything. A machine whose supervisor is
// killed is started again, as an init would do. Which processes there are is read from the supervisor's own lines, so
// that a signal only ever reaches what was started here.

import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { createWriteStream } from 'node:fs'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { setTimeout as sleep } from 'node:timers/promises'
import { isFree } from '../../cli/ports.ts'
import { root, workers } from '../../cli/workers.ts'

export type Running = { name: string; pid: number; metrics: string }

export type Machine = {
  name: string
  /** Where its API listens. */
  apiPort: number
  /** Names of those it is to run. */
  workers: readonly string[]
  /** The workers that run now, as far as they have said so. */
  running(): Running[]
  /** kill -9 of the supervisor. Its workers notice, and stop by themselves. */
  killSupervisor(): void
  /** What its workers wrote at levels error and fatal, by message. */
  errors: ReadonlyMap<string, number>
  /** How often its workers said that they sent a mail, by the mail's job. */
  sent: ReadonlyMap<string, number>
  stop(): Promise<void>
}

export type MachineOptions = {
  name: string
  /** Its log, its mails and its secrets. */
  dataDir: string
  env: Record<string, string>
  /** Left out: all workers. */
  only?: readonly string[] | undefined
}

const portsEach = workers.length + 1
const restartMs = 1000
const orphanMaxMs = 40_000

export async function startMachine({ name, dataDir, env, only }: MachineOptions): Promise<Machine> {
  const apiPort = await findPorts()
  const log = createWriteStream(`${dataDir}.log`)
  const running = new Map<string, Running>()
  const errors = new Map<string, number>()
  const sent = new Map<string, number>()
  /** Of supervisors that were killed: they end by themselves, but not at once. */
  const orphans = new Set<number>()
  let supervisor: ChildProcess | undefined
  let stopping = false

  function start(): void {
    const args = [
      '--import',
      join(import.meta.dirname, 'leash.ts'),
      join(root, 'cli', 'fleet.js'),
      'up',
      ...(only ? ['--only', only.join(',')] : []),
    ]
    const child = spawn(process.execPath, args, {
      detached: true,
      // The channel is the leash: when the torture dies, the fleet stops.
      stdio: ['ignore', 'pipe', 'pipe', 'ipc'],
      env: {
        PATH: process.env.PATH,
        ...env,
        FLEET_DATA_DIR: dataDir,
        HTTP_PORT: String(apiPort),
        WAITINGROOM_PORT: '0',
        METRICS_PORT: String(apiPort + 1),
      },
    })
    supervisor = child
    for (const stream of [child.stdout, child.stderr]) {
      if (stream) createInterface({ input: stream }).on('line', read)
    }
    child.once('close', async (code, signal) => {
      log.write(`the supervisor ended: ${signal ?? code}\n`)
      for (const { pid } of running.values()) orphans.add(pid)
      running.clear()
      if (stopping) return
      await sleep(restartMs)
      if (!stopping) start()
    })
  }

  /** `http | {"level":"info","pid":…}` of a worker, `fleet: http was ended by SIGKILL: …` of the supervisor. */
  function read(line: string): void {
    log.write(`${line}\n`)
    const ended = /^fleet: (\w+) (was ended|exited)/.exec(line)?.[1]
    if (ended) running.delete(ended)
    const [, worker, json] = /^(\w+) +\| (\{"level":.*\})$/.exec(line) ?? []
    if (worker === undefined || json === undefined) return
    const { level, pid, metrics, msg, job_id } = JSON.parse(json)
    if (metrics) running.set(worker, { name: worker, pid, metrics })
    if (level === 'error' || level === 'fatal') count(errors, `${worker}: ${msg}`)
    if (msg === 'mail sent') count(sent, job_id)
  }

  start()
  return {
    name,
    apiPort,
    workers: only ?? workers.map((worker) => worker.name),
    errors,
    sent,
    running: () => [...running.values()],
    killSupervisor: () => supervisor?.kill('SIGKILL'),
    async stop() {
      stopping = true
      const child = supervisor
      if (child && child.exitCode === null && child.signalCode === null) {
        child.kill('SIGTERM')
        await once(child, 'close')
      }
      const endsAt = performance.now() + orphanMaxMs
      while ([...orphans].some(isAlive) && performance.now() < endsAt) await sleep(50)
      log.end()
    },
  }
}

const count = (counts: Map<string, number>, what: string): void => {
  counts.set(what, (counts.get(what) ?? 0) + 1)
}

/** Below what the system gives to outgoing connections, which would take a port while its worker is away. */
async function findPorts(): Promise<number> {
  for (;;) {
    const first = 20_000 + Math.floor(Math.random() * 12_000)
    const ports = Array.from({ length: portsEach }, (_, i) => first + i)
    const free = await Promise.all(ports.map((port) => isFree(port, '127.0.0.1')))
    if (free.every(Boolean)) return first
  }
}

function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0)
    return true
  } catch {
    return false
  }
}
