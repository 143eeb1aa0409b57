// What the email worker tells (SPEC 11): mails sent, given up and held back by template, how many wait, and how the
// providers answer.

import { Counter, Gauge, Histogram } from 'prom-client'
import { readQueueLevels } from '../../db/jobStats.ts'
import type { Db } from '../../db/schema.ts'
import { type EmailTemplate, emailTemplates } from '../../domain/emails.ts'
import { readSeldom } from '../metrics.ts'

const outcomes = ['sent', 'retry', 'rejected', 'down', 'unknown'] as const
const answers = ['there', 'rejected', 'absent', 'cannot'] as const

export function createEmailMetrics(db: Db) {
  const byTemplate = (name: string, help: string) => {
    const counter = new Counter({ name, help, labelNames: ['template'] as const })
    for (const template of emailTemplates) counter.inc({ template }, 0)
    return (template: EmailTemplate) => counter.inc({ template })
  }
  const onSent = byTemplate('notification_email_sent_total', 'Mails that a provider took')
  const onFailed = byTemplate('notification_email_failed_total', 'Mails given up')
  const onSuppressed = byTemplate(
    'notification_email_suppressed_total',
    'Mails not sent, as their address is suppressed',
  )
  const requests = new Counter({
    name: 'notification_email_requests_total',
    help: 'Mails handed to a provider, by what came of it',
    labelNames: ['provider', 'outcome'] as const,
  })
  const latency = new Histogram({
    name: 'notification_email_request_seconds',
    help: 'How long a provider took to answer',
    labelNames: ['provider'] as const,
    buckets: [0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 20],
  })
  const asked = new Counter({
    name: 'notification_email_asked_total',
    help: 'Questions what became of a mail whose outcome was unknown, by the answer',
    labelNames: ['provider', 'answer'] as const,
  })
  const away = new Gauge({
    name: 'notification_email_provider_away',
    help: '1: the provider is given up for now',
    labelNames: ['provider'] as const,
  })
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
  const known = new Set<string>()
  return {
    onSent,
    onFailed,
    onSuppressed,
    onRequest(provider: string, outcome: (typeof outcomes)[number], seconds: number) {
      requests.inc({ provider, outcome })
      latency.observe({ provider }, seconds)
    },
    onAsked: (provider: string, answer: (typeof answers)[number]) =>
      asked.inc({ provider, answer }),
    onState(provider: string, isOpen: boolean) {
      away.set({ provider }, isOpen ? 1 : 0)
      if (known.has(provider)) return
      known.add(provider)
      for (const outcome of outcomes) requests.inc({ provider, outcome }, 0)
      for (const answer of answers) asked.inc({ provider, answer }, 0)
      latency.zero({ provider })
    },
  }
}
