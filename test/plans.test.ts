// What looks for old rows finds them by an index: with nothing to do it reads next to nothing of a table that is full of
// young ones. For the sweep of holds that is more than speed, since a SERIALIZABLE transaction conflicts over what it reads.

import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { sql } from 'kysely'
import { v7 as uuidv7 } from 'uuid'
import { closeDeadCommands, pruneCommands } from '../db/commands.ts'
import { openIdempotency } from '../db/idempotency.ts'
import { pruneInbox } from '../db/inbox.ts'
import { type QueueStats, readQueueLevels, readQueueStats } from '../db/jobStats.ts'
import { openLimits } from '../db/limits.ts'
import { type Database, openDatabase } from '../db/open.ts'
import type { Db } from '../db/schema.ts'
import { expireReservations } from '../db/settlements.ts'
import { testDatabase } from './database.ts'

const { db, url } = await testDatabase()

const young = 20_000
/** A BRIN index leaves the last range of pages open. */
const readMax = young / 5

let one: Database
before(async () => {
  // One connection: what it read is known when the next statement on it asks.
  one = openDatabase({ url, name: 'counted', poolMax: 1 })
  const fill = (into: string, values: string) =>
    sql
      .raw(`insert into ${into} select ${values} from generate_series(1, ${young}) as i`)
      .execute(db)
  await fill(
    'reservations (id, event_id, user_id, section_no, quantity, expires_at)',
    `gen_random_uuid(), gen_random_uuid(), 'ann', 1, 1, clock_timestamp() + interval '1 hour'`,
  )
  await fill(
    'idempotency_records (key, fingerprint, status, headers, body)',
    `i::text, 'x', 200, '{}', ''`,
  )
  await fill('inbox_processed (consumer, message_id)', `'x', gen_random_uuid()`)
  await fill(
    'rate_limits (subject, minute, count)',
    `i::text, extract(epoch from clock_timestamp())::bigint / 60, 1`,
  )
  const ids = Array.from({ length: young }, () => uuidv7())
  await sql`
    insert into commands (id, method, path, status, finished_at)
    select id, 'POST', '/', 200, clock_timestamp() from unnest(${ids}::uuid[]) as id`.execute(db)
  await fill('pgboss.job (name, state, completed_on)', `'email', 'completed', now()`)
  await sql`vacuum analyze`.execute(db)
})
after(() => one.close())

async function read(table: string): Promise<number> {
  await sql`select pg_stat_force_next_flush()`.execute(one.db)
  const { rows } = await sql<{ read: number }>`
    select (seq_tup_read + coalesce(idx_tup_fetch, 0))::int as read
    from pg_stat_user_tables where relname = ${table}`.execute(one.db)
  return rows[0]!.read
}

const ready = (stats: QueueStats[]) => stats.reduce((sum, queue) => sum + queue.ready, 0)

const works: [string, string, (on: Db) => Promise<number>][] = [
  ['the sweep of holds', 'reservations', (on) => expireReservations(on, 200)],
  ['pruning answers', 'idempotency_records', (on) => openIdempotency(on).prune()],
  ['pruning counts', 'rate_limits', (on) => openLimits(on).prune()],
  ['pruning messages', 'inbox_processed', (on) => pruneInbox(on)],
  ['pruning commands', 'commands', (on) => pruneCommands(on)],
  ['the look at queues by metrics', 'job_common', async (on) => ready(await readQueueLevels(on))],
  ['the look at queues by people', 'job_common', async (on) => ready(await readQueueStats(on))],
  [
    'giving commands up',
    'commands',
    (on) => closeDeadCommands(on, { status: 500, headers: {}, body: '' }),
  ],
]

for (const [name, table, work] of works) {
  test(`${name} reads what is due and no more`, async () => {
    const before = await read(table)
    assert.equal(await work(one.db), 0)
    const rows = (await read(table)) - before
    assert.ok(rows < readMax, `${rows} rows of ${young}`)
  })
}
