// Brings what changed about items to OpenSearch (kind b: claimed, written with no transaction open, settled under the
// claim). Jobs go together in bulk requests, and what is written is the item as it is now, or that it is gone. Without
// OPENSEARCH_URL there is nothing to do: Postgres indexes an item with its row.

import { createGroup } from '../../db/group.ts'
import { readIndexed } from '../../db/items.ts'
import type { Jobs } from '../../db/jobs.ts'
import type { Db } from '../../db/schema.ts'
import { decodeItemJob, type ItemJob } from '../../domain/items.ts'
import { jobPass, Postpone, RetryAfter, type Traced, Unrecoverable } from '../jobs.ts'
import type { Pass } from '../loop.ts'
import { type OpenSearch, SearchFault, type Write, type Written } from '../opensearch.ts'
import { type Admission, type SharedCircuit, whileThere } from '../sharedCircuit.ts'
import type { Worker } from '../worker.ts'

export type Indexed = Written['is']

export type SearchOptions = {
  db: Db
  jobs: Jobs
  /** Undefined: items are searched in Postgres alone. */
  index: { search: OpenSearch; circuit: SharedCircuit } | undefined
  batchMax: number
  worker: Pick<Worker, 'log' | 'failed' | 'dying' | 'stopping'>
  onIndexed?(as: Indexed, count: number): void
}

type Result = Written | { is: 'away' | 'no'; why: string; afterMs: number }

/** When too much was asked of it: doubling while it says so. */
const pauseMs = { first: 250, most: 10_000 }
/** Before the job's time is over. */
const lineMaxMs = 100_000

export function searchPass(options: SearchOptions): Pass {
  const { db, jobs, index, batchMax, worker, onIndexed } = options
  const common = { db, jobs, queue: 'search', batchMax, worker } as const
  const decode = decodeItemJob('IndexItem')
  if (index === undefined) {
    return jobPass({ ...common, concurrency: batchMax, decode, handle: async (_job) => {} })
  }
  const { search, circuit } = index
  let [pauses, pausedUntil] = [0, 0]
  let toldOfNone = false

  async function writeTogether(group: ItemJob[]): Promise<Result[]> {
    const admission = await circuit.admits()
    if (admission === 'no') return group.map(() => ({ ...stopped(), is: 'no' }))
    try {
      const results = await writeAll(group)
      await circuit.worked(admission)
      slowDown(results.some(({ is }) => is === 'busy'))
      return results
    } catch (error) {
      if (!(error instanceof SearchFault)) throw error
      const result = await faultResult(error, admission)
      return group.map(() => result)
    }
  }

  async function writeAll(group: ItemJob[]): Promise<Written[]> {
    // Before the items are read: what an index misses that is begun after this, it reads from Postgres.
    const to = await search.aliases()
    if (to.live === undefined && to.next === undefined) tellOfNone()
    const latest = new Map<string, string>()
    for (const { item_id: id, version } of group) {
      if (BigInt(version) > BigInt(latest.get(id) ?? 0)) latest.set(id, version)
    }
    const items = new Map((await readIndexed(db, [...latest.keys()])).map((one) => [one.id, one]))
    const writes: Write[] = [...latest].map(([id, version]) => {
      const item = items.get(id)
      return { id, version: item?.version ?? version, item }
    })
    const written = await search.write(writes, to)
    const byId = new Map(writes.map(({ id }, i) => [id, written[i] as Written]))
    return group.map(({ item_id }) => byId.get(item_id) as Written)
  }

  async function faultResult(fault: SearchFault, admission: Admission): Promise<Result> {
    if (fault.is === 'busy') {
      await circuit.worked(admission)
      slowDown(true, fault.afterMs)
      return { is: 'busy' }
    }
    if (fault.is === 'refused') {
      await circuit.worked(admission)
      return { is: 'failed', why: fault.message }
    }
    await circuit.failed(admission, fault.message)
    return { is: 'away', why: fault.message, afterMs: Math.max(pauseMs.first, circuit.waitMs()) }
  }

  function slowDown(isBusy: boolean, afterMs = 0): void {
    pauses = isBusy ? pauses + 1 : 0
    const ms = Math.min(pauseMs.most, pauseMs.first * 2 ** (pauses - 1))
    pausedUntil = isBusy ? performance.now() + Math.max(afterMs, ms) : 0
  }

  function tellOfNone(): void {
    if (!toldOfNone) {
      worker.log.warn(
        `there is no index ${search.alias} in OpenSearch: fleet items:reindex makes it`,
      )
    }
    toldOfNone = true
  }

  const stopped = () => ({
    why: circuit.away() ?? 'somebody else tries',
    afterMs: circuit.waitMs(),
  })
  const group = createGroup<ItemJob, Result>({
    commit: writeTogether,
    divides: () => false,
    groupMax: batchMax,
    waitMaxMs: lineMaxMs,
  })

  async function handle({ data }: Traced<ItemJob>): Promise<void> {
    const result = await group.run(data)
    if (result.is !== 'away' && result.is !== 'no') onIndexed?.(result.is, 1)
    switch (result.is) {
      case 'there':
        return
      case 'busy':
        throw new Postpone(pausedUntil - performance.now() + jitter(), 'OpenSearch asks for less')
      case 'refused':
        throw new Unrecoverable(result.why)
      case 'failed':
        throw new RetryAfter(0, result.why)
      default:
        throw new Postpone(result.afterMs + jitter(), result.why)
    }
  }

  const pass = jobPass({
    ...common,
    // Two bulks: one is on its way while the next fills.
    concurrency: 2 * batchMax,
    room: () => (performance.now() < pausedUntil ? 0 : Number.POSITIVE_INFINITY),
    decode,
    handle,
  })
  return whileThere(pass, circuit, worker.stopping)
}

/** So that not all come back at once. */
const jitter = (): number => 500 * (0.5 + Math.random())
