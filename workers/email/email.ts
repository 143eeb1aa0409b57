// Sends the mails of the queue `email` (kind b: claimed, sent with no transaction open, settled under the claim), as
// many a second as the bucket shared by all instances lets through. A job may be sent a second time when its worker died
// between the provider's yes and its own note of it; both carry the same Message-Id.

import type { Jobs } from '../../db/jobs.ts'
import type { Rate } from '../../db/rates.ts'
import type { Db } from '../../db/schema.ts'
import { decodeEmailJob, type EmailJob, type EmailTemplate } from '../../domain/emails.ts'
import { traceIdOf } from '../../domain/traces.ts'
import { jobPass, RetryAfter, type Traced, Unrecoverable } from '../jobs.ts'
import type { Pass } from '../loop.ts'
import { type Span, withSpan } from '../trace.ts'
import type { Worker } from '../worker.ts'
import type { EmailProvider, SendOutcome } from './provider.ts'
import { createRenderer } from './templates.ts'

export type EmailOptions = {
  db: Db
  jobs: Jobs
  provider: EmailProvider
  from: string
  /** Mails a second over all instances. */
  perSecond: number
  batchMax: number
  concurrency: number
  worker: Pick<Worker, 'log' | 'failed' | 'dying'>
  onSent?(template: EmailTemplate): void
  /** Given up for good. */
  onFailed?(template: EmailTemplate): void
}

export function emailPass(options: EmailOptions): Pass {
  const { db, jobs, provider, from, perSecond, batchMax, concurrency, worker } = options
  const rate: Rate = { name: 'email', perSecond, burst: perSecond }
  // Made with the first mail: a worker that waits does without it.
  let renderer: ReturnType<typeof createRenderer> | undefined

  async function handle(job: Traced<EmailJob>, signal: AbortSignal): Promise<void> {
    const { span } = job
    const { job_id: id, template, recipient: to, created_at, request_id } = job.data
    renderer ??= createRenderer()
    const { subject, html, text } = (await renderer)(job.data)
    const mail = { id, from, to, subject, html, text, date: new Date(created_at) }
    const outcome = await withSpan(
      `send ${template}`,
      {
        kind: 'client',
        parent: span.traceparent,
        attributes: { 'email.provider': provider.name, 'email.template': template },
      },
      (sending) => tellOutcome(sending, provider.send(mail, signal)),
    )
    if (outcome.is === 'sent') {
      const trace_id = traceIdOf(span.traceparent)
      const told = { job_id: id, template, request_id, provider: provider.name, trace_id }
      worker.log.info(told, 'mail sent')
      options.onSent?.(template)
      return
    }
    const last = outcome.is === 'rejected' || job.attempt >= job.attemptsMax
    if (last) options.onFailed?.(template)
    if (outcome.is === 'rejected') throw new Unrecoverable(outcome.why)
    throw new RetryAfter(outcome.afterMs, outcome.why)
  }

  return jobPass({
    db,
    jobs,
    queue: 'email',
    batchMax,
    concurrency,
    worker,
    rate,
    decode: decodeEmailJob,
    handle,
  })
}

async function tellOutcome(span: Span, sending: Promise<SendOutcome>): Promise<SendOutcome> {
  const outcome = await sending
  span.set({ 'email.outcome': outcome.is })
  return outcome
}
