// Embeds items (kind b: claimed, sent with no transaction open, stored and followed by its jobs in one). Calls keep the pace
// that the vendor's limits allow over all instances; a vendor that fails opens its circuit, and then jobs wait without an
// attempt spent. An attempt is spent only on an item that fails while others go well.

import { storeEmbedding } from '../../db/embeddings.ts'
import { readEmbedInput } from '../../db/items.ts'
import type { Jobs } from '../../db/jobs.ts'
import type { Db } from '../../db/schema.ts'
import { transaction } from '../../db/transaction.ts'
import type { VendorLimits } from '../../db/vendorLimits.ts'
import { decodeItemJob, embeddedText, type ItemJob } from '../../domain/items.ts'
import type { Ticket } from '../../domain/vendorPace.ts'
import { jobPass, Postpone, type Traced, Unrecoverable } from '../jobs.ts'
import type { Pass } from '../loop.ts'
import { type Admission, type SharedCircuit, whileThere } from '../sharedCircuit.ts'
import { withSpan } from '../trace.ts'
import type { Worker } from '../worker.ts'
import { createTurnstile } from './turnstile.ts'
import type { EmbedOutcome, Vendor } from './vendor.ts'

export type EmbedOptions = {
  db: Db
  jobs: Jobs
  vendor: Vendor
  model: string
  limits: VendorLimits
  circuit: SharedCircuit
  concurrency: number
  worker: Pick<Worker, 'log' | 'failed' | 'dying' | 'stopping'>
  onCall?(outcome: EmbedOutcome['is'], seconds: number, tokens: number): void
}

/** A job that would wait longer for its turn goes back into the queue. */
const waitMaxMs = 10_000
/** Between two tries of an item that failed where nobody knows yet whose fault it is. */
const againMs = 2000
const strikesMax = 1000

export function embedPass(options: EmbedOptions): Pass {
  const { db, jobs, vendor, model, limits, circuit, concurrency, worker, onCall } = options
  const turnstile = createTurnstile(limits, waitMaxMs)
  /** Jobs whose last call failed, with how many had gone well until then. */
  const strikes = new Map<string, number>()
  let restUntil = 0

  async function handle(job: Traced<ItemJob>, signal: AbortSignal): Promise<void> {
    const item = await readEmbedInput(db, job.data.item_id, model)
    if (item === undefined) return
    const input = { text: embeddedText(item), image: item.image }
    const ticket = await waitForTurn(vendor.estimate(input), signal)
    const admission = await circuit.admits()
    if (admission === 'no') {
      await limits.failed(0)
      throw postponed()
    }
    const outcome = await call(job, input, signal).catch(async (error) => {
      await limits.failed(0)
      throw error
    })
    await tellLimits(ticket, outcome)
    if (outcome.is !== 'embedded') return await settle(job, admission, outcome)
    const { item_id: itemId, request_id: requestId } = job.data
    const embedding = { itemId, contentVersion: item.contentVersion, model, vector: outcome.vector }
    const about = { requestId, traceparent: job.span.traceparent }
    const stored = await transaction(db, (tx) => storeEmbedding(tx, embedding, about), {
      isolation: 'read committed',
    })
    if (typeof stored === 'number') {
      const why = `the vendor’s vector has ${outcome.vector.length} dimensions, those of ${model} have ${stored}`
      return await settle(job, admission, { is: 'failed', told: outcome.told, why })
    }
    strikes.delete(job.id)
    await circuit.worked(admission)
  }

  async function waitForTurn(estimate: number, signal: AbortSignal): Promise<Ticket> {
    if (circuit.waitMs() > 0) throw postponed()
    const either = AbortSignal.any([signal, worker.stopping])
    const { ticket, waitMs } = await turnstile.next(estimate, either).catch((error) => {
      // It did not begin: it goes back as it came.
      if (worker.stopping.aborted) throw new Postpone(0, 'the worker stops')
      throw error
    })
    if (ticket !== undefined) return ticket
    restUntil = performance.now() + waitMs
    throw new Postpone(waitMs, 'the vendor’s limits are used up')
  }

  async function call(
    job: Traced<ItemJob>,
    input: Parameters<Vendor['embed']>[0],
    signal: AbortSignal,
  ) {
    const attributes = { 'gen_ai.operation.name': 'embeddings', 'gen_ai.request.model': model }
    const begunAt = performance.now()
    const options = { kind: 'client', parent: job.span.traceparent, attributes } as const
    const outcome = await withSpan(`embeddings ${model}`, options, async (span) => {
      const came = await vendor.embed(input, signal)
      span.set({ 'embed.outcome': came.is })
      return came
    })
    onCall?.(outcome.is, (performance.now() - begunAt) / 1000, outcome.usedTokens ?? 0)
    return outcome
  }

  async function tellLimits(ticket: Ticket, { told, usedTokens, ...outcome }: EmbedOutcome) {
    if (outcome.is !== 'failed') await limits.heard(ticket, told, usedTokens)
    if (outcome.is === 'failed' || outcome.is === 'gone') await limits.failed(0)
    if (outcome.is === 'limited') await limits.failed(outcome.afterMs)
  }

  /** @throws what becomes of the job */
  async function settle(
    job: Traced<ItemJob>,
    admission: Admission,
    outcome: Exclude<EmbedOutcome, { is: 'embedded' }>,
  ): Promise<never> {
    const { is, why } = outcome
    if (is === 'rejected') {
      await circuit.worked(admission)
      throw new Unrecoverable(why)
    }
    if (is === 'limited') {
      await circuit.worked(admission)
      restUntil = performance.now() + outcome.afterMs
      throw new Postpone(outcome.afterMs + againMs * Math.random(), why)
    }
    if (is === 'gone') {
      await circuit.gone(admission, why)
      throw postponed(why)
    }
    await circuit.failed(admission, why)
    if (circuit.away() !== undefined) throw postponed(why)
    const others = strikes.get(job.id)
    strike(job.id)
    // It alone: others went well in between.
    if (others !== undefined && circuit.successes() > others) throw new Error(why)
    throw new Postpone(againMs * (1 + Math.random()), why)
  }

  function strike(id: string): void {
    strikes.delete(id)
    strikes.set(id, circuit.successes())
    const [oldest] = strikes.keys()
    if (strikes.size > strikesMax && oldest !== undefined) strikes.delete(oldest)
  }

  const postponed = (why = circuit.away() ?? 'another worker tries the vendor') =>
    new Postpone(Math.max(1000, circuit.waitMs()) + againMs * Math.random(), why)

  const pass = jobPass({
    db,
    jobs,
    queue: 'embed',
    batchMax: concurrency,
    concurrency,
    worker,
    room: () => (performance.now() < restUntil ? 0 : Number.POSITIVE_INFINITY),
    decode: decodeItemJob('EmbedItem'),
    handle,
  })
  return whileThere(pass, circuit, worker.stopping)
}

/** Without a vendor: there is nothing to do, and `fleet items:embed` finds later what was not embedded. */
export const idlePass = ({
  db,
  jobs,
  worker,
}: Pick<EmbedOptions, 'db' | 'jobs' | 'worker'>): Pass =>
  jobPass({
    db,
    jobs,
    queue: 'embed',
    batchMax: 100,
    concurrency: 100,
    worker,
    decode: decodeItemJob('EmbedItem'),
    handle: async (_job) => {},
  })
