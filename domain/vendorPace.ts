// When the next call to a vendor may begin, from what its answers say of its limits (x-ratelimit-limit-*, -remaining-*,
// -reset-* for requests and for tokens), as arithmetic on a state that all instances share.
//
// Calls are spread evenly: as many as the limit allows in a window, and no more than what is left until the reset. So it
// does not matter whether a vendor counts in windows that begin anew or in buckets that fill steadily. What was begun
// after the call that an answer is to has not been counted there, and is taken off; an answer older than one already
// heard is no news. After a reset, until an answer tells more, there is a new window.

export type Meter = { limit: number; remaining: number; resetMs: number }

/** What one answer says. Undefined: it does not. */
export type Told = { requests: Meter | undefined; tokens: Meter | undefined }

type Heard = {
  limit: number
  /** When the vendor had counted the call `no`. */
  remaining: number
  /** Units begun until then, that call's among them. */
  begun: number
  /** By the database's clock, ms. */
  resetAt: number
}

export type PaceState = {
  /** Calls begun, and the tokens they were taken for. */
  calls: number
  tokens: number
  /** The newest call whose answer was heard. */
  heardNo: number
  requestsHeard?: Heard
  tokensHeard?: Heard
  /** The next call may begin, ms. */
  nextAt: number
  /** Nobody calls before, ms: the vendor asked for it. */
  heldUntil: number
  /** What a call costs in tokens, to what it is estimated at; a mean of so many answers. */
  tokenFactor: number
  costsHeard: number
  /** Since when no answer has come to the first calls, of which there is one at a time. */
  asking?: number
}

export type Ticket = { no: number; tokens: number; tokensBegun: number }

export const freshState = (): PaceState => ({
  calls: 0,
  tokens: 0,
  heardNo: 0,
  nextAt: 0,
  heldUntil: 0,
  // Rather too much than too little, until answers tell.
  tokenFactor: 2,
  costsHeard: 0,
})

/** A slot is reserved so long before its time at most. */
const aheadMs = 250
/** While nothing is known of the limits there is one call at a time, for as long as one may take. */
const blindMs = 60_000
/** Of a limit: the rest is for calls that arrive late, in the next window, and for what nobody counted. */
const share = 0.95

/**
 * Reserves the next call, or says in how many ms it is worth asking again. `nowMs`: the database's; `windowMs`: how long
 * the vendor's windows are.
 */
export function reserveCall(
  before: PaceState,
  { estimate, nowMs, windowMs }: { estimate: number; nowMs: number; windowMs: number },
): { state: PaceState; ticket?: Ticket; waitMs: number } {
  const at = Math.max(nowMs, before.nextAt, before.heldUntil)
  if (at - nowMs > aheadMs) return { state: before, waitMs: at - nowMs }
  const isBlind = before.heardNo === 0
  if (isBlind && before.asking !== undefined && nowMs - before.asking < blindMs) {
    return { state: before, waitMs: aheadMs }
  }
  const state: PaceState = { ...before, ...(isBlind && { asking: nowMs }) }
  const tokens = Math.max(1, Math.ceil(estimate * state.tokenFactor))
  const meters: [Heard, number, number][] = []
  if (state.requestsHeard) {
    state.requestsHeard = renewed(state.requestsHeard, state.calls, at, windowMs)
    meters.push([state.requestsHeard, state.calls, 1])
  }
  if (state.tokensHeard) {
    state.tokensHeard = renewed(state.tokensHeard, state.tokens, at, windowMs)
    meters.push([state.tokensHeard, state.tokens, tokens])
  }
  const wait = Math.max(0, ...meters.map(([heard, sum, want]) => lackMs(heard, sum, want, at)))
  if (wait > 0) return { state: { ...state, nextAt: at + wait }, waitMs: at + wait - nowMs }
  const gaps = meters.map(([heard, sum, want]) =>
    Math.max((want * windowMs) / (heard.limit * share), restMs(heard, sum, want, at)),
  )
  state.nextAt = at + Math.max(0, ...gaps)
  state.calls++
  state.tokens += tokens
  return {
    state,
    ticket: { no: state.calls, tokens, tokensBegun: state.tokens },
    waitMs: at - nowMs,
  }
}

