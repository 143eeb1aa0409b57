// The waiting room with a crowd: people join over HTTP, each listens on a WebSocket, some are let in each second while
// all others are kept up to date; the line is paused and resumed; some thousands lose their connection at once; then the
// event is sold out. Beside it, in the same run, a plain `ws` server that broadcasts every change to all.
// Usage: fleet bench waitingroom [--people 100000] [--servers 6] [--crowds 6] [--seconds 30] [--herd 12000]
// [--fair 50000] [--skip-plain]. Postgres and Redis are private ones. Exits 1 when anybody was let in twice, out of
// order, or not at all.

import { type ChildProcess, fork, spawn } from 'node:child_process'
import { once } from 'node:events'
import { chmodSync, existsSync, mkdtempSync, readFileSync, realpathSync, rmSync } from 'node:fs'
import { createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { parseArgs } from 'node:util'
import { Redis } from 'ioredis'
import { sql } from 'kysely'
import { startOf, workers } from '../cli/workers.ts'
import { startEmbedded } from '../db/embedded.ts'
import { createEvent } from '../db/events.ts'
import { migrate } from '../db/migrate.ts'
import { openDatabase } from '../db/open.ts'
import { transaction } from '../db/transaction.ts'
import { type Figure, noteResult } from './report/results.ts'
import type { Order, Report } from './waitingroom/crowd.ts'

const { values } = parseArgs({
  options: {
    people: { type: 'string', default: '100000' },
    servers: { type: 'string', default: '6' },
    crowds: { type: 'string', default: '6' },
    seconds: { type: 'string', default: '30' },
    herd: { type: 'string', default: '12000' },
    fair: { type: 'string', default: '50000' },
    'skip-plain': { type: 'boolean', default: false },
  },
})
const [people, servers, crowds, seconds, herd, fair] = [
  values.people,
  values.servers,
  values.crowds,
  values.seconds,
  values.herd,
  values.fair,
].map(Number) as [number, number, number, number, number, number]
const root = join(import.meta.dirname, '..')
const secret = 'a secret for this bench'
let wrong = false

const freePort = () =>
  new Promise<number>((resolve) => {
    const server = createServer().listen(0, '127.0.0.1', () => {
      const { port } = server.address() as { port: number }
      server.close(() => resolve(port))
    })
  })

const say = (label: string, text: string) => console.log(`${label.padEnd(46)} ${text}`)
const perSecond = (count: number, ms: number) => `${Math.round((count / ms) * 1000)}/s`

function percentiles(all: number[]): string {
  if (all.length === 0) return 'none seen'
  const sorted = Float64Array.from(all).sort()
  const at = (share: number) =>
    sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))]
  return `p50 ${at(0.5)}  p99 ${at(0.99)}  max ${sorted.at(-1)} ms  (${all.length})`
}

const at99 = (all: readonly number[]): number =>
  all.toSorted((a, b) => a - b)[Math.floor(all.length * 0.99)] ?? Number.NaN

const figures: Record<'resident' | 'steady' | 'silent' | 'change', Figure[]> = {
  resident: [],
  steady: [],
  silent: [],
  change: [],
}

function noteFigures(): void {
  const title = `${people} people`
  const less = (what: string, unit: string, of: Figure[]) =>
    noteResult({ title: `${title}: ${what}`, unit, better: 'less', figures: of })
  less('resident a connection', 'kB', figures.resident)
  less('told while 20 a second are let in, p99', 'ms', figures.steady)
  less('nobody hears nothing for longer', 's', figures.silent)
  less('a change that concerns everybody, p99', 'ms', figures.change)
}

const rssOf = (child: ChildProcess) =>
  Number(/VmRSS:\s+(\d+)/.exec(readFileSync(`/proc/${child.pid}/status`, 'utf8'))?.[1] ?? 0)

const folder = mkdtempSync(join(tmpdir(), 'flotilla-bench-'))
// As root the server runs as another user, who has to get in.
chmodSync(folder, 0o711)
const redisPort = await freePort()
const redisServer = spawn(
  'redis-server',
  ['--port', String(redisPort), '--bind', '127.0.0.1', '--save', '', '--dir', folder],
  { stdio: 'ignore' },
)
const redisUrl = `redis://127.0.0.1:${redisPort}`
const embedded = await startEmbedded({ dataDir: folder })
await migrate({ url: embedded.url })
const { db, close } = openDatabase({ url: embedded.url, name: 'bench', statementMaxMs: 0 })
const children = new Set<ChildProcess>()

