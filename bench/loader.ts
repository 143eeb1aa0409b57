// The event loader against what it could do at best, in one run on one machine: without the gate beside a raw COPY of the
// same rows; with it beside the 1000 events that a source can give every 200 ms and its latency; and how much memory a
// thousand sources take. Usage: fleet bench loader [--rows N] [--rounds N] [--seconds S] [--sources N], or --torture
// [--minutes M] [--redis]: eight loaders that are killed, at fifty sources. Exit 1 when something is not right.

import { availableParallelism, cpus, loadavg } from 'node:os'
import { setTimeout as sleep } from 'node:timers/promises'
import { parseArgs } from 'node:util'
import { copyAfter, toCopy } from '../db/copy.ts'
import { createGatherer, type Events } from '../domain/loader.ts'
import { startSources } from '../test/servers/eventSource.ts'
import {
  empty,
  openPlace,
  type Place,
  residentOf,
  sourcesOf,
  startLoader,
  stopLoader,
  totalLoaded,
  untilLoaded,
} from './loader/place.ts'
import { noteResult } from './report/results.ts'

const { values: options } = parseArgs({
  options: {
    rows: { type: 'string', default: '400000' },
    rounds: { type: 'string', default: '3' },
    seconds: { type: 'string', default: '10' },
    sources: { type: 'string', default: '1000' },
    torture: { type: 'boolean', default: false },
    minutes: { type: 'string', default: '1' },
    redis: { type: 'boolean', default: false },
  },
})
const payloadBytes = 100
const fast = 4
const faults: string[] = []

const median = (values: readonly number[]): number =>
  values.toSorted((a, b) => a - b)[values.length >> 1] ?? Number.NaN
const tell = (what: string, value: string) => console.log(`${what.padEnd(58)}${value.padStart(14)}`)

/** Rows a second of one COPY of all rows, as the sources serve them, into the same table. */
async function rawCopy(place: Place, rows: number): Promise<number> {
  await empty(place)
  const perSource = rows / fast
  const buffers = Array.from({ length: fast }, (_, s) =>
    toCopy([{ source: `raw-${s}`, pages: [allEvents(perSource)] }]),
  )
  const begun = performance.now()
  for (const buffer of buffers) {
    await copyAfter(
      place.database.pool,
      'do $$begin end$$',
      'loaded_events (source, id, payload)',
      buffer,
    )
  }
  return (rows * 1000) / (performance.now() - begun)
}

function allEvents(count: number): Events {
  const body = Buffer.concat(Array.from({ length: count }, (_, i) => payloadOf(i)))
  const gathered = createGatherer(body)
  let at = 0
  for (let i = 0; i < count; i++) {
    const to = at + payloadOf(i).length
    gathered.add(BigInt(i + 1), at, to)
    at = to
  }
  return gathered.events()
}

const payloadOf = (i: number): Buffer =>
  Buffer.from(`{"n":${i},"text":"a \\"quoted\\" tab\\t, ünï","fill":"${'x'.repeat(payloadBytes)}"}`)

async function compareWithCopy(place: Place): Promise<void> {
  const rows = Number(options.rows)
  const remote = await startSources(fast)
  await remote.set({ count: rows / fast, payloadBytes, cache: true })
  const [raw, ours]: [number[], number[]] = [[], []]
  // The first time fills the sources' memory.
  for (let round = 0; round <= Number(options.rounds); round++) {
    if (round > 0) raw.push(await rawCopy(place, rows))
    await empty(place)
    const loader = startLoader(place, sourcesOf(remote, 'fast'), { LOADER_GAP_MS: '0' })
    while ((await totalLoaded(place)) === 0) await sleep(2)
    const from = await totalLoaded(place)
    const begun = performance.now()
    await untilLoaded(place, rows)
    if (round > 0) ours.push(((rows - from) * 1000) / (performance.now() - begun))
    await stopLoader(loader)
  }
  await remote.close()
  const ratio = median(ours) / median(raw)
  console.log(`\n${rows} rows of ${payloadOf(0).length} bytes, median of ${options.rounds} rounds`)
  tell('raw COPY into the same table', `${Math.round(median(raw))}/s`)
  tell(`${fast} fast sources, no gate, one loader`, `${Math.round(median(ours))}/s`)
  tell('ratio', ratio.toFixed(2))
  noteResult({
    title: 'rows of fast sources into the table',
    unit: 'rows/s',
    better: 'more',
    figures: [
      { name: 'a loader, 4 sources, no gate', value: median(ours), target: { ratio: 0.7 } },
      { name: 'raw COPY of the same rows', value: median(raw), peer: true },
    ],
  })
  if (ratio < 0.7) faults.push(`without the gate ${ratio.toFixed(2)} of a raw COPY, not 0.7`)
}

