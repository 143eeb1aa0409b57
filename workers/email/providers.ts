// The providers in their order, and which of them are away. One that fails several times in a row, or says that it will
// have nothing for a while, has its circuit opened for all instances (db/circuits.ts); then the next in the list takes
// over, or, when there is none, nothing is claimed any more. From time to time one mail tries it out; not one whose flag a
// person has switched off (domain/flags.ts).

import {
  circuitCodes,
  closeCircuit,
  openCircuit,
  readCircuits,
  takeProbe,
} from '../../db/circuits.ts'
import { circuitsSwitchedOff } from '../../db/flags.ts'
import type { Db } from '../../db/schema.ts'
import type { Worker } from '../worker.ts'
import type { EmailProvider } from './provider.ts'

export type Route = {
  provider: EmailProvider
  /** It is away, and this mail may be the one that tries it. */
  isProbe: boolean
}

export type Providers = {
  /** The first that is there, or may be tried, besides those. */
  next(besides?: ReadonlySet<EmailProvider>): Route | undefined
  /** Whether the mail may really go there: of those that would try it out one is let through. */
  admits(route: Route): Promise<boolean>
  named(name: string): EmailProvider | undefined
  /** It answered, well or not. */
  worked(route: Route): Promise<void>
  failed(route: Route, why: string): Promise<void>
  /** It wants nothing for so long, 0: it does not say how long. */
  limited(route: Route, why: string, afterMs: number): Promise<void>
  /** Until one of them is there or may be tried, ms; 0: now. */
  awayMs(): number
  /** None is there, but one may be tried. */
  onlyProbes(): boolean
  /** Learns what other instances found out. */
  refresh(): Promise<number>
}

export type ProvidersOptions = {
  db: Db
  providers: readonly EmailProvider[]
  worker: Pick<Worker, 'log'>
  onState?(provider: string, isOpen: boolean): void
  /** For tests. */
  waitsMs?: { first: number; most: number }
}

/** In a row, in one process. */
const failuresMax = 3
/** For as long as a try may take. */
const probeHoldMs = 30_000
const waits = { first: 5000, most: 60_000 }

type State = { failures: number; isOpen: boolean; tryAt: number }

/** Of one that a person has switched off: each look puts it off again. */
const switchedOffMs = 60_000

const circuitOf = (name: string): string => `email:${name}`

export function createProviders(options: ProvidersOptions): Providers {
  const { db, providers, worker, onState, waitsMs = waits } = options
  const states = new Map<string, State>()
  for (const { name } of providers) {
    states.set(name, { failures: 0, isOpen: false, tryAt: 0 })
    onState?.(name, false)
  }
  const stateOf = ({ name }: EmailProvider) => states.get(name) as State
  const isThere = (provider: EmailProvider) => !stateOf(provider).isOpen
  const mayTry = (provider: EmailProvider) => performance.now() >= stateOf(provider).tryAt

  /** Doubling, a quarter of it random: instances that see the same do not come back together. */
  const waitMs = (tries: number): number =>
    Math.min(waitsMs.most, waitsMs.first * 2 ** Math.min(tries, 10)) * (0.75 + Math.random() / 2)

  function set({ name }: EmailProvider, isOpen: boolean, tryAt: number): void {
    states.set(name, { failures: 0, isOpen, tryAt })
    onState?.(name, isOpen)
  }

  async function open({ provider, isProbe }: Route, why: string, ms?: number): Promise<void> {
    const { name } = provider
    const opening = { why, waitMs: ms === undefined ? waitMs : () => ms, wasProbe: isProbe }
    const isNew = await openCircuit(db, circuitOf(name), opening)
    await refresh()
    if (!isNew) return
    worker.log.error(
      { code: circuitCodes.opened, provider: name, why },
      'a mail provider is away: mails go to the next, or wait without an attempt spent',
    )
  }

  async function refresh(): Promise<number> {
    const names = providers.map(({ name }) => circuitOf(name))
    const switchedOff = await circuitsSwitchedOff(db, names)
    const circuits = new Map((await readCircuits(db, names)).map((one) => [one.name, one]))
    for (const provider of providers) {
      const name = circuitOf(provider.name)
      const circuit = circuits.get(name)
      if (switchedOff.has(name)) set(provider, true, performance.now() + switchedOffMs)
      else if (circuit?.isOpen) set(provider, true, performance.now() + circuit.waitMs)
      else if (stateOf(provider).isOpen) set(provider, false, 0)
    }
    return 0
  }

  return {
    next(besides = new Set()) {
      const provider = providers.find((one) => !besides.has(one) && (isThere(one) || mayTry(one)))
      return provider && { provider, isProbe: !isThere(provider) }
    },
    async admits({ provider, isProbe }) {
      if (!isProbe) return true
      const isOurs = await takeProbe(db, circuitOf(provider.name), probeHoldMs)
      const state = stateOf(provider)
      state.tryAt = performance.now() + (isOurs ? probeHoldMs : 1000)
      return isOurs
    },
    named: (name) => providers.find((one) => one.name === name),
    async worked({ provider, isProbe }) {
      stateOf(provider).failures = 0
      if (!isProbe) return
      const seconds = await closeCircuit(db, circuitOf(provider.name))
      set(provider, false, 0)
      if (seconds === undefined) return
      worker.log.warn(
        { code: circuitCodes.closed, provider: provider.name, seconds: Math.round(seconds) },
        'a mail provider is back',
      )
    },
    async failed(route, why) {
      const state = stateOf(route.provider)
      state.failures++
      if (route.isProbe || (!state.isOpen && state.failures >= failuresMax)) await open(route, why)
    },
    limited: (route, why, afterMs) => open(route, why, afterMs > 0 ? afterMs : undefined),
    awayMs() {
      if (providers.some(isThere)) return 0
      const soonest = Math.min(...providers.map((one) => stateOf(one).tryAt))
      return Math.max(0, Math.ceil(soonest - performance.now()))
    },
    onlyProbes: () => !providers.some(isThere),
    refresh,
  }
}