async function cleanUp(): Promise<void> {
  for (const child of children) child.kill('SIGKILL')
  await close().catch(() => {})
  await embedded.stop()
  redisServer.kill('SIGKILL')
  const data = join(folder, 'postgres')
  if (existsSync(data)) rmSync(realpathSync(data), { recursive: true, force: true })
  rmSync(folder, { recursive: true, force: true, maxRetries: 5 })
}
for (const signal of ['SIGINT', 'SIGTERM'] as const) {
  process.once(signal, () => cleanUp().then(() => process.exit(130)))
}

function serverProcess(port: number): ChildProcess {
  const worker = workers.find(({ name }) => name === 'waitingroom')!
  const start = startOf(worker, { ...process.env }, folder)
  const child = spawn(process.execPath, start.args, {
    stdio: ['ignore', 'pipe', 'inherit'],
    env: {
      ...start.env,
      DATABASE_URL: embedded.url,
      REDIS_URL: redisUrl,
      FLEET_DATA_DIR: folder,
      WAITINGROOM_PORT: String(port),
      METRICS_PORT: '0',
      LOG_LEVEL: 'info',
      INTERNAL_AUTH_SECRET: secret,
      QUEUE_TOKEN_SECRET: secret,
      QUEUE_JOINS_PER_USER: '0',
      QUEUE_JOINS_PER_ADDRESS: '0',
    },
  })
  children.add(child)
  child.once('exit', () => children.delete(child))
  return child
}

/** Says whether it leads, as its log tells. */
function watchLog(child: ChildProcess, onLine: (line: string) => void): Promise<void> {
  return new Promise((resolve) => {
    child.stdout?.setEncoding('utf8').on('data', (chunk: string) => {
      if (chunk.includes('waits at')) resolve()
      for (const line of chunk.split('\n')) {
        if (/"level":"(warn|error|fatal)"/.test(line)) console.log(line.slice(0, 300))
        onLine(line)
      }
    })
  })
}

type Crowd = { tell<T = number>(order: Order): Promise<T>; address: string; child: ChildProcess }

function startCrowd(i: number): Crowd {
  const child = fork(join(root, 'bench/waitingroom/crowd.ts'))
  children.add(child)
  child.once('exit', () => children.delete(child))
  return {
    child,
    address: `127.0.1.${i + 1}`,
    async tell<T>(order: Order) {
      child.send(order)
      const [told] = (await once(child, 'message')) as [{ answer?: T; error?: string }]
      if (told.error !== undefined) throw new Error(told.error)
      return told.answer as T
    },
  }
}

async function reports(all: Crowd[]): Promise<Report> {
  const each = await Promise.all(all.map((crowd) => crowd.tell<Report>({ do: 'report' })))
  const joined = (
    name: 'moves' | 'turns' | 'states' | 'statesInFront' | 'ends' | 'endsInFront' | 'broadcasts',
  ) => each.flatMap((report) => report[name])
  return {
    open: each.reduce((sum, report) => sum + report.open, 0),
    moves: joined('moves'),
    turns: joined('turns'),
    states: joined('states'),
    statesInFront: joined('statesInFront'),
    ends: joined('ends'),
    endsInFront: joined('endsInFront'),
    broadcasts: joined('broadcasts'),
    gapMs: Math.max(...each.map((report) => report.gapMs)),
    messages: each.reduce((sum, report) => sum + report.messages, 0),
    wrong: each.flatMap((report) => report.wrong).slice(0, 10),
    lagMs: Math.max(...each.map((report) => report.lagMs)),
  }
}

const everyone = (all: Crowd[], order: (crowd: Crowd, i: number) => Order) =>
  Promise.all(all.map((crowd, i) => crowd.tell(order(crowd, i))))
const sum = (numbers: number[]) => numbers.reduce((a, b) => a + b, 0)