async function measureGate(place: Place): Promise<void> {
  await empty(place)
  const latencyMs = 20
  const seconds = Number(options.seconds)
  const count = 3
  const remote = await startSources(count)
  await remote.set({ count: 10_000_000, payloadBytes, latencyMs })
  const loader = startLoader(place, sourcesOf(remote, 'gated'))
  while ((await totalLoaded(place)) < 5 * count * 1000) await sleep(20)
  const before = (await remote.record()).map(({ requests }) => requests.length)
  await sleep(seconds * 1000)
  const record = await remote.record()
  await stopLoader(loader)
  await remote.close()
  const shares = record.map(({ requests }, i) => {
    const own = requests.slice(before[i]).filter(({ over }) => over !== null)
    const [first, last] = [own[0], own.at(-1)]
    if (!first || !last) return 0
    const took = own.map((one) => (one.over ?? 0) - one.at)
    const latency = took.reduce((sum, ms) => sum + ms, 0) / took.length
    return (own.length - 1) / ((last.at - first.at) / (200 + latency))
  })
  const least = Math.min(...shares)
  console.log(`\n${count} sources that take ${latencyMs} ms, gate of 200 ms, ${seconds} s`)
  tell('share of 1000 events / (200 ms + latency), the worst source', least.toFixed(3))
  noteResult({
    title: 'with the gate of 200 ms, of what the source can give',
    unit: 'share',
    better: 'more',
    figures: [{ name: 'the worst source', value: least, target: { value: 0.95 } }],
  })
  if (least < 0.95) faults.push(`with the gate ${least.toFixed(3)} of what is possible, not 0.95`)
}

async function measureMemory(place: Place): Promise<void> {
  await empty(place)
  const count = Number(options.sources)
  const seconds = Number(options.seconds)
  const remote = await startSources(count)
  await remote.set({ perSecond: 20, latencyMs: 20 })
  const slow = Array.from({ length: count / 10 }, (_, i) => i * 10)
  await remote.set({ latencyMs: 2000 }, slow)
  await remote.set({ mood: 'hang' }, slow.slice(0, slow.length / 2))
  const loader = startLoader(place, sourcesOf(remote, 'many', { timeout_ms: 5000 }))
  while ((await totalLoaded(place)) < count) await sleep(100)
  const samples: number[] = []
  for (let second = 0; second < 3 * seconds; second++) {
    await sleep(1000)
    samples.push(residentOf(loader.process.pid))
  }
  const record = await remote.record()
  const good = record.filter((_, i) => i % 10 !== 0)
  const asked = good.map(({ requests }) => requests.length)
  await stopLoader(loader)
  await remote.close()
  console.log(`\n${count} sources: 1 in 10 takes 2 s or hangs, the others give 20 events a second`)
  tell('resident after the first seconds', `${samples[2]?.toFixed(0)} MB`)
  tell('at the end', `${samples.at(-1)?.toFixed(0)} MB`)
  tell('most', `${Math.max(...samples).toFixed(0)} MB`)
  tell('requests to a good source: least, most', `${Math.min(...asked)}, ${Math.max(...asked)}`)
  noteResult({
    title: `resident with ${count} sources`,
    unit: 'MB',
    better: 'less',
    figures: [{ name: 'most', value: Math.max(...samples), target: { value: 150 } }],
  })
  if (Math.max(...samples) > 150) faults.push('more than 150 MB resident')
}

const place = await openPlace()
for (const signal of ['SIGINT', 'SIGTERM'] as const) {
  process.once(signal, () => void place.end().finally(() => process.exit(1)))
}
try {
  const load = loadavg()[0]?.toFixed(1)
  console.log(
    `${availableParallelism()} cores (${cpus()[0]?.model ?? 'unknown'}), load ${load}; Node ${process.version}`,
  )
  if (options.torture) {
    const { torture } = await import('./loader/torture.ts')
    faults.push(...(await torture(place, Number(options.minutes), options.redis)))
  } else {
    await compareWithCopy(place)
    await measureGate(place)
    await measureMemory(place)
  }
} finally {
  await place.end()
}
console.log(faults.length === 0 ? '\nall is as it should be' : `\n${faults.join('\n')}`)
if (faults.length > 0) process.exitCode = 1
