// Rates that rise slowly, over all instances: a ramp's level is the share of a full rate that may be used now. It rises
// while somebody wants more than there is, and falls at the same pace when nobody does, by Postgres's time.

import { sql } from 'kysely'
import type { Db } from './schema.ts'

export type Ramp = {
  name: string
  /** From nothing to everything, seconds. */
  rampSeconds: number
}

/** Callers ask a few times a second while they have work: of a longer silence nobody can say that there was any. */
const silentSeconds = 1

/** @param pressed whether the caller was given less than it wanted since it last asked. @returns the level, 0 to 1 */
export async function climbRamp(
  db: Db,
  { name, rampSeconds }: Ramp,
  pressed: boolean,
): Promise<number> {
  const silence = sql`${silentSeconds} * interval '1 s'`
  const { rows } = await sql<{ level: number }>`
    insert into rate_ramps as r (name, level, changed_at, pressed_at)
    values (${name}, 0, clock_timestamp(),
      case when ${pressed} then clock_timestamp() else 'epoch' end)
    on conflict (name) do update set
      level = least(1, greatest(0, r.level
        + case when r.changed_at > clock_timestamp() - ${silence}
            and (${pressed} or r.pressed_at > clock_timestamp() - ${silence}) then 1 else -1 end
        * greatest(0, extract(epoch from clock_timestamp() - r.changed_at)::float8)
        / ${rampSeconds}::float8)),
      changed_at = clock_timestamp(),
      pressed_at = case when ${pressed} then clock_timestamp() else r.pressed_at end
    returning level`.execute(db)
  return rows[0]?.level ?? 0
}
