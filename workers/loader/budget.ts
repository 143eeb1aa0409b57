// How many bytes of replies may lie in memory at once, over all requests. A reply that would go beyond waits; the oldest
// one never does, so that they cannot all wait for each other.

export type Budget = ReturnType<typeof createBudget>
/** Of one reply. */
export type Share = {
  /** Undefined: at once. */
  take(bytes: number): Promise<void> | undefined
  /** The reply is in the store, or was dropped. */
  free(): void
}

export function createBudget(bytesMax: number) {
  /** The oldest first. */
  const shares = new Map<Share, { bytes: number; go: (() => void) | undefined }>()
  let taken = 0

  function letGo(): void {
    const [oldest] = shares.keys()
    for (const [share, own] of shares) {
      if (own.go === undefined || (share !== oldest && taken >= bytesMax)) continue
      own.go()
      own.go = undefined
    }
  }

  function share(): Share {
    const own = { bytes: 0, go: undefined as (() => void) | undefined }
    const self: Share = {
      take(bytes) {
        own.bytes += bytes
        taken += bytes
        const [oldest] = shares.keys()
        if (taken <= bytesMax || oldest === self) return undefined
        return new Promise((resolve) => {
          own.go = resolve
        })
      },
      free() {
        if (!shares.delete(self)) return
        taken -= own.bytes
        own.go?.()
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
