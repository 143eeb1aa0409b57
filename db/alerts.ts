// Alerts as jobs: written in the transaction that finds what they tell of, so that each is there once, and none is told of
// what was rolled back.

import type { Alert } from '../domain/alerts.ts'
import type { Tx } from './schema.ts'
import { sendJobs } from './sends.ts'
import { wakeAfterCommit } from './wake.ts'

export async function sendAlerts(tx: Tx, alerts: readonly Alert[]): Promise<void> {
  if (alerts.length === 0) return
  await sendJobs(
    tx,
    'alert',
    alerts.map((data) => ({ data })),
  )
  wakeAfterCommit(tx, 'alert')
}
