// The settings of the expiry worker.

import { commonSettings, int, type Values } from '../config.ts'

export const expirySettings = {
  ...commonSettings,
  EXPIRY_INTERVAL: int({
    doc: 'how often holds whose time is over are looked for, s',
    fallback: 30,
    min: 1,
    max: 3600,
  }),
  EXPIRY_BATCH: int({ doc: 'holds freed in one transaction', fallback: 200, min: 1, max: 10_000 }),
} as const

export type ExpiryConfig = Values<typeof expirySettings>