async function makeMatch(): Promise<string> {
  const sections = [{ name: 'A', capacity: 100_000, price_minor: 5000, currency: 'EUR' }]
  return await transaction(db, (tx) =>
    createEvent(tx, {
      name: 'Final',
      starts_at: '2030-07-01T18:00:00Z',
      waiting_room: true,
      sections,
    }),
  )
}

async function operate(port: number, match: string, name: string, body: object = {}) {
  const answer = await fetch(`http://127.0.0.1:${port}/api/v1/queue/${match}/${name}`, {
    method: 'POST',
    headers: { 'content-type': 'application/json', 'x-internal-auth': secret },
    body: JSON.stringify(body),
  })
  if (!answer.ok) throw new Error(await answer.text())
}

async function forget(all: Crowd[]) {
  await everyone(all, () => ({ do: 'forget' }))
}

function tellSteady(report: Report, label: string): void {
  say(`${label}: told of a turn`, percentiles(report.turns))
  say(`${label}: told of a move in the front 3,000`, percentiles(report.moves))
  say(`${label}: longest without a word`, `${(report.gapMs / 1000).toFixed(1)} s`)
  tellWrong(report)
}

function tellWrong(report: Report): void {
  if (report.wrong.length === 0) return
  console.log('WRONG', report.wrong)
  wrong = true
}

async function waitingRoom(): Promise<void> {
  console.log(
    `\nthe waiting room: ${people} people, ${servers} server processes, ${crowds} of people\n`,
  )
  const port = await freePort()
  const match = await makeMatch()
  const startAll = async () => {
    const started = Array.from({ length: servers }, () => serverProcess(port))
    await Promise.all(started.map((child) => watchLog(child, () => {})))
    return started
  }
  let running = await startAll()
  const all = Array.from({ length: crowds }, (_, i) => startCrowd(i))
  const each = Math.floor(people / crowds)
  let at = performance.now()
  let cpu = cpuOf(running)
  const cpuEach = (count: number) => {
    const used = cpuOf(running) - cpu
    cpu += used
    return `${Math.round((used / count) * 1e6)} µs of the servers’ CPU each`
  }
  const joined = sum(
    await everyone(all, (_, i) => ({
      do: 'join',
      match,
      port,
      first: i * each,
      count: each,
      lanes: 32,
    })),
  )
  say(
    'joins, over HTTP',
    `${joined} in ${((performance.now() - at) / 1000).toFixed(1)} s: ${perSecond(joined, performance.now() - at)}`,
  )
  say('', cpuEach(joined))
  await operate(port, match, 'rate', { rate: 0, capacity: 1_000_000 })
  at = performance.now()
  await operate(port, match, 'open')
  say('the draw of all of them', `${((performance.now() - at) / 1000).toFixed(1)} s`)
  // Places outlive their processes. These begin anew, so that what is resident is the connections'.
  for (const child of running) child.kill('SIGTERM')
  await Promise.all(running.map((child) => once(child, 'exit')))
  running = await startAll()
  await sleep(3000)
  const idle = sum(running.map(rssOf))
  cpu = cpuOf(running)
  at = performance.now()
  const connected = sum(
    await everyone(all, ({ address }) => ({ do: 'connect', port, address, together: 200 })),
  )
  say(
    'connections',
    `${connected} in ${((performance.now() - at) / 1000).toFixed(1)} s: ${perSecond(connected, performance.now() - at)}`,
  )
  say('', cpuEach(connected))
  await sleep(12_000)
  const after = sum(running.map(rssOf))
  say(
    'resident, all server processes',
    `${Math.round(idle / 1024)} MB idle, ${Math.round(after / 1024)} MB with them`,
  )
  const perConnection = (after - idle) / connected
  say('resident a connection', `${perConnection.toFixed(2)} kB, with all they have beside it`)

  cpu = cpuOf(running)
  await operate(port, match, 'rate', { rate: 1200 })
  await sleep(2000)
  await forget(all)
  at = performance.now()
  await sleep(seconds * 1000)
  const steady = await reports(all)
  const took = performance.now() - at
  tellSteady(steady, 'steady, 20 let in a second')
  figures.resident.push({ name: 'the waiting room', value: perConnection, target: { value: 6 } })
  figures.steady.push(
    { name: 'told of a turn', value: at99(steady.turns), target: { value: 100 } },
    { name: 'told of a move in the front', value: at99(steady.moves), target: { value: 100 } },
  )
  figures.silent.push({ name: 'longest', value: steady.gapMs / 1000, target: { value: 10 } })
  say('messages', perSecond(steady.messages, took))
  say(
    'cores, all server processes',
    (cpuOf(running) - cpu > 0 ? (cpuOf(running) - cpu) / ((took + 2000) / 1000) : 0).toFixed(2),
  )
  say('event loop of the people’s processes, p99', `${steady.lagMs.toFixed(0)} ms`)

  await forget(all)
  await operate(port, match, 'pause')
  await sleep(5000)
  const paused = await reports(all)
  say('paused: the front 3,000', percentiles(paused.statesInFront))
  say('paused: everybody', percentiles(paused.states))
  const pausedAt = at99(paused.statesInFront)
  figures.steady.push({
    name: 'the front told of a pause',
    value: pausedAt,
    target: { value: 100 },
  })
  await operate(port, match, 'resume')
  await sleep(5000)

  // By processes of their own, so that the others measure the server and not the work of coming back.
  const away = all.slice(-2)
  const others = all.slice(0, -2)
  const lost = sum(await everyone(away, () => ({ do: 'drop', count: Math.floor(herd / 2) })))
  await sleep(2000)
  await forget(all)
  at = performance.now()
  const back = sum(
    await everyone(away, ({ address }) => ({ do: 'again', port, address, together: 6000 })),
  )
  const backMs = performance.now() - at
  await sleep(2000)
  say(`${lost} come back at once`, `${back} in ${(backMs / 1000).toFixed(1)} s`)
  tellSteady(await reports(others), 'the others meanwhile')
  tellWrong(await reports(away))

  await forget(all)
  await operate(port, match, 'sold-out', { remaining_sectors: [] })
  await sleep(5000)
  const ended = await reports(all)
  say('sold out: the front 3,000', percentiles(ended.endsInFront))
  say('sold out: everybody', percentiles(ended.ends))
  const endedAt = at99(ended.ends)
  figures.change.push({
    name: 'the waiting room: sold out',
    value: endedAt,
    target: { value: 1500 },
  })

  for (const crowd of all) crowd.child.kill('SIGKILL')
  for (const child of running) child.kill('SIGTERM')
  await Promise.all(running.map((child) => once(child, 'exit')))
}

