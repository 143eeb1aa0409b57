// How soon to look again for events that wait behind an older transaction: it may be over at once, or be a long one.

const lookMs = { first: 10, most: 160 }

/** @param beforeMs what it was at the last look; 0: nothing waited */
export const nextLookMs = (waits: boolean, beforeMs: number): number =>
  waits ? Math.min(Math.max(lookMs.first, 2 * beforeMs), lookMs.most) : 0
