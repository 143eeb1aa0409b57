// Keeps processes running: one that dies is started again, later and later while it keeps dying; one that says a
// restart does not mend it (exit 78) is left. stop() asks all at once to finish and waits; kill() does not ask.

import { type ChildProcess, spawn } from 'node:child_process'
import type { Readable } from 'node:stream'
import type { Environment } from '../workers/config.ts'
import { exitCodes } from './program.ts'

export type Program = {
  name: string
  /** Arguments for node: flags, file, the file's own. */
  args: readonly string[]
  env: Environment
}

export type SupervisorOptions = {
  /** Takes what the processes write. */
  listen(name: string, stream: Readable): void
  /** Told in one line what happened to a process. */
  note(line: string): void
  /** Every process has ended for good, unasked. */
  onIdle(): void
}

export type Supervisor = {
  start(program: Program): void
  /** @returns when all are gone */
  stop(): Promise<void>
  kill(): void
}

export const backoffMs = { first: 1000, most: 30_000, resetAfter: 10_000 }
/** Longer than a worker's own grace (25 s): only what hangs is killed. */
const stopMaxMs = 35_000

export const restartDelayMs = (failures: number): number =>
  Math.min(backoffMs.most, backoffMs.first * 2 ** (failures - 1))

export function createSupervisor({ listen, note, onIdle }: SupervisorOptions): Supervisor {
  const running = new Map<string, ChildProcess>()
  const waiting = new Map<string, NodeJS.Timeout>()
  let stopping = false

  const start = (program: Program, failures = 0): void => {
    const { name, args, env } = program
    const began = Date.now()
    const child = spawn(process.execPath, args, {
      env,
      // Its own process group: a terminal's Ctrl-C reaches it only through us. The channel tells it when we die.
      detached: true,
      stdio: ['ignore', 'pipe', 'pipe', 'ipc'],
    })
    running.set(name, child)
    if (child.stdout) listen(name, child.stdout)
    if (child.stderr) listen(name, child.stderr)
    child.on('error', (error) => note(`${name}: ${error.message}`))
    // After 'close' nothing it wrote is left in the pipes.
    child.on('close', (code, signal) => {
      running.delete(name)
      const lived = Date.now() - began
      if (stopping) return
      restart(program, lived > backoffMs.resetAfter ? 1 : failures + 1, code, signal)
      if (running.size + waiting.size === 0) onIdle()
    })
  }

  const restart = (
    program: Program,
    failures: number,
    code: number | null,
    signal: string | null,
  ) => {
    const { name } = program
    const how = signal ? `was ended by ${signal}` : `exited with ${code}`
    if (code === exitCodes.config) {
      note(`${name} ${how}: a restart does not mend that, it stays down (its last lines say why)`)
      return
    }
    const delayMs = restartDelayMs(failures)
    note(`${name} ${how}: it starts again in ${delayMs / 1000} s`)
    const timer = setTimeout(() => {
      waiting.delete(name)
      start(program, failures)
    }, delayMs)
    waiting.set(name, timer)
  }

  const signalAll = (signal: NodeJS.Signals): void => {
    for (const child of running.values()) child.kill(signal)
  }

  return {
    start,
    async stop() {
      stopping = true
      for (const timer of waiting.values()) clearTimeout(timer)
      waiting.clear()
      const gone = [...running.values()].map(
        (child) => new Promise((resolve) => child.once('close', resolve)),
      )
      signalAll('SIGTERM')
      const late = setTimeout(() => {
        note(`killed after ${stopMaxMs / 1000} s: ${[...running.keys()].join(', ')}`)
        signalAll('SIGKILL')
      }, stopMaxMs)
      await Promise.all(gone)
      clearTimeout(late)
    },
    kill: () => signalAll('SIGKILL'),
  }
}
