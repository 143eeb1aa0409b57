// What a worker takes on its command line, and the budget that comes of it: after so many messages, seconds, bytes or
// failures it stops by itself, between two batches, and exits 0, so that systemd, cron or Kubernetes start a fresh one.

import { parseArgs } from 'node:util'

export type Limits = {
  /** Messages. */
  limit?: number
  timeLimitSeconds?: number
  memoryLimitBytes?: number
  failureLimit?: number
  /** Until there is nothing to do. */
  once: boolean
  concurrency?: number
  /** How long a stopping worker may finish what it has in hand. */
  graceSeconds: number
}

/** The command line is wrong; the message says what is right. */
export class UsageError extends Error {}

const graceSeconds = 25

export const usage = `usage: main.ts [options]
  --limit N          stop after N messages
  --time-limit S     stop after S seconds
  --memory-limit M   stop when more is resident: 128M, 1G
  --failure-limit N  stop after N failures
  --once             stop when there is nothing to do
  --concurrency N    how many messages at once
  --grace S          how long to finish what is in hand when told to stop (${graceSeconds})`

/** @throws UsageError */
export function parseLimits(argv: readonly string[]): Limits {
  const value = { type: 'string' } as const
  const options = {
    limit: value,
    'time-limit': value,
    'memory-limit': value,
    'failure-limit': value,
    once: { type: 'boolean' },
    concurrency: value,
    grace: value,
  } as const
  let given: ReturnType<typeof parseArgs<{ options: typeof options }>>['values']
  try {
    given = parseArgs({ args: [...argv], options, allowPositionals: false }).values
  } catch (error) {
    throw new UsageError((error as Error).message)
  }
  const number = (name: 'limit' | 'time-limit' | 'failure-limit' | 'concurrency' | 'grace') =>
    positive(name, given[name], name === 'grace')
  return {
    once: given.once ?? false,
    graceSeconds: number('grace') ?? graceSeconds,
    ...defined({
      limit: number('limit'),
      timeLimitSeconds: number('time-limit'),
      memoryLimitBytes: bytes(given['memory-limit']),
      failureLimit: number('failure-limit'),
      concurrency: number('concurrency'),
    }),
  }
}

type Defined<T> = { [K in keyof T]?: Exclude<T[K], undefined> }

const defined = <T extends object>(values: T): Defined<T> =>
  Object.fromEntries(Object.entries(values).filter(([, v]) => v !== undefined)) as Defined<T>

function positive(name: string, text: string | undefined, zero: boolean): number | undefined {
  if (text === undefined) return undefined
  if (/^\d{1,9}$/.test(text) && (zero || Number(text) > 0)) return Number(text)
  const right = zero ? 'a whole number, 0 or more' : 'a whole number above 0'
  throw new UsageError(`--${name} must be ${right} (it is ${JSON.stringify(text)})`)
}

const units = { '': 1, K: 1024, M: 1024 ** 2, G: 1024 ** 3 } as const

function bytes(text: string | undefined): number | undefined {
  if (text === undefined) return undefined
  const [, amount, unit = ''] = /^(\d{1,12})([KMG]?)B?$/i.exec(text) ?? []
  if (!Number(amount)) {
    throw new UsageError(
      `--memory-limit must be a size such as 128M or 1G (it is ${JSON.stringify(text)})`,
    )
  }
  return Number(amount) * units[unit.toUpperCase() as keyof typeof units]
}

/** One line for the start of the log: what will stop this worker. */
export function describeLimits(limits: Limits): string {
  const { limit, timeLimitSeconds, memoryLimitBytes, failureLimit, once } = limits
  const reasons = [
    limit && `it has handled ${limit} messages`,
    timeLimitSeconds && `${timeLimitSeconds} s have passed`,
    memoryLimitBytes && `more than ${Math.round(memoryLimitBytes / 1024 ** 2)} MB are resident`,
    failureLimit && `${failureLimit} failures have happened`,
    once && 'there is nothing to do',
  ].filter((reason) => typeof reason === 'string')
  return reasons.length === 0
    ? 'runs until it is told to stop'
    : `stops by itself when ${reasons.join(', or ')}`
}

/** Whether a run is bounded: a short one has no use for a metrics server. */
export const isBounded = ({ limit, timeLimitSeconds, failureLimit, once }: Limits): boolean =>
  once || [limit, timeLimitSeconds, failureLimit].some((bound) => bound !== undefined)

export type Budget = {
  handled(count: number): void
  failed(count: number): void
  /** Messages left. */
  readonly handledMax: number
  readonly timeLeftMs: number
  /** Why to stop now, if so. */
  reached(): string | undefined
}

export type Gauges = { nowMs(): number; residentBytes(): number }

const real: Gauges = {
  nowMs: () => performance.now(),
  residentBytes: () => process.memoryUsage.rss(),
}

export function createBudget(limits: Limits, { nowMs, residentBytes } = real): Budget {
  const endsAt = nowMs() + (limits.timeLimitSeconds ?? Number.POSITIVE_INFINITY) * 1000
  let left = limits.limit ?? Number.POSITIVE_INFINITY
  let failuresLeft = limits.failureLimit ?? Number.POSITIVE_INFINITY
  return {
    handled(count) {
      left -= count
    },
    failed(count) {
      failuresLeft -= count
    },
    get handledMax() {
      return Math.max(0, left)
    },
    get timeLeftMs() {
      return Math.max(0, endsAt - nowMs())
    },
    reached() {
      if (left <= 0) return `the limit of ${limits.limit} messages`
      if (failuresLeft <= 0) return `the limit of ${limits.failureLimit} failures`
      if (nowMs() >= endsAt) return `the time limit of ${limits.timeLimitSeconds} s`
      // Asked only where it matters: it opens a file, and a worker that is out of descriptors has better uses for one.
      if (limits.memoryLimitBytes === undefined) return undefined
      const resident = residentBytes()
      if (resident <= limits.memoryLimitBytes) return undefined
      return `the memory limit, with ${Math.round(resident / 1024 ** 2)} MB resident`
    },
  }
}
