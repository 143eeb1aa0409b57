// Who asked to be left alone, and until when, for all instances. A later word never shortens the rest.

import { sql } from 'kysely'
import type { Db } from './schema.ts'

export async function rest(db: Db, name: string, ms: number): Promise<void> {
  await sql`
    insert into rests (name, until_at) values (${name}, clock_timestamp() + ${ms}::float8 * interval '1 ms')
    on conflict (name) do update set until_at = greatest(rests.until_at, excluded.until_at)`.execute(
    db,
  )
}

/** How long it still is, ms; 0: nobody rests. */
export async function restMs(db: Db, name: string): Promise<number> {
  const { rows } = await sql<{ ms: number }>`
    select greatest(0, ceil(extract(epoch from until_at - clock_timestamp()) * 1000))::float8 as ms
    from rests where name = ${name}`.execute(db)
  return rows[0]?.ms ?? 0
}
