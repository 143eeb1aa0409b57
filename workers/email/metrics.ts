// What the email worker tells (SPEC 11): mails sent and given up by template, and how many wait.

import { Counter, Gauge } from 'prom-client'
import { readQueueLevels } from '../../db/jobStats.ts'
import type { Db } from '../../db/schema.ts'
import { type EmailTemplate, emailTemplates } from '../../domain/emails.ts'
import { readSeldom } from '../metrics.ts'

export function createEmailMetrics(db: Db) {
  const labelNames = ['template'] as const
  const sent = new Counter({
    name: 'notification_email_sent_total',
    help: 'Mails that a provider took',
    labelNames,
  })
  const failed = new Counter({
    name: 'notification_email_failed_total',
    help: 'Mails given up',
    labelNames,
  })
  for (const template of emailTemplates) {
    sent.inc({ template }, 0)
    failed.inc({ template }, 0)
  }
  const levels = readSeldom(() => readQueueLevels(db))
  new Gauge({
    name: 'notification_email_queue_size',
    help: 'Mails that wait, for their time as well, each up to 100000',
    async collect() {
      // A database that is away leaves the last value, and the other metrics readable.
      const stats = await levels().catch(() => [])
      const email = stats.find(({ queue }) => queue === 'email')
      if (email) this.set(email.ready + email.delayed)
    },
  })
  return {
    onSent: (template: EmailTemplate) => sent.inc({ template }),
    onFailed: (template: EmailTemplate) => failed.inc({ template }),
  }
}
