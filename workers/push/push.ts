// Sends the pushes of a queue (kind b: claimed, sent with no transaction open, settled under the claim), a device a
// request, as many a second as the bucket shared by all instances lets through. Each device ends by its own rule. A
// request that was in flight when its worker died is made again, and one whose outcome nobody knows; what was answered
// and noted is not.

import type { Jobs } from '../../db/jobs.ts'
import type { Db } from '../../db/schema.ts'
import { removeDevice } from '../../db/users.ts'
import {
  decodePushJob,
  type PushJob,
  type PushQueue,
  type PushTemplate,
  readTarget,
  type Target,
} from '../../domain/pushes.ts'
import { jobPass, Postpone, RetryAfter, type Traced, Unrecoverable } from '../jobs.ts'
import type { Pass } from '../loop.ts'
import { withSpan } from '../trace.ts'
import type { Worker } from '../worker.ts'
import type { Circuit } from './circuit.ts'
import type { Pace } from './pace.ts'
import type { Push, PushOutcome, PushProvider } from './provider.ts'
import { splitIntoJobs } from './split.ts'
import type { Turns } from './turns.ts'

export type PushOptions = {
  db: Db
  jobs: Jobs
  queue: PushQueue
  provider: PushProvider
  turns: Turns
  circuit: Circuit
  pace: Pace
  /** How long a push is kept for a phone that is off, where the job does not say. */
  ttlSeconds: number
  batchMax: number
  concurrency: number
  worker: Pick<Worker, 'log' | 'failed' | 'dying'>
  /** A provider took it, so long after it was asked for. */
  onSent?(template: PushTemplate, seconds: number): void
  /** Given up for good. */
  onFailed?(template: PushTemplate, code: string): void
}

/** What was not sent waits at least so long, and up to half as much again, so that not all come back at once. */
const postponeMs = 10_000

export function pushPass(options: PushOptions): Pass {
  const { db, jobs, queue, provider, turns, circuit, pace, ttlSeconds, worker } = options
  const postponed = (why: string, afterMs = 0): Postpone =>
    new Postpone(Math.max(circuit.waitMs(), afterMs) + (postponeMs / 2) * Math.random(), why)

  async function handle(job: Traced<PushJob>, signal: AbortSignal): Promise<void> {
    const { data } = job
    if (data.fcm_tokens.length > 1) return await splitIntoJobs(db, jobs, queue, job)
    const expiresAt = new Date(data.expires_at ?? Date.now() + ttlSeconds * 1000)
    if (expiresAt.getTime() <= Date.now()) return tellExpired(job)
    const device = readTarget(data.fcm_tokens[0] as Target)
    const push = { job: data, device, expiresAt }
    const isProbe = circuit.away() !== undefined
    const outcome = await sendTraced(push, job, signal)
    await settle(job, push, outcome, isProbe)
  }

  async function turn(signal: AbortSignal): Promise<void> {
    await turns.next(queue === 'push:priority', signal)
    // It may have opened while this one stood in line.
    if (circuit.waitMs() > 0) throw postponed(circuit.away() ?? '')
    pace.begun()
  }

  async function sendTraced(push: Push, { span }: Traced<PushJob>, signal: AbortSignal) {
    if (circuit.waitMs() > 0) throw postponed(circuit.away() ?? '')
    const { template } = push.job
    const attributes = { 'push.provider': provider.name, 'push.template': template }
    return await withSpan(
      `send ${template}`,
      { kind: 'client', parent: span.traceparent, attributes },
      async (sending) => {
        let begunAt = performance.now()
        const ownTurn = async () => {
          await turn(signal)
          begunAt = performance.now()
        }
        const outcome = await provider.send(push, ownTurn, signal)
        pace.answered(performance.now() - begunAt)
        sending.set({ 'push.outcome': outcome.is })
        return outcome
      },
    )
  }

  async function settle(
    job: Traced<PushJob>,
    push: Push,
    outcome: PushOutcome,
    isProbe: boolean,
  ): Promise<void> {
    const { template } = job.data
    switch (outcome.is) {
      case 'sent':
        circuit.good()
        return options.onSent?.(template, ageOf(job))
      case 'gone':
        circuit.good()
        return await forget(job, push)
      case 'rejected':
        if (outcome.ours) circuit.bad(outcome.why)
        else circuit.good()
        // It only tries out for the others: one a minute would end so for as long as we are refused.
        if (outcome.ours && isProbe) throw postponed(outcome.why)
        options.onFailed?.(template, outcome.code)
        throw new Unrecoverable(outcome.why)
      case 'away':
        circuit.gone(outcome.why)
        throw postponed(outcome.why, postponeMs)
      case 'retry': {
        const { code, afterMs, why } = outcome
        circuit.bad(why, afterMs)
        // It is not this push that failed: no attempt is spent.
        if (circuit.away() !== undefined) throw postponed(why, afterMs)
        if (job.attempt >= job.attemptsMax) options.onFailed?.(template, code)
        throw new RetryAfter(afterMs, why)
      }
    }
  }

  /** The user has no such device any more; that is how it goes, and nobody's failure. */
  async function forget(job: Traced<PushJob>, { device }: Push): Promise<void> {
    const { job_id, user_id, template } = job.data
    const wasThere = await removeDevice(db, { user_id, ...device })
    options.onFailed?.(template, 'UNREGISTERED')
    worker.log.info({ job_id, user_id, template, removed: wasThere }, 'the device is gone')
  }

  function tellExpired(job: Traced<PushJob>): void {
    const { job_id, template } = job.data
    options.onFailed?.(template, 'EXPIRED')
    worker.log.warn({ job_id, template }, 'a push came too late to be sent')
  }

  return jobPass({
    ...options,
    room: () => Math.min(circuit.room(), pace.room()),
    decode: decodePushJob,
    handle,
  })
}

/** Since it was asked for, s. */
function ageOf({ data, createdAt }: Traced<PushJob>): number {
  const askedAt = data.queued_at === undefined ? createdAt.getTime() : Date.parse(data.queued_at)
  return Math.max(0, (Date.now() - askedAt) / 1000)
}
