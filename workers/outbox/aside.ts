// Tries again what the broker refused: the first event of each subject that stands aside, when it is due. Taken, it lets
// the next of its subject follow; refused once more it waits longer, and in the end it goes to the dead letter queue. A
// type of which the broker refuses one after the other waits as a whole: then it is not the events.

import { type DueAside, readDueAsides, settleAside } from '../../db/aside.ts'
import type { Db } from '../../db/schema.ts'
import type { Outgoing, Publisher, Refused, Verdict } from '../../domain/broker.ts'
import type { Worker } from '../worker.ts'
import type { RelayMetrics } from './metrics.ts'
import type { Slot } from './slots.ts'

export type AsidesOptions = {
  db: Db
  relay: string
  publisher: Publisher
  worker: Pick<Worker, 'log' | 'failed'>
  metrics: RelayMetrics
  /** How many may be sent now. */
  room(): number
}

const lookMs = 250
const batchMax = 100
/** Refusals of a type in a row, after which it is hopeless: no attempts are spent, and one event is sent now and then. */
const hopelessAfter = 100
/** Between two such probes. One for want of a permission costs the others their channel: they come less and less often. */
const probeMs = { usual: 1000, most: 30_000 }

type Standing = { refusals: number; blamed: boolean; probeAt: number; waitMs: number }

export function createAsides({ db, relay, publisher, worker, metrics, room }: AsidesOptions) {
  let lookAt = 0
  let sending = 0
  /** Lost: one of them may be what broke the connection. */
  let unsure: DueAside[] = []
  const standings = new Map<string, Standing>()

  const isHopeless = (type: string): boolean =>
    (standings.get(type)?.refusals ?? 0) >= hopelessAfter

  function taken(type: string): void {
    if (isHopeless(type)) worker.log.info({ type }, 'the broker takes events of this type again')
    standings.delete(type)
  }

  function tellRefused({ id, type, subject }: Omit<Outgoing, 'body'>, refused: Refused): void {
    const { why: error, blames } = refused
    metrics.refused()
    worker.failed(1)
    if (isHopeless(type)) return
    if (blames !== 'event') {
      const { refusals } = standings.get(type) ?? { refusals: 0 }
      const now = blames === 'type' ? hopelessAfter : refusals + 1
      const [probeAt, waitMs] = [performance.now() + probeMs.usual, probeMs.usual]
      standings.set(type, { refusals: now, blamed: blames === 'type', probeAt, waitMs })
    }
    if (isHopeless(type)) {
      const told = { type, error }
      worker.log.error(
        told,
        'the broker refuses every event of this type: they wait until it takes one',
      )
      return
    }
    const told = { event_id: id, type, subject, error }
    worker.log.warn(told, 'the broker refused an event: its subject waits aside')
  }

  /** Hopeless types, parted into those of which one is to be sent now, and the others. */
  function probes(): { probed: string[]; waiting: string[] } {
    const now = performance.now()
    const hopeless = [...standings].filter(([type]) => isHopeless(type))
    const due = hopeless.filter(([, { probeAt }]) => now >= probeAt)
    for (const [, standing] of due) {
      standing.probeAt = now + standing.waitMs
      if (standing.blamed) standing.waitMs = Math.min(probeMs.most, 2 * standing.waitMs)
    }
    const probed = due.map(([type]) => type)
    const waiting = hopeless.map(([type]) => type).filter((type) => !probed.includes(type))
    return { probed, waiting }
  }

  async function next(numbers: readonly number[]): Promise<DueAside[]> {
    unsure = unsure.filter(({ slot }) => numbers.includes(slot))
    if (unsure.length > 0) return unsure
    return await readDueAsides(db, numbers, Math.min(batchMax, room()), probes())
  }

  async function retry(slots: readonly Slot[]): Promise<void> {
    lookAt = performance.now() + lookMs
    const found = await next(slots.map(({ no }) => no))
    const due = found.slice(0, Math.max(0, room()))
    const verdicts = await Promise.all(due.map(sent))
    for (const [i, one] of due.entries()) {
      const verdict = verdicts[i] as Verdict
      const slot = slots.find(({ no }) => no === one.slot) as Slot
      unsure = unsure.filter((other) => other !== one)
      if (verdict.is === 'lost') unsure.push(one)
      else await settle(slot, one, verdict.is === 'refused' ? verdict : undefined)
    }
    if (unsure.length > 0) lookAt = 0
  }

  const sent = ({ event, body }: DueAside): Promise<Verdict> =>
    new Promise((resolve) => {
      const { id, type, subject, traceparent } = event
      sending++
      publisher.publish(
        { id, type, subject, body: Buffer.from(body), ...(traceparent && { traceparent }) },
        (verdict) => {
          sending--
          resolve(verdict)
        },
      )
    })

  async function settle(slot: Slot, due: DueAside, refused: Refused | undefined): Promise<void> {
    const { id, type, subject } = due.event
    if (refused === undefined) taken(type)
    else tellRefused({ id, type, subject }, refused)
    const spent = refused && { why: refused.why, spend: !isHopeless(type) }
    const outcome = await settleAside(db, relay, slot.leaseNo, due, spent)
    if (outcome === 'lost') return
    if (refused === undefined) metrics.relayed(1)
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
    isHopeless,
    isDue,
    /** On their way now. */
    sending: (): number => sending,
    isUnsure: (): boolean => unsure.length > 0,
    lookNow() {
      lookAt = 0
    },
    /** Calls `begin` with what there is to do. */
    start(slots: readonly Slot[], begin: (work: () => Promise<void>) => void): void {
      if (room() > 0 && isDue(slots))
        begin(() => retry(slots.filter(({ aside }) => aside.size > 0)))
    },
  }
}
