// A private Postgres on 127.0.0.1 with a port and a random password of its own, for a checkout without DATABASE_URL and
// for tests. Data under `<dataDir>/postgres` are kept between runs; a server that is running there already (its
// supervisor was killed) is adopted. It runs in its own process group: a terminal's Ctrl-C reaches it only through
// stop(). Foreign data, or data of another major version, are named and left alone.

import { type ChildProcess, execFileSync, spawn } from 'node:child_process'
import { randomBytes, randomInt } from 'node:crypto'
import { once } from 'node:events'
import {
  chownSync,
  closeSync,
  existsSync,
  linkSync,
  openSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  realpathSync,
  renameSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs'
import { createServer } from 'node:net'
import { basename, join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import {
  cleanEnv,
  codeOf,
  EmbeddedError,
  findPlace,
  homeOf,
  identity,
  type Place,
  wayOut,
} from './embeddedPlace.ts'

export { EmbeddedError } from './embeddedPlace.ts'

export type EmbeddedOptions = {
  dataDir: string
  /** Off only where data may be lost: tests. */
  fsync?: boolean
  /** More postgresql.conf settings; they win over ours. */
  settings?: Record<string, string>
  /** Folder of other binaries than the packaged ones. */
  bin?: string
  /** Told in one line what was mended, moved or waited for. */
  note?: (line: string) => void
}

export type Embedded = {
  url: string
  port: number
  pid: number
  /** Found running and taken over. */
  adopted: boolean
  /** Ends sessions, writes everything down, and returns when the server is gone. */
  stop(): Promise<void>
}

type Live = { pid: number; port: number }

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
/** A backend sees at once that its postmaster died, but may be in the middle of something. */
const orphansMaxMs = 30_000
/**
 * Below what systems give to outgoing connections (from 32768 on Linux): one of those, a worker's that tries to reach
 * the server again for one, could take the port while the server is away.
 */
const ports = { from: 20_000, to: 32_768 }
const logMaxBytes = 8 * 1024 * 1024
const databaseName = 'flotilla'

/** @throws EmbeddedError that says what is wrong and what to do */
export async function startEmbedded(options: EmbeddedOptions): Promise<Embedded> {
  const place = findPlace(options.dataDir, options.bin, options.note)
  const running = await adopt(place.home)
  if (running) return running
  makeData(place, options)
  await mendLock(place, options.note)
  for (let attempt = 1; ; attempt++) {
    const port = await choosePort(place, attempt > 1)
    const child = spawnServer(place, port, options)
    try {
      await untilReady(place.home, port, () => child.exitCode === null && child.signalCode === null)
      await createDatabase(place.home, port)
      keep(place, 'server.json', `${JSON.stringify({ port })}\n`)
      child.unref()
      return handle(place.home, { pid: child.pid ?? 0, port }, false, child)
    } catch (error) {
      if (child.exitCode === null && child.signalCode === null) child.kill('SIGINT')
      // Another starter was quicker, or somebody took the port between our look and the server's.
      const winner = await adopt(place.home)
      if (winner) return winner
      if (attempt < 5 && /Address already in use/.test(logTail(place.home))) continue
      throw error
    }
  }
}

/** The URL of the server that is running on this data folder, if one is and it answers. */
export async function findEmbedded(dataDir: string): Promise<string | undefined> {
  const link = homeOf(dataDir)
  if (!existsSync(link)) return undefined
  return (await adopt(realpathSync(link)))?.url
}

/** Waits for a server that is starting; one that is stopping is waited out and counts as none. */
async function adopt(home: string): Promise<Embedded | undefined> {
  const live = liveServer(home)
  if (!live) return undefined
  try {
    await untilReady(home, live.port, () => liveServer(home)?.pid === live.pid)
  } catch (error) {
    if (liveServer(home)?.pid === live.pid) throw error
    return undefined
  }
  await createDatabase(home, live.port)
  return handle(home, live, true)
}

function liveServer(home: string): Live | undefined {
  const data = join(home, 'data')
  let lines: string[]
  try {
    lines = readFileSync(join(data, 'postmaster.pid'), 'utf8').split('\n')
  } catch (error) {
    if (['ENOENT', 'ENOTDIR'].includes(codeOf(error) ?? '')) return undefined
    throw new EmbeddedError(
      `${home} cannot be read (${codeOf(error)}): run as the user who made it, ${wayOut}`,
    )
  }
  const [pid, port] = [Number(lines[0]), Number(lines[3])]
  return pid > 1 && port > 0 && isServerOf(pid, data) ? { pid, port } : undefined
}

/** After a crash the pid in the lock file may belong to anybody. The postmaster's working directory is its data. */
function isServerOf(pid: number, data: string): boolean {
  if (process.platform !== 'linux') {
    try {
      const line = execFileSync('ps', ['-o', 'command=', '-p', String(pid)], { encoding: 'utf8' })
      return line.includes('postgres') && line.includes(data)
    } catch {
      return false
    }
  }
  let words: string[]
  try {
    words = readFileSync(`/proc/${pid}/cmdline`, 'utf8').split('\0')
  } catch {
    return false
  }
  if (!['postgres', 'postmaster'].includes(basename(words[0] ?? ''))) return false
  try {
    return readlinkSync(`/proc/${pid}/cwd`) === data
  } catch {
    return words.includes(data)
  }
}

/** Made aside and renamed, so that a folder named `data` is always a whole one. */
function makeData(place: Place, { fsync = true, note = () => {} }: EmbeddedOptions): void {
  const { home, account } = place
  for (const name of readdirSync(home).filter((entry) => entry.startsWith('making-'))) {
    if (isBeingMade(join(home, name), Number(name.split('-')[1]))) continue
    rmSync(join(home, name), { recursive: true, force: true })
    note(`removed ${join(home, name)}, left half made by a start that was cut off`)
  }
  const data = join(home, 'data')
  if (existsSync(data)) {
    checkData(place)
    return
  }
  makePassword(place)
  const making = join(home, `making-${process.pid}-${randomBytes(4).toString('hex')}`)
  const args = ['-D', making, '-U', 'postgres', '-E', 'UTF8', '--locale=C', '--auth=scram-sha-256']
  args.push(`--pwfile=${join(home, 'password')}`)
  // From 17 on Postgres itself knows the case of letters beyond ASCII, the same on every system.
  if (place.major >= 17) args.push('--locale-provider=builtin', '--builtin-locale=C.UTF-8')
  if (!fsync) args.push('--no-sync')
  try {
    execFileSync(join(place.bin, 'initdb'), args, {
      ...identity(account),
      cwd: '/',
      env: cleanEnv,
      stdio: 'pipe',
      encoding: 'utf8',
    })
    renameSync(making, data)
  } catch (error) {
    // Another starter's folder was there first: just as good.
    if (existsSync(join(data, 'PG_VERSION'))) return
    const said = (error as { stderr?: string }).stderr?.trim() ?? (error as Error).message
    throw new EmbeddedError(`Postgres could not make its data folder in ${home}: ${said}`)
  } finally {
    rmSync(making, { recursive: true, force: true })
  }
}

/** In containers a new process soon has the number of a dead one, so age has its say too. */
function isBeingMade(path: string, pid: number): boolean {
  if (pid === process.pid || !existsSync(path)) return false
  return isAlive(pid) && Date.now() - statSync(path).mtimeMs < 600_000
}

function checkData({ home, major }: Place): void {
  const data = join(home, 'data')
  const file = join(data, 'PG_VERSION')
  if (!existsSync(file)) {
    throw new EmbeddedError(
      `${data} is no data folder of Postgres (it has no PG_VERSION): move it away, ${wayOut}`,
    )
  }
  const found = readFileSync(file, 'utf8').trim()
  if (found !== String(major)) {
    throw new EmbeddedError(
      `${data} was made by Postgres ${found}, and this is Postgres ${major}: dump it with the release that made it, ` +
        `or move it away to begin anew, ${wayOut}`,
    )
  }
  if (!existsSync(join(home, 'password'))) {
    throw new EmbeddedError(
      `${join(home, 'password')} is gone, and with it the way into ${data}: put it back, ` +
        `or move ${home} away to begin anew, ${wayOut}`,
    )
  }
}

/** linkSync gives the name to a whole file or fails: of two starters the first decides. */
function makePassword(place: Place): void {
  const path = join(place.home, 'password')
  if (existsSync(path)) return
  const draft = `password.${randomBytes(4).toString('hex')}`
  keep(place, draft, `${randomBytes(24).toString('hex')}\n`)
  try {
    linkSync(join(place.home, draft), path)
  } catch (error) {
    if (codeOf(error) !== 'EEXIST') throw error
  } finally {
    rmSync(join(place.home, draft))
  }
}

/** Writes a file that the account owns, whoever we are, and only it can read. */
function keep({ home, account }: Place, name: string, text: string): void {
  const path = join(home, name)
  writeFileSync(path, text, { mode: 0o600 })
  if (account) chownSync(path, account.uid, account.gid)
}

/**
 * After a crash. Postgres itself takes over the lock of a dead process, but not when its number was given to another
 * one since. Backends that outlive their postmaster for a moment must be gone first: the lock guards against them too.
 */
async function mendLock({ home }: Place, note: EmbeddedOptions['note']): Promise<void> {
  const data = join(home, 'data')
  const lock = join(data, 'postmaster.pid')
  if (!existsSync(lock)) return
  const give = Date.now() + orphansMaxMs
  for (let orphans = processesIn(data); orphans.length > 0; orphans = processesIn(data)) {
    if (liveServer(home)) return
    if (Date.now() > give) {
      throw new EmbeddedError(
        `processes of a Postgres that died still work on ${data}: end them (${orphans.join(', ')})`,
      )
    }
    await sleep(25)
  }
  if (liveServer(home)) return
  const pid = Number(readFileSync(lock, 'utf8').split('\n')[0])
  if (isAlive(pid)) rmSync(lock)
  note?.('the database was not shut down the last time: it recovers now')
}

/** Every process of a server has its data as working directory. Elsewhere than on Linux Postgres's own guard must do. */
function processesIn(data: string): number[] {
  if (process.platform !== 'linux') return []
  const pids = readdirSync('/proc').filter((name) => /^\d+$/.test(name))
  return pids.map(Number).filter((pid) => {
    try {
      return readlinkSync(`/proc/${pid}/cwd`) === data
    } catch {
      return false
    }
  })
}

function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0)
    return true
  } catch (error) {
    return codeOf(error) !== 'ESRCH'
  }
}

async function choosePort({ home }: Place, another: boolean): Promise<number> {
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

function spawnServer(place: Place, port: number, options: EmbeddedOptions): ChildProcess {
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

const urlOf = (home: string, port: number, database = databaseName): string => {
  const password = readFileSync(join(home, 'password'), 'utf8').trim()
  return `postgres://postgres:${password}@127.0.0.1:${port}/${database}`
}

async function untilReady(home: string, port: number, alive: () => boolean): Promise<void> {
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

function logTail(home: string): string {
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
async function createDatabase(home: string, port: number): Promise<void> {
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

function handle(home: string, live: Live, adopted: boolean, child?: ChildProcess): Embedded {
  const isThere = () =>
    child
      ? child.exitCode === null && child.signalCode === null
      : liveServer(home)?.pid === live.pid
  const stop = async () => {
    // SIGINT is Postgres's fast shutdown: sessions end, then a checkpoint; never SIGKILL, which would leave a recovery.
    if (isThere()) process.kill(live.pid, 'SIGINT')
    while (isThere()) await sleep(20)
  }
  return { url: urlOf(home, live.port), ...live, adopted, stop }
}
