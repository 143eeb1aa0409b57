// The embedded Postgres on its own data folders: kept between runs, mended after crashes, adopted, and never deleted.

import assert from 'node:assert/strict'
import { execFileSync, spawn } from 'node:child_process'
import {
  chmodSync,
  existsSync,
  lstatSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  realpathSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs'
import { createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, afterEach, test } from 'node:test'
import pg from 'pg'
import { type Embedded, findEmbedded, startEmbedded } from '../db/embedded.ts'
import { startGuard } from './setup.ts'

const asRoot = process.getuid?.() === 0
const base = mkdtempSync(join(tmpdir(), 'flotilla-embedded-'))
chmodSync(base, 0o755)

const running: Embedded[] = []
/** Ends the servers also when this file is killed. */
const guard = startGuard()
guard.watch({ dir: base })

afterEach(async () => {
  for (const server of running.splice(0)) await server.stop()
})
after(() => guard.end())

/** Starts and remembers what there is to stop and to remove. */
async function start(dataDir: string, notes: string[] = []): Promise<Embedded> {
  const server = await startEmbedded({
    dataDir,
    fsync: false,
    settings: { shared_buffers: '16MB' },
    note: (line) => notes.push(line),
  })
  running.push(server)
  const dir = realpathSync(join(dataDir, 'postgres'))
  guard.watch({ pid: server.pid, signal: 'SIGQUIT', dir })
  return server
}

async function ask(url: string, statement: string): Promise<unknown> {
  const client = new pg.Client({ connectionString: url })
  await client.connect()
  try {
    const { rows } = await client.query(statement)
    return Object.values(rows[0] ?? {})[0]
  } finally {
    await client.end()
  }
}

/** As after the power went: the postmaster and its children are gone, their lock file is not. */
async function crash(server: Embedded): Promise<void> {
  running.splice(running.indexOf(server), 1)
  process.kill(server.pid, 'SIGKILL')
  while (isAlive(server.pid)) await new Promise((resolve) => setTimeout(resolve, 10))
}

function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0)
    return true
  } catch {
    return false
  }
}

test('keeps data, port and password between runs, and wants the password', async () => {
  const dataDir = join(base, 'kept')
  const first = await start(dataDir)
  assert.ok(first.port < 32_768, 'a port that no outgoing connection can take meanwhile')
  await ask(first.url, 'create table kept as select 42 as answer')
  await first.stop()
  assert.equal(isAlive(first.pid), false)
  assert.equal(await findEmbedded(dataDir), undefined)

  const second = await start(dataDir)
  assert.equal(second.url, first.url)
  assert.equal(second.adopted, false)
  assert.equal(await ask(second.url, 'select answer from kept'), 42)
  assert.equal(await findEmbedded(dataDir), second.url)

  const wrong = new URL(second.url)
  wrong.password = 'guess'
  await assert.rejects(ask(wrong.href, 'select 1'), { code: '28P01' })
  assert.equal(statSync(join(dataDir, 'postgres', 'password')).mode & 0o777, 0o600)
  assert.equal(await ask(second.url, 'show listen_addresses'), '127.0.0.1')
  assert.equal(await ask(second.url, 'show server_encoding'), 'UTF8')
  assert.equal(await ask(second.url, "select lower('ÄÉ')"), 'äé')
})

test('mends the lock that a crash left, and recovers what was committed', async () => {
  const dataDir = join(base, 'crashed')
  const first = await start(dataDir)
  await ask(first.url, 'create table kept as select 7 as answer')
  await crash(first)
  // The number of the dead postmaster now belongs to somebody else: to this very process.
  const lock = join(dataDir, 'postgres', 'data', 'postmaster.pid')
  const lines = readFileSync(lock, 'utf8').split('\n')
  writeFileSync(lock, [String(process.pid), ...lines.slice(1)].join('\n'))

  const notes: string[] = []
  const second = await start(dataDir, notes)
  assert.equal(second.adopted, false)
  assert.equal(await ask(second.url, 'select answer from kept'), 7)
  assert.match(notes.join(), /was not shut down the last time/)
})

test('takes another port when the kept one is taken', async () => {
  const dataDir = join(base, 'port')
  const first = await start(dataDir)
  await first.stop()
  const squatter = createServer().listen(first.port, '127.0.0.1')
  try {
    const second = await start(dataDir)
    assert.notEqual(second.port, first.port)
    assert.equal(await ask(second.url, 'select 1'), 1)
  } finally {
    squatter.close()
  }
})

