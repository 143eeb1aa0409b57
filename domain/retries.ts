// The retry schedules of the house, as pure arithmetic: how long a write transaction waits between attempts, and
// after which delays a failed job runs again. Nothing here sleeps.

/** SQLSTATEs that a repeated transaction can mend: lock_timeout, deadlock, serialization failure. No others. */
export const retriedSqlStates: ReadonlySet<string> = new Set(['55P03', '40P01', '40001'])

export const transactionAttemptsMax = 6

/**
 * The wait in ms between attempt n and n+1 (n from 1): min(1000, U(0.5, 1.5) × 50 × 2^n).
 * `random` is uniform on [0, 1).
 */
export function transactionDelayMs(attempt: number, random: number): number {
  return Math.min(1000, (0.5 + random) * 50 * 2 ** attempt)
}

/**
 * The delays in ms before attempt 2, 3, …: when they are used up the job is dead.
 * `notification`: at once, +30 s, +5 min. `background`: 3 retries after 1 s, 5 s, 30 s.
 */
export const jobSchedules = {
  notification: [30_000, 300_000],
  background: [1_000, 5_000, 30_000],
} as const satisfies Record<string, readonly number[]>

export type JobSchedule = keyof typeof jobSchedules

/**
 * When attempt number `attempt` (from 1) has failed: the ms to wait, or null when no attempt is left. A provider's
 * Retry-After can only make the wait longer.
 */
export function jobRetryDelayMs(
  schedule: readonly number[],
  attempt: number,
  retryAfterMs = 0,
): number | null {
  const delay = schedule[attempt - 1]
  return delay === undefined ? null : Math.max(delay, retryAfterMs)
}
