// Tells people (kind b: claimed, told with no transaction open, settled under the claim). A mail is a job of the queue
// `email` under an id made of the alert's, so it is there once however often this runs; Slack is told at its own pace, which
// all instances share, and by none of them while it wants to rest. Slack knows no way to ask for once: when its answer is
// lost, or this process dies before the job is settled, the alert comes again, as one too many is better than none.

import { v5 as uuidv5 } from 'uuid'
import type { Jobs } from '../../db/jobs.ts'
import { rest, restMs } from '../../db/rests.ts'
import type { Db } from '../../db/schema.ts'
import {
  type Alert,
  type AlertType,
  type Channel,
  channelsFor,
  decodeAlert,
  describeAlert,
} from '../../domain/alerts.ts'
import type { EmailJob } from '../../domain/emails.ts'
import type { SlotRates } from '../../domain/rates.ts'
import { jobPass, Postpone, type Traced, Unrecoverable } from '../jobs.ts'
import type { Pass } from '../loop.ts'
import { createPace, type Pace } from '../pace.ts'
import type { Worker } from '../worker.ts'
import type { Slack } from './slack.ts'

export type AlertOptions = {
  db: Db
  jobs: Jobs
  slots: SlotRates
  /** Undefined: there is no Slack. */
  slack: Slack | undefined
  /** Who gets mails; undefined: nobody. */
  email: string | undefined
  worker: Pick<Worker, 'log' | 'failed' | 'dying'>
  onSent?(channel: Channel, type: AlertType): void
  onFailed?(channel: Channel): void
  onRested?(): void
}

/** The name of Slack's pace and rest. */
const slackName = 'slack'
/** Slack's limit is 1: what is left is for messages that take less long than the one before. */
const slackPerSecond = 0.95
/** Each waits for its turn at Slack in hand: few, so that other instances have some and none is in hand too long. */
const inHandMax = 4
/** Between two looks whether it is back. */
const awayRestMs = 30_000
/** Older alerts are no news: they go the way of other jobs. */
const awayMaxMs = 86_400_000

export function alertPass(options: AlertOptions): Pass {
  const { db, jobs, slots, slack, email, worker, onSent, onFailed, onRested } = options
  const there: Channel[] = [
    ...(slack ? ['slack' as const] : []),
    ...(email ? ['email' as const] : []),
  ]
  const rate = { name: slackName, perSecond: slackPerSecond }
  const pace: Pace = createPace({ slots, rate, takeMax: 1 })

  async function handle(job: Traced<Alert>, signal: AbortSignal): Promise<void> {
    const { id, data: alert } = job
    const told = { job_id: id, type: alert.type }
    const channels = channelsFor(alert, there)
    if (channels.length === 0) {
      worker.log.warn(
        { ...told, alert },
        'nobody is told of it: set SLACK_WEBHOOK_URL, ALERT_EMAIL',
      )
      return
    }
    // First: it needs nobody but the database.
    const mail = email && channels.includes('email') ? mailOf(id, email, alert) : undefined
    if (mail) await jobs.send(db, 'email', [mail])
    try {
      if (slack && channels.includes('slack')) await tellSlack(slack, alert, signal)
    } catch (error) {
      // Otherwise it is counted when the alert comes again.
      if (mail && error instanceof Unrecoverable) onSent?.('email', alert.type)
      throw error
    }
    if (mail) onSent?.('email', alert.type)
    worker.log.info({ ...told, channels }, 'told people')
  }

  async function tellSlack(slack: Slack, alert: Alert, signal: AbortSignal): Promise<void> {
    await pace.next(signal)
    // After the wait: others may have been asked to rest meanwhile.
    const waitMs = await restMs(db, slackName)
    if (waitMs > 0) throw new Postpone(waitMs, 'Slack wants to rest')
    const outcome = await slack.post(describeAlert(alert), signal)
    switch (outcome.is) {
      case 'sent':
        return onSent?.('slack', alert.type)
      case 'limited':
        await rest(db, slackName, outcome.afterMs)
        onRested?.()
        worker.log.warn({ after_ms: outcome.afterMs }, 'Slack wants to rest: alerts wait')
        throw new Postpone(outcome.afterMs, 'Slack wants to rest')
      case 'rejected':
        onFailed?.('slack')
        throw new Unrecoverable(outcome.why)
      case 'away':
        if (!(Date.now() - Date.parse(alert.at) < awayMaxMs)) throw new Error(outcome.why)
        await rest(db, slackName, awayRestMs)
        throw new Postpone(awayRestMs, outcome.why)
      case 'retry':
        throw new Error(outcome.why)
    }
  }

  return jobPass({
    db,
    jobs,
    queue: 'alert',
    batchMax: inHandMax,
    concurrency: inHandMax,
    worker,
    decode: decodeAlert,
    handle,
  })
}

function mailOf(alertId: string, recipient: string, alert: Alert): { id: string; data: EmailJob } {
  const id = uuidv5('email', alertId)
  const { title, facts } = describeAlert(alert)
  const common = { job_id: id, type: 'email', recipient, attempts: 0, max_attempts: 3 } as const
  return { id, data: { ...common, template: 'alert', payload: { title, facts } } }
}
