// How many things a second may begin over all instances, as two ports that Postgres and Redis both serve: a bucket of
// tokens, which lets a burst through, and slots, which come evenly spaced.
//
// A bucket of b tokens refilled with r a second lets b + r through in its first second. Whoever counts r a second at the
// other side (a provider's limit) sees twice its limit when b = r. Slots are b = 1, and can be reserved a little ahead,
// so that a process that is late for one does not lose those after it: in any second no more than r + 1 begin.

export type Rate = {
  name: string
  perSecond: number
  /** Tokens that an idle bucket has gathered. */
  burst: number
}

export type Tokens = {
  granted: number
  /** Until there is one more, ms; 0 when some are left. */
  waitMs: number
}

/** A bucket starts full, is refilled evenly and never holds more than `burst`: in t seconds burst + t × perSecond. */
export type Rates = {
  /** Takes up to `want` tokens, whole ones. */
  take(rate: Rate, want: number): Promise<Tokens>
  /** How many there are; takes none. */
  count(rate: Rate): Promise<Tokens>
}

export type Slots = {
  granted: number
  /** Until the first of them, the others 1 / perSecond apart; when none: until it is worth asking again. ms. */
  waitMs: number
}

export type SlotRates = {
  /** Reserves up to `want` of the next slots, none later than slotsAheadMs from now. Those not used are lost. */
  reserve(rate: Pick<Rate, 'name' | 'perSecond'>, want: number): Promise<Slots>
}

/** Enough for some instances to have theirs in turn, little enough to lose. */
export const slotsAheadMs = 250
