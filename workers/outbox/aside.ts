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

export function createAsides({ db, relay, publisher, worker, metrics }: AsidesOptions) {
  let lookAt = 0

  function tellRefused({ id, type, subject }: Outgoing, why: string): void {
    metrics.refused()
    worker.failed(1)
    const told = { event_id: id, type, subject, error: why }
    worker.log.warn(told, 'the broker refused an event: its subject waits aside')
  }

  async function retry(slots: readonly Slot[]): Promise<void> {
    lookAt = performance.now() + lookMs
    const numbers = slots.map(({ no }) => no)
    const due = await readDueAsides(db, numbers, batchMax)
    await Promise.all(
      due.map(async (one) => {
        const slot = slots.find(({ no }) => no === one.slot) as Slot
        const verdict = await sent(one)
        if (verdict.is !== 'lost') await settle(slot, one, verdict)
      }),
    )
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
    const outcome = await settleAside(db, relay, slot.leaseNo, due, why)
    if (outcome === 'lost') return
    const { id, type, subject } = due.event
    if (why === undefined) metrics.relayed(1)
    else tellRefused({ id, type, subject, body: Buffer.alloc(0) }, why)
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
