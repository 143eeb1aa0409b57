// The two programs as people and supervisors start them: real processes, real workers, an embedded Postgres of their own.

import assert from 'node:assert/strict'
import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { chmodSync, existsSync, mkdtempSync, readdirSync, writeFileSync } from 'node:fs'
import { createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { stripVTControlCharacters } from 'node:util'
import { claimFolder } from '../cli/claim.ts'
import { pretty } from '../cli/lines.ts'
import { createSupervisor, restartDelayMs } from '../cli/supervisor.ts'
import { age, table } from '../cli/table.ts'
import { findEmbedded, startEmbedded } from '../db/embedded.ts'
import { startGuard } from './setup.ts'

const cli = join(import.meta.dirname, '..', 'cli')
const base = mkdtempSync(join(tmpdir(), 'flotilla-fleet-'))
chmodSync(base, 0o755)

/** Ends what was started also when this file is killed. */
const guard = startGuard()
guard.watch({ dir: base })
after(() => guard.end())

const environment = (dataDir: string, more: Record<string, string> = {}) => ({
  PATH: process.env.PATH ?? '',
  FLEET_DATA_DIR: dataDir,
  METRICS_PORT: '0',
  WAITINGROOM_PORT: '0',
  ...more,
})

type Running = {
  child: ChildProcess
  /** stdout and stderr so far. */
  text(): string
  /** Waits for something to be said. */
  said(pattern: RegExp, from?: number): Promise<RegExpExecArray>
  ended: Promise<number | null>
}

function start(words: string[], env: Record<string, string>): Running {
  const [program = '', ...args] = words
  const child = spawn(process.execPath, [join(cli, `${program}.js`), ...args], { env, cwd: base })
  guard.watch({ pid: child.pid, signal: 'SIGTERM' })
  let text = ''
  for (const stream of [child.stdout, child.stderr]) {
    stream.on('data', (chunk) => {
      text += chunk
    })
  }
  const ended = once(child, 'close').then(([code]) => code as number | null)
  const said = async (pattern: RegExp, from = 0): Promise<RegExpExecArray> => {
    for (;;) {
      const found = pattern.exec(text.slice(from))
      if (found) return found
      const over = await Promise.race([ended, sleep(50, 'waiting' as const)])
      if (over !== 'waiting') assert.fail(`ended with ${over} before it said ${pattern}:\n${text}`)
    }
  }
  return { child, text: () => text, said, ended }
}

async function run(words: string, env: Record<string, string>) {
  const { text, ended } = start(words.split(' '), env)
  return { code: await ended, text: text() }
}

function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0)
    return true
  } catch {
    return false
  }
}

async function untilGone(pid: number): Promise<void> {
  while (isAlive(pid)) await sleep(20)
}

const workerPid = (name: string) =>
  new RegExp(`^${name} +\\| \\{.*"pid":(\\d+).*runs until it is told`, 'm')

