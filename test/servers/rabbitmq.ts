// A RabbitMQ of a test's own, to be stopped, killed and started again on its port with what it had on its disk. Its node
// name, its data and its epmd are its own, so that any number may run beside each other. Ends with the test file.

import { type ChildProcess, execFileSync, spawn } from 'node:child_process'
import { once } from 'node:events'
import { chmodSync, chownSync, existsSync, mkdtempSync, writeFileSync } from 'node:fs'
import { createServer, connect as dial } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { startGuard } from '../setup.ts'

export type RabbitServer = {
  url: string
  port: number
  /** At once, as a crash would. */
  kill(): Promise<void>
  /** Again on the same port, with its data. */
  start(): Promise<void>
  /** `rabbitmqctl …`. */
  control(...args: string[]): string
  /** For good. */
  stop(): Promise<void>
}

/** Debian's own start as a service, and so run as their user only. */
const programs = ['/usr/lib/rabbitmq/bin', '/opt/rabbitmq/sbin', '/usr/local/sbin']
const bin = programs.find((folder) => existsSync(join(folder, 'rabbitmq-server')))
const startMs = 90_000

/** For `{ skip: withoutRabbit() }`. */
export function withoutRabbit(): string | false {
  if (bin) return false
  const reason = 'needs rabbitmq-server: apt-get install rabbitmq-server'
  if (process.env.FLOTILLA_REFUSE_SKIPS === '1') throw new Error(reason)
  return reason
}

/** `config`: lines of rabbitmq.conf. */
export async function startRabbit(config: string[] = []): Promise<RabbitServer> {
  const server = await launchRabbit(config)
  after(server.stop)
  return server
}

/** For what is no test: ended by `stop`, or with the process. */
export async function launchRabbit(config: string[] = []): Promise<RabbitServer> {
  const [port, distribution, mapper] = [await freePort(), await freePort(), await freePort()]
  const dir = mkdtempSync(join(tmpdir(), 'flotilla-rabbit-'))
  const file = join(dir, 'rabbitmq.conf')
  writeFileSync(file, [`listeners.tcp.1 = 127.0.0.1:${port}`, ...config, ''].join('\n'))
  writeFileSync(join(dir, 'plugins'), '[].\n')
  const user = rabbitUser()
  chmodSync(dir, 0o755)
  if (user) chownSync(dir, user.uid, user.gid)
  const env = {
    PATH: process.env.PATH ?? '',
    HOME: dir,
    RABBITMQ_NODENAME: `flotilla${port}@localhost`,
    RABBITMQ_NODE_PORT: String(port),
    RABBITMQ_DIST_PORT: String(distribution),
    RABBITMQ_MNESIA_BASE: join(dir, 'data'),
    RABBITMQ_LOG_BASE: join(dir, 'log'),
    RABBITMQ_CONFIG_FILE: file.replace(/\.conf$/, ''),
    RABBITMQ_CONF_ENV_FILE: join(dir, 'none'),
    RABBITMQ_ENABLED_PLUGINS_FILE: join(dir, 'plugins'),
    RABBITMQ_PID_FILE: join(dir, 'pid'),
    RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS: '+sbwt none +sbwtdcpu none +sbwtdio none',
    ERL_EPMD_PORT: String(mapper),
    ERL_EPMD_ADDRESS: '127.0.0.1',
    LC_ALL: 'C.UTF-8',
  }
  // A group of its own: the script that starts it has children, and all of them are to end.
  const options = { env, cwd: dir, detached: true, ...user }
  const epmd = spawn('epmd', ['-port', String(mapper), '-address', '127.0.0.1'], {
    ...options,
    stdio: 'ignore',
  })
  // When this process is killed, nobody else would end them.
  const guard = startGuard()
  guard.watch({ pid: epmd.pid, signal: 'SIGKILL', group: true, dir })
  let child: ChildProcess | undefined
  const end = (signal: NodeJS.Signals) => {
    for (const process_ of [child, epmd]) {
      if (process_?.pid === undefined || process_.exitCode !== null) continue
      try {
        process.kill(-process_.pid, signal)
      } catch {}
    }
  }
  const server: RabbitServer = {
    port,
    url: `amqp://guest:guest@127.0.0.1:${port}`,
    async kill() {
      if (child?.pid === undefined || child.exitCode !== null || child.signalCode !== null) return
      const gone = once(child, 'exit')
      process.kill(-child.pid, 'SIGKILL')
      await gone
    },
    async start() {
      child = spawn(join(bin ?? '', 'rabbitmq-server'), [], {
        ...options,
        stdio: ['ignore', 'pipe', 'pipe'],
      })
      guard.watch({ pid: child.pid, signal: 'SIGKILL', group: true })
      let said = ''
      for (const stream of [child.stdout, child.stderr]) {
        stream?.setEncoding('utf8').on('data', (chunk: string) => {
          said = (said + chunk).slice(-4096)
        })
      }
      const endsAt = performance.now() + startMs
      while (!(await speaksAmqp(port))) {
        const isOver = child.exitCode !== null || performance.now() > endsAt
        if (isOver) throw new Error(`rabbitmq-server did not start:\n${said}`)
        await sleep(100)
      }
    },
    control: (...args) =>
      execFileSync(join(bin ?? '', 'rabbitmqctl'), ['--node', env.RABBITMQ_NODENAME, ...args], {
        ...options,
        encoding: 'utf8',
      }),
    async stop() {
      await server.kill()
      end('SIGKILL')
      await guard.end()
    },
  }
  process.once('exit', () => end('SIGKILL'))
  await server.start()
  return server
}

/** It answers the protocol's header: the port alone is open earlier. */
async function speaksAmqp(port: number): Promise<boolean> {
  const socket = dial({ port, host: '127.0.0.1' })
  try {
    await once(socket, 'connect')
    socket.write('AMQP\x00\x00\x09\x01')
    await once(socket, 'data', { signal: AbortSignal.timeout(2000) })
    return true
  } catch {
    return false
  } finally {
    socket.destroy()
  }
}

/** As root it runs as the user its package made. */
function rabbitUser(): { uid: number; gid: number } | undefined {
  if (process.getuid?.() !== 0) return undefined
  try {
    const id = (flag: string) =>
      Number(
        execFileSync('id', [flag, 'rabbitmq'], {
          encoding: 'utf8',
          stdio: ['ignore', 'pipe', 'ignore'],
        }),
      )
    return { uid: id('-u'), gid: id('-g') }
  } catch {
    return undefined
  }
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
