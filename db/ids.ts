// Ids of many rows at once: UUIDs v7 (RFC 9562) in ascending order, also from one call to the next. The dice are thrown
// once for all: asked for one by one they cost more than all else of a job's insert.

import { randomBytes } from 'node:crypto'
import { v7 as uuidv7 } from 'uuid'

let last = { msecs: 0, seq: 0 }

export function newIds(count: number): string[] {
  const dice = randomBytes(16 * count + 4)
  const now = Date.now()
  // A clock that stands still or goes back does not change the order. 31 bits count within a ms, from a random start.
  if (now > last.msecs) last = { msecs: now, seq: dice.readUInt32BE(16 * count) >>> 2 }
  return Array.from({ length: count }, (_, i) => {
    last.seq++
    return uuidv7({ ...last, random: dice.subarray(16 * i, 16 * i + 16) })
  })
}
