// A pass that is run by a schedule, once a firing over all instances: the instance that claims the firing does what there
// is to do, and the others wait for the next. A pass that fails is run again by the same instance; when that one dies
// there is the next firing. For upkeep that one instance can bear; work that many should share needs no schedule.

import { claimFiring } from '../db/schedules.ts'
import type { Db } from '../db/schema.ts'
import type { Schedule } from '../domain/schedules.ts'
import type { Loop, Pass } from './loop.ts'

export type ScheduledLoop = {
  db: Db
  /** Of the schedule: the same in all processes that share it, and of the loop. */
  name: string
  schedule: Schedule
  /** Run until it is idle. `scheduledAt`: when the firing was due. */
  pass(signal: AbortSignal, handledMax: number, scheduledAt: Date): ReturnType<Pass>
}

export const everyMinute: Schedule = { everyMs: 60_000 }

/** A clock that was set or a schedule that was changed is noticed within this time. */
const lookAgainMs = 30_000

export function scheduledPass({ db, name, schedule, pass }: ScheduledLoop): Pass {
  let scheduledAt: Date | undefined
  return async (signal, handledMax) => {
    if (scheduledAt === undefined) {
      const claim = await claimFiring(db, name, schedule)
      if (claim.scheduledAt === undefined) return { waitMs: Math.min(claim.waitMs, lookAgainMs) }
      scheduledAt = claim.scheduledAt
    }
    const outcome = await pass(signal, handledMax, scheduledAt)
    if (outcome !== 0) return outcome
    scheduledAt = undefined
    return { waitMs: 0 }
  }
}

export function scheduledLoop(options: ScheduledLoop): Loop {
  return { name: options.name, pass: scheduledPass(options), idleMs: lookAgainMs, upkeep: true }
}
