// Tries again what the broker refused: the first event of each subject that stands aside, when it is due. Taken, it lets
// the next of its subject follow; refused once more it waits longer, and in the end it goes to the dead letter queue.

import { type DueAside, readDueAsides, settleAside } from '../../db/aside.ts'
import type { Db } from '../../db/schema.ts'
import type { Outgoing, Publisher, Verdict } from '../../domain/broker.ts'
import type { Worker } from '../worker.ts'
import type { RelayMetrics } from './metrics.ts'
import type { Slot } from './slots.ts'

export type AsidesOptions = {
  db: Db
  relay: string
  publisher: Publisher
  worker: Pick<Worker, 'log' | 'failed'>
  metrics: RelayMetrics
}

const lookMs = 250
const batchMax = 100
/**
 * Refused so often in a row, with none taken in between, it is not the events: nobody listens yet, or the broker is ill.
 * Then no attempts are spent, and one event is sent now and then to see whether it is over.
 */
const hopelessAfter = 100
const probeMs = 1000

export function createAsides({ db, relay, publisher, worker, metrics }: AsidesOptions) {
  let lookAt = 0
  let refusals = 0
  let probedAt = Number.NEGATIVE_INFINITY

  const isHopeless = (): boolean => refusals >= hopelessAfter

  function taken(): void {
    if (isHopeless()) worker.log.info('the broker takes events again')
    refusals = 0
  }

  /** How many of `most` may be sent now. */
  function allowed(most: number): number {
    if (!isHopeless()) return most
    if (performance.now() < probedAt + probeMs) return 0
    probedAt = performance.now()
    return Math.min(1, most)
  }

  function tellRefused({ id, type, subject }: Outgoing, why: string): void {
    metrics.refused()
    worker.failed(1)
    refusals++
    if (refusals === hopelessAfter) {
      const told = { error: why, refusals }
      worker.log.error(told, 'the broker refuses every event: they wait until it takes one')
    }
    if (isHopeless()) return
    const told = { event_id: id, type, subject, error: why }
    worker.log.warn(told, 'the broker refused an event: its subject waits aside')
  }

  async function retry(slots: readonly Slot[]): Promise<void> {
    lookAt = performance.now() + lookMs
    const numbers = slots.map(({ no }) => no)
    const some = allowed(batchMax)
    const due = some > 0 ? await readDueAsides(db, numbers, some) : []
    const verdicts = await Promise.all(due.map(sent))
    for (const [i, one] of due.entries()) {
      const verdict = verdicts[i] as Verdict
      const slot = slots.find(({ no }) => no === one.slot) as Slot
      if (verdict.is !== 'lost') await settle(slot, one, verdict)
    }
  }

  const sent = ({ event, body }: DueAside): Promise<Verdict> =>
    new Promise((resolve) => {
      const { id, type, subject, traceparent } = event
      publisher.publish(
        { id, type, subject, body: Buffer.from(body), ...(traceparent && { traceparent }) },
        resolve,
      )
    })

  async function settle(slot: Slot, due: DueAside, verdict: Verdict): Promise<void> {
    const why = verdict.is === 'refused' ? verdict.why : undefined
    const { id, type, subject } = due.event
    if (why === undefined) taken()
    else tellRefused({ id, type, subject, body: Buffer.alloc(0) }, why)
    const refused = why === undefined ? undefined : { why, spend: !isHopeless() }
    const outcome = await settleAside(db, relay, slot.leaseNo, due, refused)
    if (outcome === 'lost') return
    if (why === undefined) metrics.relayed(1)
    if (outcome.audit) {
      const { code, jobId, queue, attempts, errors } = outcome.audit
      const told = { code, job_id: jobId, queue, type, attempts, errors }
      worker.log.error(told, 'gave up an event: it lies in the dead letter queue')
      metrics.buried()
    }
    // At once for the next of the subject.
    if (outcome.gone) lookAt = 0
    const isBehind = slot.entries.some(
      (entry) => entry.is === 'aside' && entry.event.subject === subject,
    )
    if (outcome.last && !isBehind) slot.aside.delete(subject)
  }

  const isDue = (slots: readonly Slot[]): boolean =>
    performance.now() >= lookAt && slots.some(({ aside }) => aside.size > 0)

  return {
    tellRefused,
    taken,
    allowed,
    isDue,
    lookNow() {
      lookAt = 0
    },
    /** Calls `begin` with what there is to do. */
    start(slots: readonly Slot[], begin: (work: () => Promise<void>) => void): void {
      if (isDue(slots)) begin(() => retry(slots.filter(({ aside }) => aside.size > 0)))
    },
  }
}
