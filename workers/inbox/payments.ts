// Settles payments (kind b of its own kind: each job is decided in a transaction of db/payments.ts, which knows what was
// decided before, and then settled under its claim): those that wait are decided together, as confirmations of the API are.

import { createGroup } from '../../db/group.ts'
import type { Jobs } from '../../db/jobs.ts'
import type { PaymentOutcome } from '../../db/payments.ts'
import type { Db } from '../../db/schema.ts'
import { CommitUnknown, isConnectionLost } from '../../db/transaction.ts'
import { AppError } from '../../domain/errors.ts'
import { decodePayment, type PaymentJob } from '../../domain/payments.ts'
import { jobPass, Postpone } from '../jobs.ts'
import type { Pass } from '../loop.ts'
import type { Worker } from '../worker.ts'

export type PaymentsOptions = {
  db: Db
  jobs: Jobs
  worker: Pick<Worker, 'log' | 'failed' | 'dying'>
  onPayment?(outcome: PaymentOutcome): void
}

/** In one transaction; each takes some round trips. */
const groupMax = 16
const againMs = 1000

/** Its places were in dispute, or the line was long: nothing was decided, and the payment is not to blame. */
const isCrowded = (error: unknown): error is AppError =>
  error instanceof AppError && (error.code === 'LOCK_TIMEOUT' || error.code === 'OVERLOADED')

export function paymentsPass({ db, jobs, worker, onPayment }: PaymentsOptions): Pass {
  const group = createGroup<PaymentJob, PaymentOutcome>({
    groupMax,
    divides: (error) =>
      !(error instanceof AppError) && !(error instanceof CommitUnknown) && !isConnectionLost(error),
    // With the first payment: an idle inbox does without the code of holds and orders.
    commit: async (payments) => (await import('../../db/payments.ts')).settlePayments(db, payments),
  })
  return jobPass({
    db,
    jobs,
    queue: 'payments',
    batchMax: 2 * groupMax,
    concurrency: 2 * groupMax,
    worker,
    decode: decodePayment,
    handle: async ({ id: job_id, data, span }) => {
      const { traceparent = data.traceparent } = span
      const payment = { ...data, ...(traceparent && { traceparent }) }
      const outcome = await group.run(payment).catch((error) => {
        throw isCrowded(error) ? new Postpone(againMs * (1 + Math.random()), error.message) : error
      })
      onPayment?.(outcome)
      const { payment_id, reservation_id, request_id } = data
      const told = { job_id, payment_id, reservation_id, request_id, ...outcome }
      if (outcome.is === 'refund_due') worker.log.warn(told, 'a payment is due back')
      else worker.log.info(told, 'a payment was settled')
    },
  })
}