const cpuOf = (running: ChildProcess[]) =>
  sum(
    running.map(({ pid }) => {
      const fields = readFileSync(`/proc/${pid}/stat`, 'utf8').split(') ')[1]!.split(' ')
      // utime and stime, in ticks of 10 ms.
      return (Number(fields[11]) + Number(fields[12])) / 100
    }),
  )

async function plain(): Promise<void> {
  console.log(`\na plain ws server that broadcasts, the same people and processes\n`)
  const port = await freePort()
  const running = Array.from({ length: servers }, () =>
    fork(join(root, 'bench/waitingroom/plain.ts'), {
      env: { ...process.env, PORT: String(port), REDIS_URL: redisUrl },
    }),
  )
  for (const child of running) children.add(child)
  await Promise.all(running.map((child) => once(child, 'message')))
  const all = Array.from({ length: crowds }, (_, i) => startCrowd(i))
  const before = sum(running.map(rssOf))
  const each = Math.floor(people / crowds)
  // Nobody joins anything here: there are only connections.
  await Promise.all(
    all.map((crowd) =>
      crowd.tell({ do: 'join', match: '', port, first: 0, count: each, lanes: 0 }),
    ),
  )
  const at = performance.now()
  const connected = sum(
    await everyone(all, ({ address }) => ({
      do: 'connect',
      port,
      address,
      together: 64,
      path: '/',
    })),
  )
  say(
    'connections',
    `${connected} in ${((performance.now() - at) / 1000).toFixed(1)} s: ${perSecond(connected, performance.now() - at)}`,
  )
  await sleep(5000)
  const perConnection = (sum(running.map(rssOf)) - before) / connected
  say('resident a connection', `${perConnection.toFixed(2)} kB`)
  figures.resident.push({ name: 'a plain ws server', value: perConnection, peer: true })
  await forget(all)
  const redis = new Redis(redisUrl)
  await redis.publish('plain', JSON.stringify({ type: 'sold_out', at: Date.now() }))
  await sleep(8000)
  const single = (await reports(all)).broadcasts
  say('told of a single change', percentiles(single))
  figures.change.push({ name: 'a plain ws server: one change', value: at99(single), peer: true })
  await forget(all)
  const changes = Math.min(10, seconds)
  for (let i = 0; i < changes; i++) {
    await redis.publish('plain', JSON.stringify({ type: 'admitted', count: 20, at: Date.now() }))
    await sleep(1000)
  }
  await sleep(5000)
  say('told of a change, one a second', percentiles((await reports(all)).broadcasts))
  redis.disconnect()
  for (const crowd of all) crowd.child.kill('SIGKILL')
  for (const child of running) child.kill('SIGKILL')
}

