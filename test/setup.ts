// The servers the tests run on, started once a run: Postgres from TEST_DATABASE_URL or DATABASE_URL, else Docker through
// testcontainers, else binaries on the PATH, else the embedded one; Redis from TEST_REDIS_URL or REDIS_URL, else
// redis-server on the PATH. Leaves in the environment of the test files a template database, migrated once, and
// TEST_REDIS_URL. What was started here ends with this process, however that ends.

import { type ChildProcess, execFileSync, spawn } from 'node:child_process'
import { createHash, randomBytes } from 'node:crypto'
import { once } from 'node:events'
import {
  chmodSync,
  existsSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  realpathSync,
  rmSync,
} from 'node:fs'
import { createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { delimiter, dirname, join } from 'node:path'
import pg from 'pg'
import { startEmbedded } from '../db/embedded.ts'
import { migrate } from '../db/migrate.ts'

/** Names in the environment by which the test files learn what there is. */
export const templateVariable = 'FLOTILLA_TEST_TEMPLATE_URL'
export const redisVariable = 'TEST_REDIS_URL'

/** The oldest Postgres that the fleet is run on. */
const oldestMajor = 15

const ends: (() => Promise<unknown>)[] = []

export async function globalSetup(): Promise<void> {
  try {
    keepCompiled()
    const url = await findPostgres()
    process.env[templateVariable] = await makeTemplate(url)
    const redis = await findRedis()
    if (redis) process.env[redisVariable] = redis
  } catch (error) {
    await globalTeardown()
    throw error
  }
}

export async function globalTeardown(): Promise<void> {
  for (const end of ends.splice(0).reverse()) await end()
}

/** Hundreds of processes load the same code: compiled once, each takes half a second of a processor less. */
function keepCompiled(): void {
  if (process.env.NODE_COMPILE_CACHE) return
  const folder = mkdtempSync(join(tmpdir(), 'flotilla-compiled-'))
  process.env.NODE_COMPILE_CACHE = folder
  ends.push(async () => rmSync(folder, { recursive: true, force: true, maxRetries: 3 }))
}

async function findPostgres(): Promise<string> {
  const given = process.env.TEST_DATABASE_URL || process.env.DATABASE_URL
  if (given) return given
  return (await dockerPostgres()) ?? (await privatePostgres())
}

/** testcontainers is not a dependency: who has Docker and wants it runs `npm install --no-save testcontainers`. */
async function dockerPostgres(): Promise<string | undefined> {
  try {
    execFileSync('docker', ['info'], { stdio: 'ignore', timeout: 5000 })
    const name: string = 'testcontainers'
    const { GenericContainer, Wait } = await import(name)
    const container = await new GenericContainer('postgres:18')
      .withEnvironment({ POSTGRES_PASSWORD: 'test' })
      .withCommand(['-c', 'fsync=off', '-c', 'max_connections=200'])
      .withExposedPorts(5432)
      .withWaitStrategy(Wait.forLogMessage(/ready to accept connections/, 2))
      .start()
    ends.push(() => container.stop())
    return `postgres://postgres:test@${container.getHost()}:${container.getMappedPort(5432)}/postgres`
  } catch {
    return undefined
  }
}

async function privatePostgres(): Promise<string> {
  const dataDir = mkdtempSync(join(tmpdir(), 'flotilla-test-'))
  // As root the server runs as another user, who has to get in.
  chmodSync(dataDir, 0o755)
  const guard = startGuard()
  ends.push(guard.end)
  guard.watch({ dir: dataDir })
  const bin = postgresOnPath()
  const server = await startEmbedded({ dataDir, fsync: false, ...(bin && { bin }) })
  guard.watch({ pid: server.pid, signal: 'SIGQUIT', dir: realpathSync(join(dataDir, 'postgres')) })
  return server.url
}

function postgresOnPath(): string | undefined {
  const found = onPath('postgres')
  if (!found) return undefined
  const bin = dirname(realpathSync(found))
  const version = execFileSync(found, ['--version'], { encoding: 'utf8' })
  const recent = Number(/(\d+)/.exec(version)?.[1]) >= oldestMajor
  return recent && existsSync(join(bin, 'initdb')) ? bin : undefined
}

const onPath = (program: string): string | undefined =>
  (process.env.PATH ?? '')
    .split(delimiter)
    .map((folder) => join(folder, program))
    .find((path) => existsSync(path))

/** Made aside and renamed: a template under its name is a whole one. Its name changes with all it is made of. */
async function makeTemplate(url: string): Promise<string> {
  const name = `flotilla_template_${schemaHash()}`
  const admin = new pg.Client({ connectionString: url })
  await admin.connect()
  try {
    await admin.query('select pg_advisory_lock(hashtext($1))', [name])
    const { rowCount } = await admin.query('select from pg_database where datname = $1', [name])
    if (rowCount === 0) {
      const making = `flotilla_making_${randomBytes(6).toString('hex')}`
      await admin.query(`create database ${making} template template0`)
      await migrate({ url: withDatabase(url, making) })
      await admin.query(`alter database ${making} rename to ${name}`)
    }
  } finally {
    await admin.end()
  }
  return withDatabase(url, name)
}

export function withDatabase(url: string, database: string): string {
  const changed = new URL(url)
  changed.pathname = `/${database}`
  return changed.href
}

/** All of db/ and the words it is built from: too much is only a template more. */
function schemaHash(): string {
  const root = join(import.meta.dirname, '..')
  const hash = createHash('sha256')
  for (const folder of ['db', 'db/migrations', 'domain']) {
    for (const file of readdirSync(join(root, folder)).sort()) {
      if (!/\.(ts|sql)$/.test(file)) continue
      hash.update(`${file}\n${readFileSync(join(root, folder, file), 'utf8')}\n`)
    }
  }
  hash.update(readFileSync(join(root, 'package-lock.json')))
  return hash.digest('hex').slice(0, 16)
}

async function findRedis(): Promise<string | undefined> {
  const given = process.env[redisVariable] || process.env.REDIS_URL
  if (given) return given
  const program = onPath('redis-server')
  if (!program) return undefined
  const port = await freePort()
  const dir = mkdtempSync(join(tmpdir(), 'flotilla-redis-'))
  const args = ['--port', String(port), '--bind', '127.0.0.1', '--dir', dir]
  const server = spawn(program, [...args, '--save', '', '--appendonly', 'no'], {
    detached: true,
    stdio: ['ignore', 'pipe', 'inherit'],
  })
  const guard = startGuard()
  ends.push(guard.end)
  guard.watch({ pid: server.pid, signal: 'SIGTERM', dir })
  await untilSaid(server, 'Ready to accept connections')
  return `redis://127.0.0.1:${port}`
}

async function untilSaid(server: ChildProcess, words: string): Promise<void> {
  let said = ''
  for await (const chunk of server.stdout ?? []) {
    said += chunk
    if (!said.includes(words)) continue
    server.stdout?.on('error', () => {}).resume()
    server.unref()
    return
  }
  throw new Error(`redis-server did not start:\n${said}`)
}

export async function freePort(): Promise<number> {
  const server = createServer().listen(0, '127.0.0.1')
  await once(server, 'listening')
  const address = server.address()
  server.close()
  await once(server, 'close')
  if (typeof address !== 'object' || !address) throw new Error('no free port')
  return address.port
}

export type Guard = {
  /** SIGQUIT is Postgres's immediate shutdown: nothing in a test is worth a checkpoint. */
  watch(what: {
    pid?: number | undefined
    signal?: 'SIGTERM' | 'SIGQUIT' | 'SIGKILL'
    /** With all of the group it leads. */
    group?: boolean
    dir?: string
  }): void
  end(): Promise<void>
}

/**
 * A process of its own that reads from us what to end and to remove, and does so when our end of the pipe closes: at the
 * teardown, and as well when this process was killed.
 */
export function startGuard(): Guard {
  const guard = spawn(process.execPath, [join(import.meta.dirname, 'guard.js')], {
    detached: true,
    stdio: ['pipe', 'ignore', 'inherit'],
  })
  guard.unref()
  return {
    watch: (what) => guard.stdin.write(`${JSON.stringify(what)}\n`),
    async end() {
      guard.ref()
      guard.stdin.end()
      if (guard.exitCode === null) await once(guard, 'exit')
    },
  }
}
