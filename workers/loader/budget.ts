// How many bytes of replies may lie in memory at once, over all requests. A reply that would go beyond waits; the oldest
// one never does, so that they cannot all wait for each other. As the oldest may be of a source that hangs, the oldest of
// those that wait goes on for a while as well, again and again, unless a whole reply is on its way into the store.

export type Budget = ReturnType<typeof createBudget>
/** Of one reply. */
export type Share = {
  /** Undefined: at once. */
  take(bytes: number): Promise<void> | undefined
  /** The reply has come, and will be free soon. */
  whole(): void
  /** The reply is in the store, or was dropped. */
  free(): void
}

type Own = { bytes: number; isWhole: boolean; goesUntil: number; go: (() => void) | undefined }

/** Enough for a source that does its work to send the rest. */
const goesMs = 250

export function createBudget(bytesMax: number) {
  /** The oldest first. */
  const shares = new Map<Share, Own>()
  let taken = 0
  let isWatched = false

  function letGo(): void {
    const [oldest] = shares.keys()
    for (const [share, own] of shares) {
      if (share === oldest || taken < bytesMax) goOn(own)
    }
  }

  function goOn(own: Own): void {
    own.go?.()
    own.go = undefined
  }

  function watch(): void {
    if (isWatched) return
    isWatched = true
    setTimeout(letOneGo, goesMs).unref()
  }

  /** Who has had its while stands behind the others that wait. */
  function letOneGo(): void {
    isWatched = false
    const waiting = [...shares.values()].filter(({ go }) => go !== undefined)
    const [next] = waiting.sort((a, b) => a.goesUntil - b.goesUntil)
    if (next === undefined) return
    watch()
    if ([...shares.values()].some(({ isWhole }) => isWhole)) return
    next.goesUntil = performance.now() + goesMs
    goOn(next)
  }

  function share(): Share {
    const own: Own = { bytes: 0, isWhole: false, goesUntil: 0, go: undefined }
    const self: Share = {
      take(bytes) {
        own.bytes += bytes
        taken += bytes
        const [oldest] = shares.keys()
        if (taken <= bytesMax || oldest === self || performance.now() < own.goesUntil) {
          return undefined
        }
        watch()
        return new Promise((resolve) => {
          own.go = resolve
        })
      },
      whole() {
        own.isWhole = true
      },
      free() {
        if (!shares.delete(self)) return
        taken -= own.bytes
        goOn(own)
        letGo()
      },
    }
    shares.set(self, own)
    return self
  }

  return {
    share,
    get taken() {
      return taken
    },
  }
}
