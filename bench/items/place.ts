// What the bench of items does with the workers, each a process of its own as the fleet starts it, and how it finds out what
// they have done.

import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { setTimeout as sleep } from 'node:timers/promises'
import { sql } from 'kysely'
import { known } from '../../cli/program.ts'
import { startOf, workers } from '../../cli/workers.ts'
import type { OpenSearch } from '../../workers/opensearch.ts'
import type { Place } from '../loader/place.ts'

export function startWorker(place: Place, name: string, settings: Record<string, string>) {
  const given = {
    ...process.env,
    ...settings,
    DATABASE_URL: place.url,
    METRICS_PORT: '0',
    LOG_LEVEL: 'warn',
  }
  const start = startOf(known('worker', name, workers), given, place.dataDir)
  const child = spawn(process.execPath, start.args, {
    env: start.env,
    stdio: ['ignore', 'inherit', 'inherit'],
  })
  place.ends.push(() => child.kill('SIGKILL'))
  return child
}

export async function stopWorker(child: ChildProcess): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return
  const gone = once(child, 'exit')
  child.kill('SIGTERM')
  await gone
}

export async function empty({ database: { db } }: Place): Promise<void> {
  await sql`truncate items, item_embeddings, item_codes, item_neighbours, item_spaces,
    item_rebuilds, vendor_limits, circuits, flags restart identity`.execute(db)
  await sql`delete from pgboss.job`.execute(db)
}

/** Those that wait or are in hand. */
async function waiting({ database: { db } }: Place, queue: string): Promise<number> {
  const { rows } = await sql<{ n: number }>`
    select ((select count(*) from pgboss.job where name = ${queue})
      + (select count(*) from jobs_in_hand(array[${queue}]) j where not j.done))::int as n`.execute(
    db,
  )
  return rows[0]?.n ?? 0
}

export async function untilDone(place: Place, queue: string, maxMs = 600_000): Promise<void> {
  const endsAt = performance.now() + maxMs
  while ((await waiting(place, queue)) > 0) {
    if (performance.now() > endsAt) throw new Error(`${queue} is not empty after ${maxMs} ms`)
    await sleep(50)
  }
}

/** By asking for each word that titles have. @returns how many items the index lacks or has too many */
export async function differences(
  { database: { db } }: Place,
  search: OpenSearch,
): Promise<number> {
  let differ = 0
  for (const q of ['steadfast', 'newcomer', 'changed', 'original']) {
    const found = new Set(await search.byWords({ q, limit: 1_000_000, offset: 0 }))
    const { rows } = await sql<{ id: string }>`
      select id from items where title ilike ${`%${q}%`}`.execute(db)
    differ += rows.filter(({ id }) => !found.delete(id)).length + found.size
  }
  return differ
}
