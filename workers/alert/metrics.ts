// What the alert worker tells: alerts that went out, by way and kind, those that were refused, and rests that Slack asked
// for.

import { Counter } from 'prom-client'
import type { AlertType, Channel } from '../../domain/alerts.ts'
import { alertSchemas } from '../../domain/alerts.ts'

const channels: readonly Channel[] = ['slack', 'email']

export function createAlertMetrics() {
  const sent = new Counter({
    name: 'alerts_sent_total',
    help: 'Alerts that Slack took, or that became a mail job',
    labelNames: ['channel', 'type'] as const,
  })
  const failed = new Counter({
    name: 'alerts_refused_total',
    help: 'Alerts that were refused for good',
    labelNames: ['channel'] as const,
  })
  const rested = new Counter({
    name: 'alert_slack_rests_total',
    help: 'Times that Slack asked to be left alone',
  })
  for (const channel of channels) {
    for (const type of Object.keys(alertSchemas)) sent.inc({ channel, type }, 0)
  }
  failed.inc({ channel: 'slack' }, 0)
  return {
    onSent: (channel: Channel, type: AlertType) => sent.inc({ channel, type }),
    onFailed: (channel: Channel) => failed.inc({ channel }),
    onRested: () => rested.inc(),
  }
}
