// How many are let in, and how long the others will wait: arithmetic. The rate is of people who come; as some never
// turn up, more are let in than that: release = rate / (1 − no-show rate). How many windows may be open at once is not
// decided here: the store refuses one more, whatever the rate says.

/** What the leader of a match carries along; a new leader begins with nothing, so that a change of hands lets in nobody. */
export type Bucket = { credit: number; atMs: number }

/** More than half is never taken for absent: a bad quarter of an hour must not empty the line. */
const noShowMost = 0.5
/** Windows that ended, before which nothing is concluded from them. */
const noShowLeast = 20

export function noShowRate(used: number, unused: number): number {
  const ended = used + unused
  return ended < noShowLeast ? 0 : Math.min(noShowMost, unused / ended)
}

export const releasePerMinute = (ratePerMinute: number, noShow: number): number =>
  ratePerMinute / (1 - noShow)

/**
 * Fills the bucket for the time since, up to what falls due in `everyMs` (at least one): nobody is let in later for
 * what stood empty before.
 */
export function fill(bucket: Bucket, perMinute: number, nowMs: number, everyMs: number): Bucket {
  const earned = (perMinute * Math.max(0, nowMs - bucket.atMs)) / 60_000
  const most = Math.max(1, (perMinute * everyMs) / 60_000)
  return { credit: Math.min(bucket.credit + earned, most + 1), atMs: nowMs }
}

/**
 * Minutes until the turn of who stands at `position`, rounded up; null when nobody can say, as nobody is let in.
 * The pace that was seen counts where it is slower than the rate that was set: windows do not get free any faster.
 */
export function estimateMinutes(
  position: number,
  ratePerMinute: number,
  pacePerMinute: number,
): number | null {
  const perMinute = pacePerMinute > 0 ? Math.min(ratePerMinute, pacePerMinute) : ratePerMinute
  return perMinute > 0 ? Math.max(1, Math.ceil(position / perMinute)) : null
}
