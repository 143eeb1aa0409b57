// Whether a dependency is worth asking: a breaker opens when it failed, and lets one caller at a time try it out. It logs
// one line a change and shows as `fallback_active` and `fallbacks_total`. What is done instead is its owner's affair.

import type { Logger } from 'pino'
import { Counter, Gauge, type Registry, register } from 'prom-client'

export type Breaker = {
  /** Whether a call is worth trying: closed, or open for `openMs` and this caller is the one that tries it out. */
  allows(): boolean
  worked(): void
  failed(error: unknown): void
}

export type Breakers = (dependency: 'redis' | 'postgres' | 'opensearch') => Breaker

/** Breakers that log one line a change and show as `fallback_active` and `fallbacks_total`. */
export function createBreakers(options: {
  log: Logger
  registry?: Registry
  openMs?: number
  now?: () => number
}): Breakers {
  const { log, registry = register, openMs = 1000, now = () => performance.now() } = options
  const active = new Gauge({
    name: 'fallback_active',
    help: '1 while the fast path of a dependency is given up for its fallback',
    labelNames: ['dependency'],
    registers: [registry],
  })
  const falls = new Counter({
    name: 'fallbacks_total',
    help: 'changes from a dependency to its fallback',
    labelNames: ['dependency'],
    registers: [registry],
  })

  return (dependency) => {
    let open = false
    let tryAt = 0
    active.set({ dependency }, 0)
    falls.inc({ dependency }, 0)
    return {
      allows() {
        if (!open) return true
        if (now() < tryAt) return false
        // Half open: one caller tries, and another only when this one has not come back by then.
        tryAt = now() + openMs
        return true
      },
      worked() {
        if (!open) return
        open = false
        active.set({ dependency }, 0)
        log.info({ dependency }, `${dependency} answers again`)
      },
      failed(error) {
        tryAt = now() + openMs
        if (open) return
        open = true
        active.set({ dependency }, 1)
        falls.inc({ dependency })
        log.warn({ dependency, err: error }, `${dependency} does not answer: going on without it`)
      },
    }
  }
}

/** @throws Error when there is no answer in time */
export function within<T>(ms: number, promise: Promise<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    const late = setTimeout(() => reject(new Error(`no answer within ${ms} ms`)), ms)
    promise.then(resolve, reject).finally(() => clearTimeout(late))
  })
}
