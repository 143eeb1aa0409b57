// The workers of bench/outage.ts as processes: the API, the relay and the inbox, over one broker.

import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { createServer } from 'node:net'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'

export type Workers = {
  apiPort: number
  pids: ReadonlyMap<string, number>
  stop(): Promise<void>
}

const names = ['http', 'outbox', 'inbox']

export async function startWorkers(on: {
  url: string
  broker: string
  dataDir: string
}): Promise<Workers> {
  const apiPort = await freePort()
  const env = {
    ...process.env,
    DATABASE_URL: on.url,
    BROKER_URL: on.broker,
    REDIS_URL: '',
    FLEET_DATA_DIR: on.dataDir,
    HTTP_PORT: String(apiPort),
    METRICS_PORT: '0',
    LOG_LEVEL: 'error',
    RATE_LIMIT_USER_PER_MINUTE: '0',
    RATE_LIMIT_GLOBAL_PER_MINUTE: '0',
    RESERVATION_TTL: '86400',
  }
  const children = new Map<string, ChildProcess>()
  for (const name of names) {
    const main = join(import.meta.dirname, '..', '..', 'workers', name, 'main.ts')
    const child = spawn(process.execPath, [main], { env, stdio: ['ignore', 'ignore', 'inherit'] })
    process.once('exit', () => child.kill('SIGKILL'))
    children.set(name, child)
  }
  const endsAt = performance.now() + 60_000
  while (!(await fetch(`http://127.0.0.1:${apiPort}/`).catch(() => undefined))) {
    if (performance.now() > endsAt) throw new Error('the API did not start')
    await sleep(50)
  }
  return {
    apiPort,
    pids: new Map([...children].map(([name, { pid = 0 }]) => [name, pid])),
    async stop() {
      await Promise.all([...children.values()].map(end))
    },
  }
}

async function end(child: ChildProcess): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return
  const gone = once(child, 'exit')
  child.kill('SIGTERM')
  await gone
}

const freePort = () =>
  new Promise<number>((resolve) => {
    const server = createServer().listen(0, '127.0.0.1', () => {
      const { port } = server.address() as { port: number }
      server.close(() => resolve(port))
    })
  })
