// Frees the holds whose time is over: one batch a pass, in one transaction (kind a). Passes follow one another while they
// find some, then wait for the interval. Any number of these workers may run: each takes other holds. No schedule
// chooses one of them: a look by the index is cheaper than the claim of a firing, all help when there is much, and none
// waits for one that died.

import type { Db } from '../../db/schema.ts'
import { expireReservations } from '../../db/settlements.ts'
import type { Pass } from '../loop.ts'

export type ExpiryOptions = {
  db: Db
  batchMax: number
  onExpired?(count: number): void
}

export function expiryPass({ db, batchMax, onExpired }: ExpiryOptions): Pass {
  return async (_signal, handledMax) => {
    const expired = await expireReservations(db, Math.min(batchMax, handledMax))
    onExpired?.(expired)
    return expired
  }
}