/** Everybody is let in while the leader is killed again and again: once each, in the order of the line. */
async function fairness(): Promise<void> {
  console.log(`\nfair: ${fair} people are let in, whoever leads is killed every three seconds\n`)
  const port = await freePort()
  const match = await makeMatch()
  let leading: ChildProcess | undefined
  const start = async () => {
    const child = serverProcess(port)
    await watchLog(child, (line) => {
      if (line.includes('leads the match')) leading = child
    })
    return child
  }
  await Promise.all([start(), start(), start()])
  const all = [startCrowd(0)]
  await all[0]!.tell({ do: 'join', match, port, first: 0, count: fair, lanes: 64 })
  const capacity = fair - 1000
  await operate(port, match, 'rate', { rate: 240_000, capacity })
  await operate(port, match, 'open')
  const state = async () =>
    (
      await sql<{ n: number; seats: number[] }>`select count(*)::int as n from turns
        where match_id = ${match}`.execute(db)
    ).rows[0]!.n
  let kills = 0
  const gaps: number[] = []
  let lastKill = performance.now()
  for (let n = 0; n < capacity; ) {
    await sleep(100)
    n = await state()
    if (performance.now() - lastKill < 3000 || leading === undefined || n >= capacity) continue
    const killed = leading
    leading = undefined
    killed.kill('SIGKILL')
    await once(killed, 'exit')
    lastKill = performance.now()
    kills++
    const stood = await state()
    start()
    while (stood < capacity && (await state()) === stood) await sleep(50)
    if (stood >= capacity) break
    gaps.push(Math.round(performance.now() - lastKill))
    lastKill = performance.now()
  }
  await sleep(3000)
  const redis = new Redis(redisUrl)
  const meta = await redis.hgetall(`queue_meta:${match}`)
  redis.disconnect()
  const { drawFromSeed } = await import('../workers/waitingroom/lot.ts')
  const places = drawFromSeed(meta.seed!, Number(meta.lobby_size))
  const { rows } = await sql<{ seat: number; t: string }>`select seat, granted_at::text as t
    from turns where match_id = ${match}`.execute(db)
  const order = rows
    .map(({ seat, t }) => ({ place: places[seat - 1]!, t }))
    .sort((a, b) => (a.t < b.t ? -1 : a.t > b.t ? 1 : a.place - b.place))
  const inOrder = order.every(({ place }, i) => place === i + 1)
  const { rows: events } = await sql<{ n: number }>`select count(*)::int as n from outbox
    where type = 'queue.turn_granted' and data->>'match_id' = ${match}`.execute(db)
  say('let in, kills', `${rows.length} of ${fair}, ${kills} kills; windows allowed: ${capacity}`)
  say('in the order drawn, nobody left out', String(inOrder))
  say('events', `${events[0]!.n}`)
  say('let in again after a kill', percentiles(gaps))
  if (!inOrder || rows.length !== capacity || events[0]!.n !== rows.length) wrong = true
  for (const child of children) child.kill('SIGKILL')
  await sleep(500)
}

try {
  if (fair > 0) await fairness()
  if (people > 0) await waitingRoom()
  if (people > 0 && !values['skip-plain']) await plain()
  if (people > 0) noteFigures()
  if (wrong) process.exitCode = 1
} finally {
  await cleanUp()
}
