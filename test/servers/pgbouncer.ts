// A PgBouncer of a test's own before a database: transaction mode, as Debian's package comes, with no setting that is
// there for us. Ends with the test file.

import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { chmodSync, mkdtempSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after } from 'node:test'
import { missing, pathOf } from '../programs.ts'
import { freePort, startGuard } from '../setup.ts'

/** For `{ skip: withoutPgBouncer() }`. */
export const withoutPgBouncer = (): string | false => missing('pgbouncer', 'pgbouncer')

/** `servers`: connections to Postgres at most, for all clients together. @returns the database's URL through it */
export async function startPgBouncer(url: string, servers: number): Promise<string> {
  const { hostname, port, username, password, pathname } = new URL(url)
  const dir = mkdtempSync(join(tmpdir(), 'flotilla-pgbouncer-'))
  const own = await freePort()
  const quoted = (text: string) => `"${decodeURIComponent(text).replaceAll('"', '""')}"`
  writeFileSync(join(dir, 'users.txt'), `${quoted(username)} ${quoted(password)}\n`)
  const lines = [
    '[databases]',
    `* = host=${hostname} port=${port || 5432}`,
    '[pgbouncer]',
    'listen_addr = 127.0.0.1',
    `listen_port = ${own}`,
    'unix_socket_dir =',
    'auth_type = plain',
    `auth_file = ${join(dir, 'users.txt')}`,
    'pool_mode = transaction',
    `default_pool_size = ${servers}`,
  ]
  writeFileSync(join(dir, 'pgbouncer.ini'), `${lines.join('\n')}\n`)
  // It refuses to run as root, and has to read its files as whom it becomes.
  chmodSync(dir, 0o755)
  const as = process.getuid?.() === 0 ? ['-u', 'nobody'] : []
  const child = spawn(pathOf('pgbouncer'), [...as, join(dir, 'pgbouncer.ini')], {
    stdio: ['ignore', 'ignore', 'pipe'],
  })
  const guard = startGuard()
  guard.watch({ pid: child.pid, signal: 'SIGTERM', dir })
  after(() => guard.end())
  await listening(child)
  return `postgres://${username}:${password}@127.0.0.1:${own}${pathname}`
}

async function listening(child: ChildProcess): Promise<void> {
  let said = ''
  child.stderr?.setEncoding('utf8').on('data', (chunk: string) => {
    said += chunk
  })
  while (!said.includes('process up')) {
    const [code] = await Promise.race([
      once(child, 'exit'),
      once(child.stderr as NonNullable<ChildProcess['stderr']>, 'data').then(() => [undefined]),
    ])
    if (code !== undefined) throw new Error(`pgbouncer did not start:\n${said}`)
  }
}
