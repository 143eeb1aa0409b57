// A nats-server with JetStream of a test's own, to be killed and started again on its port with what it had on its disk.
// Ends with the test file.

import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, writeFileSync } from 'node:fs'
import { createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after } from 'node:test'
import { missing, pathOf } from '../programs.ts'
import { startGuard } from '../setup.ts'

export type NatsServer = {
  url: string
  /** At once, as a crash would. */
  kill(): Promise<void>
  /** Again on the same port, with its data. */
  start(): Promise<void>
}

/** For `{ skip: withoutNats() }`. */
export function withoutNats(): string | false {
  return missing('nats-server', 'nats-server')
}

/** `config`: lines of its configuration. */
export async function startNats(config: string[] = []): Promise<NatsServer> {
  const port = await freePort()
  const dir = mkdtempSync(join(tmpdir(), 'flotilla-nats-'))
  const file = join(dir, 'nats.conf')
  const lines = [`listen: "127.0.0.1:${port}"`, `jetstream { store_dir: "${dir}" }`, ...config]
  writeFileSync(file, `${lines.join('\n')}\n`)
  const guard = startGuard()
  guard.watch({ dir })
  let child: ChildProcess | undefined
  const server: NatsServer = {
    url: `nats://127.0.0.1:${port}`,
    async kill() {
      if (!child || child.exitCode !== null || child.signalCode !== null) return
      const gone = once(child, 'exit')
      child.kill('SIGKILL')
      await gone
    },
    async start() {
      child = spawn(pathOf('nats-server'), ['-c', file], { stdio: ['ignore', 'ignore', 'pipe'] })
      guard.watch({ pid: child.pid, signal: 'SIGTERM' })
      let said = ''
      const ready = Promise.withResolvers<void>()
      // Read to its end: a server whose log nobody takes dies at its next line.
      child.stderr?.on('data', (chunk) => {
        said += chunk
        if (said.includes('Server is ready')) ready.resolve()
      })
      child.once('exit', () => ready.reject(new Error(`nats-server did not start:\n${said}`)))
      await ready.promise
    },
  }
  process.once('exit', () => child?.kill('SIGKILL'))
  after(async () => {
    await server.kill()
    await guard.end()
  })
  await server.start()
  return server
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
