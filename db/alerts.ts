// Alerts as jobs: written in the transaction that finds what they tell of, so that each is there once, and none is told of
// what was rolled back.

import type { Alert } from '../domain/alerts.ts'
import type { Tx } from './schema.ts'
import { sendInTransaction } from './sends.ts'

export const sendAlerts = (tx: Tx, alerts: readonly Alert[]): Promise<void> =>
  sendInTransaction(
    tx,
    'alert',
    alerts.map((data) => ({ data })),
  )
