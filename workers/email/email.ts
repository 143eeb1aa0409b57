// Sends the mails of the queue `email` (kind b: claimed, sent with no transaction open, settled under the claim), as
// many a second as the pace shared by all instances lets through. A mail is rendered, then goes the way of delivery.ts,
// which sends it once. While no provider is there nothing is claimed.

import { openEmailSends } from '../../db/emailSends.ts'
import type { Jobs } from '../../db/jobs.ts'
import type { Db } from '../../db/schema.ts'
import { decodeEmailJob, type EmailJob, type EmailTemplate } from '../../domain/emails.ts'
import type { SlotRates } from '../../domain/rates.ts'
import { traceIdOf } from '../../domain/traces.ts'
import { jobPass, Postpone, type Traced, Unrecoverable } from '../jobs.ts'
import type { Pass } from '../loop.ts'
import { createPace } from '../pace.ts'
import { type Span, withSpan } from '../trace.ts'
import type { Worker } from '../worker.ts'
import { createDelivery, type Delivered, type DeliveryOptions } from './delivery.ts'
import type { Mail } from './provider.ts'
import type { Providers } from './providers.ts'
import { createRenderer } from './templates.ts'

export type EmailOptions = Pick<
  DeliveryOptions,
  'absentAfterMs' | 'unaskable' | 'onRequest' | 'onAsked'
> & {
  db: Db
  jobs: Jobs
  slots: SlotRates
  providers: Providers
  from: string
  /** Mails a second over all instances. */
  perSecond: number
  batchMax: number
  concurrency: number
  worker: Pick<Worker, 'log' | 'failed' | 'dying' | 'stopping'>
  onSent?(template: EmailTemplate): void
  /** Given up for good. */
  onFailed?(template: EmailTemplate): void
  onSuppressed?(template: EmailTemplate): void
}

/** Of the rate: what is left is for calls that begin late (workers/pace.ts). */
const paceShare = 0.99
/** Questions a second over all instances: Mailgun allows 300 a minute. */
const asksPerSecond = 4

export function emailPass(options: EmailOptions): Pass {
  const { db, jobs, slots, providers, from, perSecond, batchMax, concurrency, worker } = options
  const { deliver } = createDelivery({
    ...options,
    sends: openEmailSends(db),
    pace: createPace({ slots, rate: { name: 'email', perSecond: perSecond * paceShare } }),
    askPace: createPace({ slots, rate: { name: 'email asks', perSecond: asksPerSecond } }),
    stopping: worker.stopping,
  })
  // Made with the first mail: a worker that waits does without it.
  let renderer: ReturnType<typeof createRenderer> | undefined

  async function render(job: EmailJob, createdAt: Date): Promise<Mail> {
    renderer ??= createRenderer()
    const { job_id: id, template, recipient: to, created_at } = job
    const { subject, html, text } = (await renderer)(job)
    return { id, template, from, to, subject, html, text, date: new Date(created_at ?? createdAt) }
  }

  async function handle(job: Traced<EmailJob>, signal: AbortSignal): Promise<void> {
    const { template } = job.data
    const last = job.attempt >= job.attemptsMax
    try {
      const mail = await render(job.data, job.createdAt)
      const attributes = { 'email.template': template }
      const told = { kind: 'client', parent: job.span.traceparent, attributes } as const
      const delivered = await withSpan(`send ${template}`, told, (span) =>
        tellOutcome(span, deliver(mail, last, signal)),
      )
      tell(job, delivered)
    } catch (error) {
      if (error instanceof Unrecoverable || (last && !(error instanceof Postpone))) {
        options.onFailed?.(template)
      }
      throw error
    }
  }

  function tell({ data, span }: Traced<EmailJob>, delivered: Delivered): void {
    const { job_id, template, request_id } = data
    const told = { job_id, template, request_id, trace_id: traceIdOf(span.traceparent) }
    if (delivered.as === 'suppressed') {
      worker.log.info(told, 'mail not sent: the address is suppressed')
      options.onSuppressed?.(template)
      return
    }
    const { provider, as } = delivered
    worker.log.info({ ...told, provider }, as === 'sent' ? 'mail sent' : 'mail was sent already')
    options.onSent?.(template)
  }

  const pass = jobPass({
    db,
    jobs,
    queue: 'email',
    batchMax,
    concurrency,
    worker,
    decode: decodeEmailJob,
    handle,
  })
  return whileThere(pass, providers, worker.stopping)
}

/** How long the pass waits at most before it says so: others may have found a provider back. */
const awayMaxMs = 1000

/** Claims nothing while no provider is there, and one mail to try whether one is back. */
function whileThere(pass: Pass, providers: Providers, stopping: AbortSignal): Pass {
  const guarded: Pass = async (signal, handledMax) => {
    if (signal.aborted || stopping.aborted) return await pass(signal, handledMax)
    const waitMs = providers.awayMs()
    if (waitMs > 0) return { waitMs: Math.min(waitMs, awayMaxMs) }
    return await pass(signal, providers.onlyProbes() ? Math.min(1, handledMax) : handledMax)
  }
  return Object.assign(guarded, pass)
}

async function tellOutcome(span: Span, sending: Promise<Delivered>): Promise<Delivered> {
  const delivered = await sending
  span.set({
    'email.outcome': delivered.as,
    ...(delivered.as !== 'suppressed' && { 'email.provider': delivered.provider }),
  })
  return delivered
}
