// How many pushes a process needs in hand: those in flight (rate times latency) and what is begun before the next claim
// is back. No more, since what is in hand when a process dies is found late and runs alone.

export type Pace = {
  begun(): void
  answered(ms: number): void
  /** Pushes in hand, at most. */
  room(): number
}

const least = 32
const aheadMs = 250
/** A mean over about so many answers. */
const weight = 1 / 50

export function createPace(most: number, now: () => number = () => performance.now()): Pace {
  let latencyMs = 50
  let [since, count, perSecond] = [now(), 0, 0]

  /** Over whole half seconds: rises at once, falls with the next one. */
  function measure(): void {
    const ms = now() - since
    if (ms < 500) {
      perSecond = Math.max(perSecond, (count * 1000) / 500)
      return
    }
    perSecond = (count * 1000) / ms
    ;[since, count] = [now(), 0]
  }

  return {
    begun() {
      count++
      measure()
    },
    answered(ms) {
      latencyMs += (ms - latencyMs) * weight
    },
    room: () =>
      Math.min(most, Math.max(least, Math.ceil((perSecond * (latencyMs + aheadMs)) / 1000))),
  }
}