test('removes a half-made folder and says so', async () => {
  const dataDir = join(base, 'half')
  await (await start(dataDir)).stop()
  const home = realpathSync(join(dataDir, 'postgres'))
  const half = join(home, 'making-999999999-abcd')
  mkdirSync(half)
  writeFileSync(join(half, 'PG_VERSION'), '18\n')
  const notes: string[] = []
  await start(dataDir, notes)
  assert.match(notes.join(), /making-999999999-abcd, left half made/)
  assert.deepEqual(readdirSync(home).sort(), ['data', 'password', 'postgres.log', 'server.json'])
})

test('adopts the server of a starter that was killed', async () => {
  const dataDir = join(base, 'orphan')
  const module = join(import.meta.dirname, '..', 'db', 'embedded.ts')
  const script = `
    const { startEmbedded } = await import(${JSON.stringify(module)})
    const { pid } = await startEmbedded({ dataDir: ${JSON.stringify(dataDir)}, fsync: false })
    console.log(pid)
    process.kill(process.pid, 'SIGKILL')`
  const starter = spawn(process.execPath, ['--input-type=module', '-e', script])
  let said = ''
  for await (const chunk of starter.stdout) said += chunk

  const server = await start(dataDir)
  assert.equal(server.adopted, true)
  assert.equal(server.pid, Number(said))
  assert.equal(await ask(server.url, 'select 1'), 1)
  await server.stop()
  assert.equal(await findEmbedded(dataDir), undefined)
})

test('two starters at once end up with one server', async () => {
  const dataDir = join(base, 'two')
  const [one, two] = await Promise.all([start(dataDir), start(dataDir)])
  assert.equal(one.url, two.url)
  assert.equal(one.pid, two.pid)
})

test('works below a folder that only its owner can enter', async () => {
  const closed = join(base, 'closed')
  mkdirSync(closed, { mode: 0o700 })
  const dataDir = join(closed, 'checkout', '.fleet')
  const notes: string[] = []
  const server = await start(dataDir, notes)
  await ask(server.url, 'create table kept as select 3 as answer')
  await server.stop()
  const again = await start(dataDir)
  assert.equal(await ask(again.url, 'select answer from kept'), 3)
  assert.equal(lstatSync(join(dataDir, 'postgres')).isSymbolicLink(), asRoot)
  assert.equal(notes.length, asRoot ? 1 : 0)
})

test('names a folder of another major version and leaves it alone', async () => {
  const dataDir = join(base, 'older')
  await (await start(dataDir)).stop()
  const file = join(dataDir, 'postgres', 'data', 'PG_VERSION')
  writeFileSync(file, '11\n')
  await assert.rejects(
    start(dataDir),
    /was made by Postgres 11, and this is Postgres \d+: .*DATABASE_URL/,
  )
  assert.equal(readFileSync(file, 'utf8'), '11\n')
})

test('names a folder that is not Postgres’s and leaves it alone', async () => {
  const dataDir = join(base, 'foreign')
  await (await start(dataDir)).stop()
  const data = join(dataDir, 'postgres', 'data')
  rmSync(join(data, 'PG_VERSION'))
  await assert.rejects(start(dataDir), /is no data folder of Postgres/)
  assert.equal(existsSync(join(data, 'global')), true)
})

test('shows the end of the log when Postgres does not start', async () => {
  const dataDir = join(base, 'refused')
  await assert.rejects(
    startEmbedded({ dataDir, fsync: false, settings: { max_connections: 'many' } }),
    /did not start[\s\S]*invalid value for parameter "max_connections": "many"/,
  )
})

test('is out of reach of the terminal’s Ctrl-C', async () => {
  const server = await start(join(base, 'group'))
  const group = execFileSync('ps', ['-o', 'pgid=', '-p', String(server.pid)], { encoding: 'utf8' })
  assert.equal(Number(group), server.pid)
})

test('stops while it starts over after a crash', async () => {
  const dataDir = join(base, 'crash')
  const server = await start(dataDir)
  const client = new pg.Client({ connectionString: server.url })
  client.on('error', () => {})
  await client.connect()
  const { rows } = await client.query('select pg_backend_pid() as pid')
  process.kill(rows[0].pid, 'SIGKILL')
  const log = join(dataDir, 'postgres', 'postgres.log')
  while (!readFileSync(log, 'utf8').includes('reinitializing')) {
    await new Promise((resolve) => setTimeout(resolve, 5))
  }
  const began = performance.now()
  await server.stop()
  assert.ok(performance.now() - began < 30_000, 'it did not have to be cut off')
  assert.equal(isAlive(server.pid), false)
})
