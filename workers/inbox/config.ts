// The settings of the inbox worker.

import { redisUrl } from '../../redis/address.ts'
import { brokerSettings, commonSettings, int, requiredText, text, type Values } from '../config.ts'

export const inboxSettings = {
  ...commonSettings,
  ...brokerSettings,
  REDIS_URL: text({
    doc: 'asked first whether an event from a broker was processed; unset: the database alone',
    secret: true,
    parse: redisUrl,
  }),
  INBOX_QUEUE: requiredText({
    doc: 'the durable queue or subscription at the broker, shared by all inboxes',
    fallback: 'flotilla.inbox',
  }),
  INBOX_BATCH: int({ doc: 'events taken in one transaction', fallback: 200, min: 1, max: 5000 }),
  INBOX_POLL_MS: int({ doc: 'how often an idle inbox looks again, ms', fallback: 250, min: 10 }),
} as const

export type InboxConfig = Values<typeof inboxSettings>
