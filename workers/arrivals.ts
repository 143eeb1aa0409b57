// Messages that have come and wait to be taken: filled by a client's callback, emptied in batches by a pass. How many
// may wait is the broker's business (prefetch).

export type Arrivals<T> = {
  add(one: T): void
  /** Up to `max`, the oldest first; waits up to `waitMs` while there is none. */
  take(max: number, waitMs: number, signal: AbortSignal): Promise<T[]>
  /** Resolves when fewer than so many wait. */
  below(max: number): Promise<void>
  /** What waits is not ours any more. */
  clear(): void
}

export function createArrivals<T>(): Arrivals<T> {
  let waiting: T[] = []
  let come = Promise.withResolvers<void>()
  let gone = Promise.withResolvers<void>()
  const went = (): void => {
    gone.resolve()
    gone = Promise.withResolvers()
  }
  return {
    add(one) {
      waiting.push(one)
      come.resolve()
    },
    async take(max, waitMs, signal) {
      if (waiting.length === 0 && !signal.aborted) {
        come = Promise.withResolvers()
        const timer = setTimeout(come.resolve, waitMs)
        const { promise, resolve } = come
        const onAbort = (): void => resolve()
        signal.addEventListener('abort', onAbort, { once: true })
        await promise
        signal.removeEventListener('abort', onAbort)
        clearTimeout(timer)
      }
      if (signal.aborted) return []
      const taken = waiting.slice(0, max)
      waiting = waiting.slice(max)
      went()
      return taken
    },
    async below(max) {
      while (waiting.length >= max) await gone.promise
    },
    clear() {
      waiting = []
      went()
    },
  }
}
