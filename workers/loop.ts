// The loop around a pass: the one place where a worker repeats, waits, catches and logs. A pass that handled something
// is followed by the next at once; an idle one by a wait; a failed one by a longer and longer wait. Nothing but the
// signal or a limit ends it, least of all a database that is away.

import { setTimeout as sleep } from 'node:timers/promises'
import type { QueueName } from '../domain/queues.ts'
import type { Budget } from './limits.ts'
import type { Log } from './log.ts'

/**
 * Does one bounded batch, of `handledMax` messages at most, and says how many it handled: 0 is idle, `waitMs` that
 * there is more to do but not before so long. It never loops, sleeps or catches. When the signal aborts it begins
 * nothing new, finishes what it has in hand and returns.
 */
export type Pass = {
  (signal: AbortSignal, handledMax: number): Promise<number | { waitMs: number }>
  /** Called at the end of the loop by a pass that leaves things in hand: they are finished or given back. */
  finish?(): Promise<number>
  /** Called while it runs when there is something new. */
  wake?(): void
  /** Called when something in hand may have been taken back: looks now, rather than at its next sign of life. */
  touch?(): void
}

export type Loop = {
  name: string
  pass: Pass
  /** The wait after an idle pass. */
  idleMs: number
  /** Upkeep beside the worker's own work: its passes do not count as messages, nor keep a run with --once going. */
  upkeep?: boolean
  /** The queue whose new jobs end its idle waits. */
  wokenBy?: QueueName
}

/** What a loop tells of itself. */
export type LoopState = {
  name: string
  /** Since when its pass runs, by performance.now(). */
  busySince: number | undefined
  /** Passes that failed since the last good one. */
  failures: number
  lastError: string | undefined
  /** A pass has been good at least once. */
  good: boolean
  /** There is something new: the idle wait ends, or does not begin. */
  wake(): void
  /** Since the last pass began. */
  woken: boolean
}

export type LoopObserver = {
  passed(loop: string, handled: number, seconds: number): void
  failed(loop: string, seconds: number): void
}

export type LoopContext = {
  signal: AbortSignal
  budget: Budget
  once: boolean
  log: Log
  observer: LoopObserver
  /** Told of a limit: every loop of the process is to stop. */
  stop(reason: string): void
}

const backoffMs = { first: 500, most: 30_000 }

/** The wait after `failures` failed passes in a row, ms: doubling, up to 30 s, half of it random. */
export const backoffDelayMs = (failures: number, random: number): number =>
  Math.min(backoffMs.most, backoffMs.first * 2 ** (failures - 1)) * (0.5 + random / 2)

export function createLoopState({ name, pass }: Loop): LoopState {
  return {
    name,
    busySince: undefined,
    failures: 0,
    lastError: undefined,
    good: false,
    woken: false,
    wake() {
      this.woken = true
      if (this.busySince !== undefined) pass.wake?.()
    },
  }
}

/** Resolves when the loop has ended; never rejects. */
export async function runLoop(loop: Loop, state: LoopState, context: LoopContext): Promise<void> {
  await repeat(loop, state, context)
  try {
    context.budget.handled((await loop.pass.finish?.()) ?? 0)
  } catch (error) {
    context.log.error({ err: error, loop: loop.name }, 'what was in hand did not end well')
  }
}

async function repeat(loop: Loop, state: LoopState, context: LoopContext): Promise<void> {
  const { signal, budget, once } = context
  while (!signal.aborted) {
    const reached = budget.reached()
    if (reached !== undefined) return context.stop(reached)
    const outcome = await passOnce(loop, state, context)
    if (outcome === 0 && once) return
    if (typeof outcome === 'number' && outcome > 0) continue
    const waitMs = typeof outcome === 'number' ? loop.idleMs : outcome.waitMs
    const ms = Math.min(waitMs, budget.timeLeftMs, 2 ** 31 - 1)
    await (outcome === 0 ? idle(state, ms, signal) : rest(ms, signal))
  }
}

/** Rejects when it is cut short, which the head of the loop sees for itself. */
const rest = (ms: number, signal: AbortSignal) => sleep(ms, undefined, { signal }).catch(() => {})

/** A rest that ends when there is something new. */
async function idle(state: LoopState, ms: number, signal: AbortSignal): Promise<void> {
  if (state.woken) return
  const woken = new AbortController()
  const { wake } = state
  state.wake = () => woken.abort()
  await rest(ms, AbortSignal.any([signal, woken.signal]))
  state.wake = wake
}

async function passOnce(loop: Loop, state: LoopState, context: LoopContext) {
  const { signal, budget, observer, log } = context
  const begun = performance.now()
  const seconds = () => (performance.now() - begun) / 1000
  state.busySince = begun
  state.woken = false
  try {
    const outcome = await loop.pass(signal, budget.handledMax)
    const handled = typeof outcome === 'number' ? outcome : 0
    if (!loop.upkeep) budget.handled(handled)
    observer.passed(loop.name, handled, seconds())
    if (state.failures > 0) log.info({ loop: loop.name, failures: state.failures }, 'works again')
    Object.assign(state, { failures: 0, lastError: undefined, good: true })
    return outcome
  } catch (error) {
    state.failures++
    state.lastError = error instanceof Error ? error.message : String(error)
    if (!loop.upkeep) budget.failed(1)
    observer.failed(loop.name, seconds())
    const waitMs = backoffDelayMs(state.failures, Math.random())
    const told = { err: error, loop: loop.name, failures: state.failures, wait_ms: waitMs | 0 }
    log.error(told, 'a pass failed')
    return { waitMs }
  } finally {
    state.busySince = undefined
  }
}
