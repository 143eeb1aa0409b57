// One run of the embedded Postgres: its port, its process, its log, and how it is reached and waited for.

import { type ChildProcess, spawn } from 'node:child_process'
import { randomInt } from 'node:crypto'
import { once } from 'node:events'
import { chownSync, closeSync, openSync, readFileSync, renameSync, statSync } from 'node:fs'
import { createServer } from 'node:net'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import { cleanEnv, codeOf, EmbeddedError, identity, type Place } from './embeddedPlace.ts'

export type ServerOptions = {
  /** Off only where data may be lost: tests. */
  fsync?: boolean
  /** More postgresql.conf settings; they win over ours. */
  settings?: Record<string, string>
}

const defaults = {
  listen_addresses: '127.0.0.1',
  unix_socket_directories: '',
  shared_buffers: '256MB',
  max_connections: '200',
  lc_messages: 'C',
  timezone: 'UTC',
  log_timezone: 'UTC',
  log_line_prefix: '%m [%p] ',
}

/** Recovery after a crash may take a while; the process being alive, waiting is right. */
const readyMaxMs = 300_000
/**
 * Below what systems give to outgoing connections (from 32768 on Linux): one of those, a worker's that tries to reach
 * the server again for one, could take the port while the server is away.
 */
const ports = { from: 20_000, to: 32_768 }
const logMaxBytes = 8 * 1024 * 1024
const databaseName = 'flotilla'

export async function choosePort({ home }: Place, another: boolean): Promise<number> {
  if (!another) {
    const kept = keptPort(home)
    if (kept && (await isFree(kept))) return kept
  }
  for (;;) {
    const port = randomInt(ports.from, ports.to)
    if (await isFree(port)) return port
  }
}

function keptPort(home: string): number | undefined {
  try {
    const { port } = JSON.parse(readFileSync(join(home, 'server.json'), 'utf8')) as {
      port: unknown
    }
    return Number.isInteger(port) && Number(port) > 0 && Number(port) < 65536
      ? Number(port)
      : undefined
  } catch {
    return undefined
  }
}

async function isFree(port: number): Promise<boolean> {
  const server = createServer().listen(port, '127.0.0.1')
  try {
    await once(server, 'listening')
  } catch {
    return false
  }
  server.close()
  await once(server, 'close')
  return true
}

export function spawnServer(place: Place, port: number, options: ServerOptions): ChildProcess {
  const { home, account } = place
  const path = join(home, 'postgres.log')
  const size = statSync(path, { throwIfNoEntry: false })?.size ?? 0
  if (size > logMaxBytes) renameSync(path, `${path}.1`)
  const log = openSync(path, 'a', 0o600)
  if (account) chownSync(path, account.uid, account.gid)
  const { fsync = true, settings } = options
  // Without fsync a commit still outlives a crash of Postgres, though not one of the machine.
  const risky = fsync ? {} : { fsync: 'off', full_page_writes: 'off' }
  const all = { ...defaults, ...risky, ...settings, port: String(port) }
  const args = Object.entries(all).flatMap(([name, value]) => ['-c', `${name}=${value}`])
  try {
    const child = spawn(join(place.bin, 'postgres'), ['-D', join(home, 'data'), ...args], {
      ...identity(account),
      cwd: '/',
      env: cleanEnv,
      detached: true,
      stdio: ['ignore', log, log],
    })
    // Unheard, a program that cannot be started would end this process; untilReady tells it better.
    child.on('error', () => {})
    return child
  } finally {
    closeSync(log)
  }
}

export const urlOf = (home: string, port: number, database = databaseName): string => {
  const password = readFileSync(join(home, 'password'), 'utf8').trim()
  return `postgres://postgres:${password}@127.0.0.1:${port}/${database}`
}

export async function untilReady(home: string, port: number, alive: () => boolean): Promise<void> {
  const give = Date.now() + readyMaxMs
  for (;;) {
    try {
      const client = await connect(urlOf(home, port, 'postgres'))
      return await client.end()
    } catch (error) {
      if (['28P01', '28000'].includes(codeOf(error) ?? '')) {
        throw new EmbeddedError(
          `the Postgres on port ${port} does not accept the password in ${join(home, 'password')}`,
        )
      }
      if (!alive() || Date.now() > give) {
        throw new EmbeddedError(
          `the embedded Postgres did not start; the end of ${join(home, 'postgres.log')}:\n${logTail(home)}`,
          { cause: error },
        )
      }
    }
    await sleep(25)
  }
}

async function connect(url: string): Promise<pg.Client> {
  const client = new pg.Client({ connectionString: url, connectionTimeoutMillis: 5000 })
  client.on('error', () => {})
  await client.connect()
  return client
}

export function logTail(home: string): string {
  try {
    return readFileSync(join(home, 'postgres.log'), 'utf8')
      .trimEnd()
      .split('\n')
      .slice(-12)
      .join('\n')
  } catch {
    return '(it is empty)'
  }
}

/** initdb knows only its own databases; asked at every start, since a start can be cut off right here. */
export async function createDatabase(home: string, port: number): Promise<void> {
  const client = await connect(urlOf(home, port, 'postgres'))
  try {
    const { rowCount } = await client.query('select from pg_database where datname = $1', [
      databaseName,
    ])
    if (rowCount === 0) await client.query(`create database ${databaseName}`)
  } catch (error) {
    // 42P04, 23505: another starter creates it at this moment.
    if (!['42P04', '23505'].includes(codeOf(error) ?? '')) throw error
  } finally {
    await client.end()
  }
}
