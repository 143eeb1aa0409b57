// The settings of the outbox worker.

import { commonSettings, int, type Values } from '../config.ts'

export const outboxSettings = {
  ...commonSettings,
  OUTBOX_BATCH: int({
    doc: 'events relayed in one transaction',
    fallback: 500,
    min: 4,
    max: 10_000,
  }),
  OUTBOX_POLL_MS: int({ doc: 'how often an idle relay looks again, ms', fallback: 250, min: 10 }),
} as const

export type OutboxConfig = Values<typeof outboxSettings>
