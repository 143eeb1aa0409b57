// The circuit of one vendor as a worker uses it: its state is shared by all instances (db/circuits.ts), failures in a row
// are counted in each. While it is open, or a person has switched its flag off, nothing is begun; once it has been open
// for a while one call at a time tries whether the vendor is back, and if it is, everybody goes on.

import { circuitCodes, closeCircuit, openCircuit, readCircuits, takeProbe } from '../db/circuits.ts'
import { circuitsSwitchedOff } from '../db/flags.ts'
import type { Db } from '../db/schema.ts'
import type { Pass } from './loop.ts'
import type { Worker } from './worker.ts'

export type SharedCircuit = {
  /** Until it is worth while to begin something, ms; 0: now. */
  waitMs(): number
  /** At most one may be begun: it tries whether the vendor is back. */
  isOpen(): boolean
  /** Why nothing is done; undefined: it is. */
  away(): string | undefined
  /** Whether this call may go: of those that would try an open circuit one does. */
  admits(): Promise<Admission>
  /** It answered, well or not. */
  worked(admission: Admission): Promise<void>
  /** It did not do its work; so many times in a row, and the circuit opens. */
  failed(admission: Admission, why: string): Promise<void>
  /** There is no use in going on, and no way but through people or time: opens at once. */
  gone(admission: Admission, why: string, afterMs?: number): Promise<void>
  /** Good answers of this process so far. */
  successes(): number
  /** Learns what other instances found out, and what people want. */
  refresh(): Promise<number>
}

export type Admission = 'yes' | 'probe' | 'no'

export type SharedCircuitOptions = {
  db: Db
  /** Of the circuit, as domain/flags.ts has it. */
  name: string
  /** For people: `the embedding vendor`. */
  what: string
  worker: Pick<Worker, 'log'>
  /** For as long as a try may take, ms. */
  probeHoldMs: number
  waitsMs?: { first: number; most: number }
  onState?(isOpen: boolean): void
}

/** In a row, in one process: fewer are bad luck. */
const failuresMax = 3
const waits = { first: 5000, most: 60_000 }
const offLookMs = 1000

export function createSharedCircuit(options: SharedCircuitOptions): SharedCircuit {
  const { db, name, what, worker, probeHoldMs, onState, waitsMs = waits } = options
  let [failures, successes] = [0, 0]
  let [isOpen, isOff] = [false, false]
  let [why, tryAt] = ['', 0]
  onState?.(false)

  /** Doubling, a quarter of it random: instances that see the same do not come back together. */
  const waitAfter = (tries: number): number =>
    Math.min(waitsMs.most, waitsMs.first * 2 ** Math.min(tries, 10)) * (0.75 + Math.random() / 2)

  function set(open: boolean): void {
    if (isOpen !== open) failures = 0
    isOpen = open
    onState?.(open)
  }

  async function open(admission: Admission, said: string, afterMs: number): Promise<void> {
    const opening = {
      why: said,
      waitMs: (tries: number) => Math.max(afterMs, waitAfter(tries)),
      wasProbe: admission === 'probe',
    }
    const isNew = await openCircuit(db, name, opening)
    await refresh()
    if (!isNew) return
    const told = { code: circuitCodes.opened, circuit: name, why: said }
    worker.log.error(told, `${what} is away: its jobs wait, no attempt spent`)
  }

  async function refresh(): Promise<number> {
    const [circuits, off] = await Promise.all([
      readCircuits(db, [name]),
      circuitsSwitchedOff(db, [name]),
    ])
    const [circuit] = circuits
    if (off.has(name) !== isOff) {
      isOff = !isOff
      worker.log.warn({ circuit: name }, `${what} is switched ${isOff ? 'off' : 'on'} by a person`)
    }
    if (circuit?.isOpen) {
      why = circuit.why
      tryAt = performance.now() + circuit.waitMs
    }
    set(circuit?.isOpen === true)
    return 0
  }

  return {
    waitMs: () => (isOff ? offLookMs : isOpen ? Math.max(0, tryAt - performance.now()) : 0),
    isOpen: () => isOpen,
    away: () => (isOff ? `${what} is switched off` : isOpen ? `${what}: ${why}` : undefined),
    async admits() {
      // Asked each time: what a person switched off is not called once more.
      await refresh()
      if (isOff) return 'no'
      if (!isOpen) return 'yes'
      const isOurs = await takeProbe(db, name, probeHoldMs)
      tryAt = performance.now() + (isOurs ? probeHoldMs : offLookMs)
      return isOurs ? 'probe' : 'no'
    },
    async worked(admission) {
      failures = 0
      successes++
      if (admission !== 'probe') return
      const seconds = await closeCircuit(db, name)
      set(false)
      if (seconds === undefined) return
      const told = { code: circuitCodes.closed, circuit: name, seconds: Math.round(seconds) }
      worker.log.warn(told, `${what} is back`)
    },
    async failed(admission, said) {
      failures++
      if (admission === 'probe' || (!isOpen && failures >= failuresMax)) {
        await open(admission, said, 0)
      }
    },
    gone: (admission, said, afterMs = 0) => open(admission, said, afterMs),
    successes: () => successes,
    refresh,
  }
}

/** How long a pass waits at most before it says so: others may have found the vendor back. */
const awayMaxMs = 1000

/** Claims nothing while the vendor is away, and one job to try whether it is back. */
export function whileThere(pass: Pass, circuit: SharedCircuit, stopping: AbortSignal): Pass {
  const guarded: Pass = async (signal, handledMax) => {
    if (signal.aborted || stopping.aborted) return await pass(signal, handledMax)
    const waitMs = circuit.waitMs()
    if (waitMs > 0) return { waitMs: Math.min(waitMs, awayMaxMs) }
    return await pass(signal, circuit.isOpen() ? Math.min(1, handledMax) : handledMax)
  }
  return Object.assign(guarded, pass)
}