function renewed(heard: Heard, sum: number, at: number, windowMs: number): Heard {
  if (at < heard.resetAt) return heard
  return { limit: heard.limit, remaining: heard.limit, begun: sum, resetAt: at + windowMs }
}

/** What may still be begun before the reset. */
const leftOf = ({ limit, remaining, begun }: Heard, sum: number): number =>
  Math.min(limit, remaining) * share - Math.max(0, sum - begun)

/** How long to wait for room for `want`, 0: there is. One that wants more than there ever is waits for all of it. */
const lackMs = (heard: Heard, sum: number, want: number, at: number): number =>
  leftOf(heard, sum) >= Math.min(want, heard.limit * share) ? 0 : heard.resetAt - at

/** How long this call's part of the time until the reset is, by what is left. */
const restMs = (heard: Heard, sum: number, want: number, at: number): number =>
  (want * (heard.resetAt - at)) / Math.max(want, leftOf(heard, sum))

/** An answer to `ticket`'s call came. `usedTokens`: what it says the call cost. */
export function hear(
  state: PaceState,
  ticket: Ticket,
  told: Told,
  usedTokens: number | undefined,
  nowMs: number,
): PaceState {
  const { asking: _, ...answered } = state
  const next: PaceState = { ...answered, ...costAfter(state, ticket, usedTokens) }
  if (ticket.no <= state.heardNo) return next
  next.heardNo = ticket.no
  if (told.requests) {
    next.requestsHeard = heardOf(told.requests, ticket.no, nowMs)
  }
  if (told.tokens) {
    next.tokensHeard = heardOf(told.tokens, ticket.tokensBegun, nowMs)
  }
  return next
}

const heardOf = ({ limit, remaining, resetMs }: Meter, begun: number, nowMs: number): Heard => ({
  limit,
  remaining,
  begun,
  resetAt: nowMs + resetMs,
})

/** A mean over the last ten or so, within reason. */
function costAfter(
  { tokenFactor, costsHeard }: PaceState,
  { tokens }: Ticket,
  used: number | undefined,
): Pick<PaceState, 'tokenFactor' | 'costsHeard'> {
  if (used === undefined || used <= 0) return { tokenFactor, costsHeard }
  const seen = (used / tokens) * tokenFactor
  const mean = tokenFactor + (seen - tokenFactor) / Math.min(10, costsHeard + 1)
  return { tokenFactor: Math.min(100, Math.max(0.01, mean)), costsHeard: costsHeard + 1 }
}

/** A call came to nothing. `heldUntil`: the vendor asked for nobody to call before; 0: it said nothing. */
export function unheard(state: PaceState, heldUntil: number): PaceState {
  const { asking: _, ...answered } = state
  return { ...answered, heldUntil: Math.max(state.heldUntil, heldUntil) }
}

/** Such as 6m0s, 1.5s, 120ms, or plain seconds; ms. */
export function readDuration(text: string | null | undefined): number | undefined {
  if (text === null || text === undefined) return undefined
  if (/^\d{1,9}(\.\d{1,9})?$/.test(text)) return Number(text) * 1000
  const parts = [...text.matchAll(/(\d{1,9}(?:\.\d{1,9})?)(ms|s|m|h|d)/g)]
  if (parts.length === 0 || parts.map(([part]) => part).join('') !== text) return undefined
  return parts.reduce((sum, [, value, unit]) => sum + Number(value) * (unitMs[unit ?? ''] ?? 0), 0)
}
const unitMs: Readonly<Record<string, number>> = {
  ms: 1,
  s: 1000,
  m: 60_000,
  h: 3_600_000,
  d: 86_400_000,
}

/** Headers as vendors send them; what is missing, odd or negative (Azure: -1) says nothing. */
export function readLimits(header: (name: string) => string | null): Told {
  const meter = (kind: string): Meter | undefined => {
    const number = (name: string) => {
      const text = header(`x-ratelimit-${name}-${kind}`)
      return text !== null && /^\d{1,15}$/.test(text.trim()) ? Number(text) : undefined
    }
    const [limit, remaining] = [number('limit'), number('remaining')]
    const resetMs = readDuration(header(`x-ratelimit-reset-${kind}`)?.trim())
    if (limit === undefined || limit === 0) return undefined
    if (remaining === undefined || resetMs === undefined) return undefined
    return { limit, remaining, resetMs }
  }
  return { requests: meter('requests'), tokens: meter('tokens') }
}
