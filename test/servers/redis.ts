// A redis-server of a test's own, to be stopped, killed and started again on its port, or to be a node of a Cluster or
// a sentinel. Ends with the test file.

import { type ChildProcess, spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after } from 'node:test'

export type RedisServer = {
  port: number
  /** It keeps its connections and answers nothing. */
  pause(): void
  resume(): void
  /** At once, as a crash would. */
  kill(): Promise<void>
  /** Again on the same port, empty. */
  start(): Promise<void>
}

/** For `{ skip: withoutRedisServer() }`. */
export function withoutRedisServer(): string | false {
  if (spawnSync('redis-server', ['--version']).status === 0) return false
  const reason = 'needs redis-server on the PATH: apt-get install redis-server'
  if (process.env.FLOTILLA_REFUSE_SKIPS === '1') throw new Error(reason)
  return reason
}

/** `config`: lines of redis.conf. */
export async function startRedis(
  config: string[] = [],
  flags: string[] = [],
): Promise<RedisServer> {
  const port = await freePort()
  const dir = mkdtempSync(join(tmpdir(), 'flotilla-redis-'))
  // A file, since a sentinel rewrites its own.
  const file = join(dir, 'redis.conf')
  let child: ChildProcess | undefined
  const server: RedisServer = {
    port,
    pause: () => child?.kill('SIGSTOP'),
    resume: () => child?.kill('SIGCONT'),
    async kill() {
      if (child === undefined || child.exitCode !== null || child.signalCode !== null) return
      const gone = once(child, 'exit')
      child.kill('SIGKILL')
      await gone
    },
    async start() {
      const lines = [`port ${port}`, 'bind 127.0.0.1', `dir ${dir}`, 'save ""', ...config]
      writeFileSync(file, `${lines.join('\n')}\n`)
      child = spawn('redis-server', [file, ...flags], { stdio: ['ignore', 'pipe', 'inherit'] })
      await listening(child)
    },
  }
  process.once('exit', () => child?.kill('SIGKILL'))
  after(async () => {
    await server.kill()
    rmSync(dir, { recursive: true, force: true })
  })
  await server.start()
  return server
}

async function listening(child: ChildProcess): Promise<void> {
  let said = ''
  for await (const chunk of child.stdout ?? []) {
    said += chunk
    if (!/Ready to accept connections|Sentinel ID is/.test(said)) continue
    child.stdout?.on('error', () => {}).resume()
    return
  }
  throw new Error(`redis-server did not start:\n${said}`)
}

async function freePort(): Promise<number> {
  const server = createServer().listen(0, '127.0.0.1')
  await once(server, 'listening')
  const address = server.address()
  server.close()
  await once(server, 'close')
  if (typeof address !== 'object' || !address) throw new Error('no free port')
  return address.port
}
