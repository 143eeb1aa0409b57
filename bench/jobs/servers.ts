// The servers that the job queues are measured on, private to the run: Postgres with fsync on, Redis without persistence
// (its fastest). And how much processor time they took, where the system tells (Linux).

import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { readdirSync, readFileSync } from 'node:fs'
import { createServer } from 'node:net'

export type RedisServer = { url: string; pid: number; version: string; stop(): Promise<void> }

/** undefined: there is no redis-server on the PATH. */
export async function startRedis(dir: string): Promise<RedisServer | undefined> {
  const port = await freePort()
  const own = ['--port', String(port), '--bind', '127.0.0.1', '--dir', dir]
  const server = spawn('redis-server', [...own, '--save', '', '--appendonly', 'no'], {
    stdio: ['ignore', 'pipe', 'inherit'],
  })
  process.once('exit', () => server.kill('SIGKILL'))
  let said = ''
  try {
    await once(server, 'spawn')
    for await (const chunk of server.stdout) {
      said += chunk
      if (said.includes('Ready to accept connections')) break
    }
  } catch {
    return undefined
  }
  server.stdout.on('error', () => {}).resume()
  const version = /version=([\d.]+)/.exec(said)?.[1] ?? 'unknown'
  return {
    url: `redis://127.0.0.1:${port}`,
    pid: server.pid ?? 0,
    version,
    async stop() {
      const gone = once(server, 'exit')
      server.kill('SIGTERM')
      await gone
    },
  }
}

async function freePort(): Promise<number> {
  const server = createServer().listen(0, '127.0.0.1')
  await once(server, 'listening')
  const { port } = server.address() as { port: number }
  server.close()
  await once(server, 'close')
  return port
}

/** 100 on every Linux that Node runs on. */
const ticksPerSecond = 100

/** The processor time of a server and its processes, those that ended included, ms; 0 where it is not told. */
export function cpuMsOf(pid: number): number {
  let ticks = 0
  try {
    for (const entry of readdirSync('/proc').filter((name) => /^\d+$/.test(name))) {
      const fields = statOf(entry)
      if (fields && (Number(entry) === pid || Number(fields[1]) === pid)) {
        const [user, system, endedUser, endedSystem] = fields.slice(11, 15).map(Number)
        ticks += user! + system!
        if (Number(entry) === pid) ticks += endedUser! + endedSystem!
      }
    }
  } catch {
    return 0
  }
  return (ticks * 1000) / ticksPerSecond
}

/** 0 where the system does not tell. */
export const parentOf = (pid: number): number => Number(statOf(String(pid))?.[1] ?? 0)

/** What follows the name in /proc/<pid>/stat: state, parent, … */
function statOf(pid: string): string[] | undefined {
  try {
    return readFileSync(`/proc/${pid}/stat`, 'utf8').split(') ').pop()?.split(' ')
  } catch {
    // It ended meanwhile.
    return undefined
  }
}