test('fleet up: starts, refuses a second one, mends what dies, and one Ctrl-C stops all', async () => {
  const dataDir = join(base, 'up')
  const env = environment(dataDir)
  const fleet = start(['fleet', 'up', '--only', 'outbox,expiry'], env)
  const [, postgres] = await fleet.said(/started the embedded Postgres \(pid (\d+)/)
  const [, outbox] = await fleet.said(workerPid('outbox'))
  const [, expiry] = await fleet.said(workerPid('expiry'))

  const second = await run('fleet up --only expiry', env)
  assert.equal(second.code, 1)
  assert.match(
    second.text,
    new RegExp(`a fleet is up on .*up already \\(pid ${fleet.child.pid}\\)`),
  )

  const checked = await run('fleet check', env)
  assert.match(
    checked.text,
    /ok {4}postgres .*\nok {4}schema +current\nok {4}job table version \d+/,
  )
  assert.equal(checked.code, 0)
  const stats = await run('jobs stats email --json', env)
  const none = { ready: 0, delayed: 0, active: 0, failed: 0 }
  const idle = { ...none, oldest_seconds: null, paused: false }
  assert.deepEqual(JSON.parse(stats.text), [{ queue: 'email', ...idle, rate_per_second: 0 }])
  const people = await run('jobs stats', env)
  assert.match(people.text, /^queue +ready +delayed +active +failed +oldest +rate\/s\n/m)

  const before = fleet.text().length
  process.kill(Number(outbox), 'SIGKILL')
  await fleet.said(/fleet: outbox was ended by SIGKILL: it starts again in 1 s/, before)
  const [, another] = await fleet.said(workerPid('outbox'), before)
  assert.notEqual(another, outbox)

  fleet.child.kill('SIGINT')
  assert.equal(await fleet.ended, 0)
  for (const pid of [another, expiry, postgres]) assert.equal(isAlive(Number(pid)), false)
  assert.match(fleet.text(), /^outbox \| .*"stopped"/m)
  assert.equal(await findEmbedded(dataDir), undefined)
  assert.equal(existsSync(join(dataDir, 'fleet.pid')), false)
})

test('fleet up: workers stop when their supervisor is killed, and the next fleet takes over', async () => {
  const dataDir = join(base, 'killed')
  const env = environment(dataDir)
  const first = start(['fleet', 'up', '--only', 'expiry'], env)
  const [, expiry] = await first.said(workerPid('expiry'))
  first.child.kill('SIGKILL')
  await untilGone(Number(expiry))

  const second = start(['fleet', 'up', '--only', 'expiry'], env)
  await second.said(/took over the running embedded Postgres/)
  await second.said(workerPid('expiry'))
  second.child.kill('SIGTERM')
  assert.equal(await second.ended, 0)
  assert.equal(await findEmbedded(dataDir), undefined)
})

test('fleet up: starts its Postgres again when that was killed, where the workers know it', async () => {
  const dataDir = join(base, 'lost')
  const env = environment(dataDir)
  const fleet = start(['fleet', 'up', '--only', 'expiry'], env)
  const [, postgres] = await fleet.said(/started the embedded Postgres \(pid (\d+)/)
  const [, expiry] = await fleet.said(workerPid('expiry'))
  const url = await findEmbedded(dataDir)

  process.kill(Number(postgres), 'SIGKILL')
  await fleet.said(new RegExp(`Postgres \\(pid ${postgres}\\) died: it starts again in 1 s`))
  const [, another] = await fleet.said(/started the embedded Postgres again \(pid (\d+)\)/)
  assert.equal(await findEmbedded(dataDir), url)
  assert.ok(isAlive(Number(expiry)), 'the worker lived on')
  assert.equal((await run('fleet check', env)).code, 0)

  fleet.child.kill('SIGINT')
  assert.equal(await fleet.ended, 0)
  assert.match(fleet.text(), /^stopping Postgres$/m)
  assert.equal(isAlive(Number(another)), false)
})

test('a program ends also when nobody reads what it said', async () => {
  const main = join(cli, 'main.ts')
  const child = spawn(
    process.execPath,
    [
      '--input-type=module',
      '-e',
      `const { main } = await import(${JSON.stringify(main)})
      // More than a pipe and its reader hold.
      process.stdout.write('x'.repeat(2 ** 22))
      await main('fleet', ['nope'])`,
    ],
    { env: environment(base), stdio: ['ignore', 'pipe', 'ignore'] },
  )
  guard.watch({ pid: child.pid, signal: 'SIGTERM' })
  child.stdout.pause()
  assert.deepEqual(await once(child, 'exit'), [2, null])
})

test('a fleet takes over the file of one that is gone, leaves that of a living one, and no others', () => {
  const dataDir = join(base, 'claim')
  const release = claimFolder(dataDir)
  assert.throws(() => claimFolder(dataDir), /already \(pid \d+\)/)
  release()
  for (const stale of [JSON.stringify({ pid: process.pid, started: 'long ago' }), '{"pid":', '']) {
    writeFileSync(join(dataDir, 'fleet.pid'), stale)
    const again = claimFolder(dataDir)
    assert.deepEqual(readdirSync(dataDir), ['fleet.pid'])
    again()
    assert.deepEqual(readdirSync(dataDir), [])
  }
})

test('fleet run: is the worker itself, on the running embedded Postgres, with its limits', async () => {
  const dataDir = join(base, 'run')
  const env = environment(dataDir)
  const none = await run('fleet run expiry --once', env)
  assert.equal(none.code, 1)
  assert.match(none.text, /DATABASE_URL is not set, and no embedded Postgres is running in .*run/)

  const server = await startEmbedded({ dataDir, fsync: false })
  guard.watch({ pid: server.pid, signal: 'SIGQUIT' })
  try {
    assert.equal((await run('fleet migrate', env)).code, 0)
    const worker = start(['fleet', 'run', 'expiry', '--once', '--time-limit', '60'], env)
    const { text } = worker
    assert.equal(await worker.ended, 0)
    assert.match(text(), new RegExp(`"pid":${worker.child.pid},`))
    assert.match(text(), /stops by itself when 60 s have passed, or there is nothing to do/)

    const asked = start(['fleet', 'run', 'expiry'], env)
    await asked.said(/runs until it is told to stop/)
    asked.child.kill('SIGTERM')
    assert.equal(await asked.ended, 0)
  } finally {
    await server.stop()
  }
})

test('fleet up: names the faults of all workers at once, before anything is started', async () => {
  const dataDir = join(base, 'faults')
  const wrong = { LOG_LEVEL: 'loud', EXPIRY_BATCH: 'many', RESERVATION_TTL: '-1' }
  const { code, text } = await run('fleet up', environment(dataDir, wrong))
  assert.equal(code, 78)
  assert.match(text, /LOG_LEVEL must be one of trace, .*\(it is "loud"\)$/m)
  assert.match(text, /EXPIRY_BATCH must be .* \(expiry\)$/m)
  assert.match(text, /RESERVATION_TTL must be .* \(http\)$/m)
  assert.equal(existsSync(join(dataDir, 'postgres')), false)
})

test('fleet up: a port that is taken is told before anything is started', async () => {
  const dataDir = join(base, 'port')
  const squatter = createServer().listen(0, '127.0.0.1')
  await once(squatter, 'listening')
  const { port } = squatter.address() as { port: number }
  try {
    const { code, text } = await run('fleet up', environment(dataDir, { HTTP_PORT: String(port) }))
    assert.equal(code, 1)
    assert.match(text, new RegExp(`port ${port} on 127.0.0.1 is in use: .* HTTP_PORT`))
    assert.equal(existsSync(join(dataDir, 'postgres')), false)
  } finally {
    squatter.close()
  }
})

test('fleet check: exit 1 names what cannot be reached', async () => {
  const nowhere = {
    DATABASE_URL: 'postgres://me:hidden@127.0.0.1:1/none',
    REDIS_URL: 'redis://127.0.0.1:1',
  }
  const { code, text } = await run('fleet check', environment(join(base, 'check'), nowhere))
  assert.equal(code, 1)
  assert.match(text, /FAIL {2}postgres .*me@127.0.0.1:1\/none .*ECONNREFUSED/)
  assert.match(text, /FAIL {2}redis .*127.0.0.1:1 .*ECONNREFUSED/)
  assert.doesNotMatch(text, /hidden/)
})

test('fleet check: production has no embedded Postgres, and every fault is told at once', async () => {
  const { code, text } = await run(
    'fleet check',
    environment(join(base, 'check-production'), { NODE_ENV: 'production', HTTP_PORT: 'x' }),
  )
  assert.equal(code, 1)
  assert.match(text, /FAIL {2}settings {2}DATABASE_URL is not set$/m)
  assert.match(text, /FAIL {2}settings {2}QUEUE_TOKEN_SECRET is not set \(waitingroom\)/)
  assert.match(text, /FAIL {2}settings {2}AUTH_MODE mock is refused when NODE_ENV is production/)
  assert.match(text, /FAIL {2}postgres {2}DATABASE_URL is not set: the embedded one is refused/)
})

test('fleet check: asks the broker that a file names, whatever its kind', async () => {
  const file = join(base, 'broker')
  const said = async (url: string) => {
    writeFileSync(file, `${url}\n`)
    const env = { DATABASE_URL: 'postgres://me@127.0.0.1:1/none', BROKER_URL_FILE: file }
    return (await run('fleet check', environment(join(base, 'check'), env))).text
  }
  assert.match(
    await said('amqp://u:hidden@127.0.0.1:1'),
    /FAIL {2}broker +127.0.0.1:1 .*ECONNREFUSED/,
  )
  const redis = await said('redis+sentinel://:hidden@127.0.0.1:1/master')
  assert.match(redis, /FAIL {2}broker +127.0.0.1:1 /)
  assert.doesNotMatch(redis, /hidden/)
})

for (const { words, says } of [
  { words: 'fleet nope', says: /nope\nknown commands: up, run, migrate/ },
  { words: 'fleet up --only nope', says: /no worker "nope"; known: http, outbox/ },
  { words: 'fleet up --olny http', says: /olny\nfleet up --help/ },
  { words: 'fleet run', says: /which worker\? known: http, outbox/ },
  { words: 'fleet run nope', says: /no worker "nope"; known: http, outbox/ },
  { words: 'fleet run email --limit', says: /--limit needs a value\nfleet run --help/ },
  { words: 'fleet bench nope', says: /no bench "nope"; known: / },
  { words: 'jobs nope', says: /nope\nknown commands: stats/ },
  { words: 'jobs stats nope', says: /no queue "nope"; known: commands, .*email/ },
  { words: 'fleet jobs stats nope', says: /no queue "nope"/ },
]) {
  test(`wrong usage: ${words} exits 2 and says what is right`, async () => {
    const { code, text } = await run(words, environment(join(base, 'usage')))
    assert.match(text, says)
    assert.equal(code, 2)
  })
}

test('a process that keeps dying is started later and later, at most every 30 s', () => {
  const delays = [1, 2, 3, 4, 5, 6, 7, 100].map(restartDelayMs)
  assert.deepEqual(delays, [1000, 2000, 4000, 8000, 16_000, 30_000, 30_000, 30_000])
})

test('a process that says a restart does not mend it is left down, and named', async () => {
  const notes: string[] = []
  const idle = Promise.withResolvers<void>()
  const supervisor = createSupervisor({
    listen: (_, stream) => stream.resume(),
    note: (line) => notes.push(line),
    onIdle: idle.resolve,
  })
  supervisor.start({ name: 'broken', args: ['-e', 'process.exit(78)'], env: process.env })
  await idle.promise
  assert.match(notes.join(), /broken exited with 78: a restart does not mend that/)
})

test('a log line is one readable line on a terminal; what is no JSON stays as it is', () => {
  const line = JSON.stringify({
    level: 'warn',
    time: '2026-01-02T03:04:05.000Z',
    worker: 'email',
    pid: 1,
    provider: 'log',
    msg: 'sent late',
  })
  const plain = stripVTControlCharacters(pretty(line))
  assert.match(plain, /^\d\d:\d\d:05 sent late provider=log$/)
  assert.equal(pretty('Segmentation fault'), 'Segmentation fault')
})

test('tables line up, and ages read in their two largest units', () => {
  const rows = [
    ['email', '12'],
    ['commands', '7'],
  ]
  assert.deepEqual(table(['queue', 'ready'], rows), [
    'queue     ready',
    'email        12',
    'commands      7',
  ])
  assert.deepEqual([0, 59, 61, 7200, 90_061].map(age), ['0s', '59s', '1m 1s', '2h', '1d 1h'])
})
