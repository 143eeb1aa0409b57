// The settings of the inbox worker.

import { commonSettings, int, type Values } from '../config.ts'

export const inboxSettings = {
  ...commonSettings,
  INBOX_BATCH: int({ doc: 'events taken in one transaction', fallback: 200, min: 1, max: 5000 }),
  INBOX_POLL_MS: int({ doc: 'how often an idle inbox looks again, ms', fallback: 250, min: 10 }),
} as const

export type InboxConfig = Values<typeof inboxSettings>
