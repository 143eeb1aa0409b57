// Eight loaders at fifty sources, five processes of ten ports each, while loaders are killed with -9, locks and gates are
// lost, leases end under a request and clocks are hours apart. Then calm, and the table is held against what the sources
// served: each event once, in order; and each gap as the source saw it.

import { once } from 'node:events'
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { sql } from 'kysely'
import { openRedis } from '../../redis/open.ts'
import {
  leastGaps,
  type SourceRecord,
  type Sources,
  startSources,
} from '../../test/servers/eventSource.ts'
import {
  type Instance,
  type Place,
  sourcesOf,
  startLoader,
  stopLoader,
  totalLoaded,
} from './place.ts'
import { launchRedis } from './redis.ts'

const instances = 8
const processes = 5
const portsEach = 10
const gapMs = 200

/** @returns what was not right */
export async function torture(
  place: Place,
  minutes: number,
  withRedis: boolean,
): Promise<string[]> {
  const remotes = await Promise.all(
    Array.from({ length: processes }, () => startSources(portsEach)),
  )
  for (const [i, remote] of remotes.entries()) {
    await remote.set({ count: 500, perSecond: 40, latencyMs: 5 + 20 * i, payloadBytes: 20 })
    // One in ten is silent, one hangs, one is slower than its own time now and then.
    await remote.set({ count: 0, perSecond: 0 }, [7])
    await remote.set({ mood: 'hang' }, [8])
    await remote.set({ latencyMs: 1900 }, [9])
  }
  const sources = remotes.flatMap((remote, i) => sourcesOf(remote, `p${i}`, { timeout_ms: 2000 }))
  const redis = withRedis ? await launchRedis(place) : undefined
  const env: Record<string, string> = redis ? { LOADER_LOCKS: 'redis', REDIS_URL: redis } : {}
  const start = (i: number) => startLoader(place, sources, env, clockOff(place, i))
  const loaders = Array.from({ length: instances }, (_, i) => start(i))
  const counts = { killed: 0, forgot: 0, frozen: 0 }
  const endsAt = performance.now() + minutes * 60_000
  while (performance.now() < endsAt) {
    await sleep(500 + Math.random() * 2500)
    const i = Math.floor(Math.random() * instances)
    const dice = Math.random()
    if (dice < 0.6) {
      counts.killed++
      await kill(loaders[i])
      loaders[i] = start(i)
    } else if (dice < 0.8) {
      counts.forgot++
      await loseLocks(place, redis)
    } else {
      counts.frozen++
      // Longer than a lease: it wakes with a turn that is another's by now.
      const frozen = loaders[i]?.process
      frozen?.kill('SIGSTOP')
      setTimeout(() => frozen?.kill('SIGCONT'), 9000)
    }
  }
  for (const remote of remotes) await remote.set({ perSecond: 0 })
  await sleep(10_000)
  for (const remote of remotes) await remote.set({ mood: 'well', latencyMs: 5 })
  const records = await Promise.all(remotes.map((remote) => remote.record()))
  const served = records.flat().reduce((sum, { count }) => sum + count, 0)
  const calmUntil = performance.now() + 120_000
  while ((await totalLoaded(place)) < served && performance.now() < calmUntil) await sleep(200)
  const codes = await Promise.all(loaders.map(stopLoader))
  console.log(
    `\n${instances} loaders, ${sources.length} sources, ${minutes} min${redis ? ', locks on Redis' : ''}: ` +
      `${counts.killed} killed, ${counts.forgot} times all locks lost, ${counts.frozen} frozen for 9 s`,
  )
  return [
    ...codes.filter((code) => code !== 0).map((code) => `a loader ended with ${code}`),
    ...(await compare(place, remotes, records)),
  ]
}

async function kill(loader: Instance | undefined): Promise<void> {
  const child = loader?.process
  if (child === undefined || child.exitCode !== null || child.signalCode !== null) return
  const gone = once(child, 'exit')
  child.kill('SIGKILL')
  await gone
}

async function loseLocks({ database }: Place, redis: string | undefined): Promise<void> {
  if (redis === undefined) {
    await sql`truncate loader_turns`.execute(database.db)
    return
  }
  const client = openRedis({ url: redis, name: 'torture', commandTimeoutMs: 10_000 })
  await client.ready()
  await client.redis.flushall()
  await client.close()
}

/** A module that puts Date so many hours off. */
function clockOff({ dataDir }: Place, i: number): string {
  const file = join(dataDir, `clock-${i}.mjs`)
  writeFileSync(file, `const real = Date.now; Date.now = () => real() + ${(i - 4) * 3} * 3600e3\n`)
  return file
}

async function compare(
  { database }: Place,
  remotes: readonly Sources[],
  before: readonly SourceRecord[][],
): Promise<string[]> {
  const { rows } = await sql<{
    source: string
    n: number
    distinct: number
    last: string
    ordered: boolean
  }>`
    select source, count(*)::int as n, count(distinct id)::int as "distinct", max(id)::text as last,
      bool_and(id > coalesce(before, 0)) as ordered
    from (select source, id, lag(id) over (partition by source order by loaded_at, id) as before
      from loaded_events) e group by source`.execute(database.db)
  const bySource = new Map(rows.map((row) => [row.source, row]))
  const faults: string[] = []
  let [requests, least, events] = [0, Number.POSITIVE_INFINITY, 0]
  for (const [p, remote] of remotes.entries()) {
    for (const [i, record] of (await remote.record()).entries()) {
      const name = `p${p}-${i}`
      const row = bySource.get(name) ?? { n: 0, distinct: 0, last: '0', ordered: true }
      const served = before[p]?.[i]?.count ?? 0
      if (row.n !== served || row.distinct !== served) {
        faults.push(`${name}: ${row.n} events, ${row.distinct} ids, and ${served} were served`)
      }
      if (!row.ordered) faults.push(`${name}: not in order`)
      const { between } = leastGaps(record.requests)
      if (between < gapMs) faults.push(`${name}: a gap of ${between.toFixed(1)} ms`)
      if (record.requests.length < 2) faults.push(`${name}: asked ${record.requests.length} times`)
      requests += record.requests.length
      events += row.n
      least = Math.min(least, between)
    }
  }
  console.log(
    `${events} events, each once and in order; ${requests} requests, least gap ${least.toFixed(1)} ms`,
  )
  return faults
}
