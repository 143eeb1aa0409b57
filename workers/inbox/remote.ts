// Consumes a broker across the network: a batch of messages in one transaction (kind a), acknowledged after its commit.
// Whenever it is killed the messages come again, and what they asked for is there once. Nothing blocks: a message nobody
// can read lies in the dead letter queue before it is acknowledged, an event that cannot be handled becomes a job of the
// queue `inbox`, with its retries and its history.

import { createHash } from 'node:crypto'
import { v5 as uuidv5 } from 'uuid'
import type { Audit } from '../../db/attempts.ts'
import { buryNew } from '../../db/bury.ts'
import type { Jobs } from '../../db/jobs.ts'
import type { Db } from '../../db/schema.ts'
import { CommitUnknown, isConnectionLost, transaction } from '../../db/transaction.ts'
import type { Consumer, Delivery, Seen } from '../../domain/broker.ts'
import type { CloudEvent } from '../../domain/events.ts'
import { decodeEvent } from '../../domain/readEvent.ts'
import type { Pass } from '../loop.ts'
import { beginSpanBy, messaging, type Span } from '../trace.ts'
import { bytesOf, keptOf } from '../unread.ts'
import type { Worker } from '../worker.ts'
import { type Handler, underSpan } from './inbox.ts'

export type RemoteInboxOptions = {
  db: Db
  jobs: Jobs
  consumer: Consumer
  batchMax: number
  worker: Pick<Worker, 'log' | 'failed'>
  handle: Handler
  seen?: Seen | undefined
  onCounted?(counts: { duplicates?: number; failed?: number; malformed?: number }): void
}

type Unread = { body: Buffer; why: Error }

/** How long an idle pass listens. */
const listenMs = 1000
const awayMs = 250
const readCommitted = { isolation: 'read committed' } as const
/** Names what cannot be read by its bytes: the same again is the same. */
const namespace = '8f0b5c0e-7f0d-4d53-9d0c-3a6f1a1c2f55'

export function remoteInboxPass(options: RemoteInboxOptions): Pass {
  const { db, jobs, consumer, batchMax, worker, handle, seen, onCounted } = options
  // Kept while the database is away: the same ones are tried again.
  let inHand: Delivery[] = []

  return async (signal, handledMax) => {
    if (inHand.length === 0) {
      inHand = await consumer.take(Math.min(batchMax, handledMax), listenMs, signal)
    }
    const batch = inHand
    if (batch.length === 0) return consumer.away() === undefined ? 0 : { waitMs: awayMs }
    const { events, unread } = read(batch)
    for (const { body, why } of unread) await bury(body, why)
    const fresh = await unseen(events)
    await runTraced(fresh)
    // Nobody may take from the table's word what is not committed there: after it.
    await seen?.remember(fresh.map(({ id }) => id))
    await consumer.ack(batch)
    inHand = []
    return batch.length
  }

  async function unseen(events: CloudEvent[]): Promise<CloudEvent[]> {
    if (seen === undefined || events.length === 0) return events
    const known = await seen.among(events.map(({ id }) => id))
    if (known.size > 0) onCounted?.({ duplicates: known.size })
    return events.filter(({ id }) => !known.has(id))
  }

  async function runTraced(events: CloudEvent[]): Promise<void> {
    const spans = events.map(beginProcess)
    try {
      await runAll(events.map((event, i) => underSpan(event, spans[i] as Span)))
      for (const span of spans) span.end()
    } catch (error) {
      for (const span of spans) span.end({ error })
      throw error
    }
  }

  function beginProcess({ id, type, traceparent }: CloudEvent): Span {
    return beginSpanBy(traceparent, () => {
      const attributes = messaging('process', type, id, consumer.name)
      return [`process ${type}`, { kind: 'consumer', parent: traceparent, attributes }]
    })
  }

  async function runAll(events: CloudEvent[]): Promise<void> {
    if (events.length === 0) return
    try {
      const committed = await transaction(db, (tx) => handle(tx, events), readCommitted)
      committed()
    } catch (error) {
      if (isAway(error)) throw error
      if (events.length === 1) return await makeJob(events[0] as CloudEvent, error)
      const half = events.length >> 1
      await runAll(events.slice(0, half))
      await runAll(events.slice(half))
    }
  }

  async function makeJob(event: CloudEvent, error: unknown): Promise<void> {
    try {
      await jobs.send(db, 'inbox', [{ id: event.id, data: event, delayMs: 1000 }])
    } catch (refusal) {
      if (isAway(refusal)) throw refusal
      return await bury(Buffer.from(JSON.stringify(event)), refusal as Error)
    }
    worker.failed(1)
    onCounted?.({ failed: 1 })
    const told = { err: error, event_id: event.id, type: event.type, subject: event.subject }
    worker.log.error(told, 'an event failed: it is tried again as a job of the queue inbox')
  }

  async function bury(body: Buffer, why: Error): Promise<void> {
    const jobId = uuidv5(createHash('sha256').update(body).digest('hex'), namespace)
    const keep = (data: object) => {
      const burial = { jobId, queue: 'inbox', attempt: 1, data } as const
      return transaction(db, (tx) => buryNew(tx, burial, why), readCommitted)
    }
    // What Postgres will not have as it is, it has as bytes: nothing may stop the messages behind it.
    const audit = await keep(keptOf(body)).catch((error) => {
      if (isAway(error)) throw error
      return keep(bytesOf(body))
    })
    worker.failed(1)
    onCounted?.({ malformed: 1 })
    if (audit) tellBuried(audit, why)
  }

  function tellBuried({ code, jobId, queue, type, attempts }: Audit, why: Error): void {
    const told = { code, job_id: jobId, queue, type, attempts, error: why.message }
    worker.log.error(told, 'a message cannot be read: it lies in the dead letter queue')
  }
}

/** The same may go well later. */
const isAway = (error: unknown): boolean =>
  isConnectionLost(error) || error instanceof CommitUnknown

function read(batch: readonly Delivery[]): { events: CloudEvent[]; unread: Unread[] } {
  const events: CloudEvent[] = []
  const unread: Unread[] = []
  for (const { body } of batch) {
    try {
      events.push(decodeEvent(parse(body)))
    } catch (cause) {
      const why = new Error(`the message cannot be read: ${(cause as Error).message}`)
      unread.push({ body, why })
    }
  }
  return { events, unread }
}

function parse(body: Buffer): unknown {
  try {
    return JSON.parse(body.toString('utf8'))
  } catch {
    // The parser's own words quote the text.
    throw new Error('it is not JSON')
  }
}
