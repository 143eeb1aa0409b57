// The settings of the outbox worker.

import { brokerSettings, commonSettings, int, requiredText, type Values } from '../config.ts'

export const outboxSettings = {
  ...commonSettings,
  ...brokerSettings,
  OUTBOX_BATCH: int({
    doc: 'events relayed in one transaction',
    fallback: 500,
    min: 4,
    max: 10_000,
  }),
  OUTBOX_WINDOW: int({
    doc: 'events on their way to the broker at once',
    fallback: 2000,
    min: 1,
    max: 20_000,
  }),
  OUTBOX_EVENT_MAX: int({
    doc: 'bytes of one event at most; a broker may take less',
    fallback: 1_048_576,
    min: 1024,
    max: 134_217_728,
  }),
  OUTBOX_UNHEARD: requiredText({
    doc: 'types that count as relayed though RabbitMQ has no queue for them; `*` ends a beginning',
    fallback: 'reservation.*',
  }),
  OUTBOX_POLL_MS: int({ doc: 'how often an idle relay looks again, ms', fallback: 250, min: 10 }),
} as const

export type OutboxConfig = Values<typeof outboxSettings>
