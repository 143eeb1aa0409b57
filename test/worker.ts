// A worker as a child process on a test database: started, watched, told to stop, its log read. Ended with the file.

import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { join } from 'node:path'
import { after } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'

export type WorkerProcess = {
  process: ChildProcess
  /** All it wrote so far. */
  output(): string
  /** The lines of its log. */
  lines(): Record<string, unknown>[]
}

const running = new Set<ChildProcess>()
after(endWorkers)

/** Before a folder is removed that they may still write to. */
export async function endWorkers(): Promise<void> {
  const gone = [...running].map((child) => {
    child.kill('SIGKILL')
    return once(child, 'close')
  })
  await Promise.all(gone)
}

/** Metrics are off unless METRICS_PORT is given. */
export const startWorker = (
  name: string,
  url: string,
  args: string[] = [],
  env: Record<string, string> = {},
): WorkerProcess =>
  startProgram(join(import.meta.dirname, '..', 'workers', name, 'main.ts'), url, args, env)

/** The worker whose jobs write down that they ran. */
export const startJobWorker = (
  url: string,
  args: string[] = [],
  env: Record<string, string> = {},
): WorkerProcess =>
  startProgram(join(import.meta.dirname, 'servers', 'jobWorker.ts'), url, args, env)

function startProgram(
  main: string,
  url: string,
  args: string[],
  env: Record<string, string>,
): WorkerProcess {
  const { PATH = '', NODE_COMPILE_CACHE = '' } = process.env
  const all = { PATH, NODE_COMPILE_CACHE, DATABASE_URL: url, METRICS_PORT: '0', ...env }
  return startCommand(process.execPath, [main, ...args], all)
}

/** Any program that becomes a worker, or speaks like one. Its environment is what is given and nothing else. */
export function startCommand(
  program: string,
  args: readonly string[],
  env: Record<string, string>,
): WorkerProcess {
  const child = spawn(program, args, { env, stdio: ['ignore', 'pipe', 'pipe'] })
  running.add(child)
  let output = ''
  for (const stream of [child.stdout, child.stderr]) {
    stream?.setEncoding('utf8').on('data', (chunk: string) => {
      output += chunk
    })
  }
  child.once('close', () => running.delete(child))
  return {
    process: child,
    output: () => output,
    lines: () =>
      output.split('\n').flatMap((line) => (line.startsWith('{') ? [JSON.parse(line)] : [])),
  }
}

/** Its exit code; the signal's name when one ended it. */
export async function exited({ process: child }: WorkerProcess): Promise<number | string | null> {
  if (child.exitCode === null && child.signalCode === null) await once(child, 'close')
  return child.exitCode ?? child.signalCode
}

/** Its metrics as text, once it runs; it needs a METRICS_PORT, or an empty one for a port of its own. */
export async function scrape(worker: WorkerProcess): Promise<string> {
  const port = () => /"metrics":"127\.0\.0\.1:(\d+)"/.exec(worker.output())?.[1]
  await until(() => port() !== undefined)
  const isReady = async () => (await fetch(`http://127.0.0.1:${port()}/readyz`)).status === 200
  await until(isReady)
  return await (await fetch(`http://127.0.0.1:${port()}/metrics`)).text()
}

/** For what happens in another process: asks again and again, 60 s at most: a loaded machine is slow. */
export async function until(isSo: () => boolean | Promise<boolean>): Promise<void> {
  const endsAt = performance.now() + 60_000
  while (!(await isSo())) {
    if (performance.now() > endsAt) throw new Error(`waited in vain: ${isSo}`)
    await sleep(25)
  }
}
