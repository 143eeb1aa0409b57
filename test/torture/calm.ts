// The calm after the torture: waits until every worker is back and nothing is left to do, and tells what is when that
// takes too long.

import { setTimeout as sleep } from 'node:timers/promises'
import { sql } from 'kysely'
import { readQueueStats } from '../../db/jobStats.ts'
import { openDatabase } from '../../db/open.ts'
import { readRelayed } from '../../db/sales.ts'
import type { Db } from '../../db/schema.ts'
import type { Machine } from './machines.ts'
import type { Check } from './proof.ts'

/** Locks of dead holders 30 s, jobs of dead workers 15 s and a retry after 30 s, more than once. */
export const settleMaxMs = 180_000
/** How often it is told how far things are. */
export const tickMs = 5000

/** Every worker of every machine says that it is ready. */
export async function allReady(
  machines: readonly Machine[],
  signal: AbortSignal,
): Promise<string[]> {
  const endsAt = performance.now() + settleMaxMs
  for (;;) {
    signal.throwIfAborted()
    const missing = await notReady(machines)
    if (missing.length === 0 || performance.now() > endsAt) return missing
    await sleep(200)
  }
}

async function notReady(machines: readonly Machine[]): Promise<string[]> {
  const missing: string[] = []
  for (const machine of machines) {
    const running = machine.running()
    for (const name of machine.workers) {
      const one = running.find((worker) => worker.name === name)
      const options = { signal: AbortSignal.timeout(2000) }
      const ready =
        one && (await fetch(`http://${one.metrics}/readyz`, options).catch(() => undefined))
      if (!ready?.ok) missing.push(`${name} on ${machine.name}`)
    }
  }
  return missing
}

/** All up, nothing left to do; or what is, when it takes too long. */
export async function untilCalm(
  url: string,
  machines: readonly Machine[],
  signal: AbortSignal,
  say: (line: string) => void,
  isRemote = false,
): Promise<Check[]> {
  const missing = await allReady(machines, signal)
  let told = performance.now()
  const { db, close } = openDatabase({ url, name: 'torture' })
  const endsAt = performance.now() + settleMaxMs
  try {
    for (;;) {
      signal.throwIfAborted()
      const busy = [...(await leftToDo(db)), ...(isRemote ? await leftAtBroker(db) : [])]
      if (busy.length === 0 || performance.now() > endsAt) {
        return [
          { name: 'every worker is back and ready', faults: missing },
          { name: 'nothing is left to do', faults: busy },
        ]
      }
      if (performance.now() - told > tickMs) {
        say(busy.join('; '))
        told = performance.now()
      }
      await sleep(250)
    }
  } finally {
    await close()
  }
}

async function leftToDo(db: Db): Promise<string[]> {
  const { written, relayed } = await readRelayed(db)
  const queues = await readQueueStats(db)
  const { held } = await db
    .selectFrom('reservations')
    .select((eb) => eb.fn.countAll<string>().as('held'))
    .where('state', '=', 'held')
    .executeTakeFirstOrThrow()
  return [
    ...(written > relayed ? [`${written - relayed} events to relay`] : []),
    ...(held === '0' ? [] : [`${held} holds to expire`]),
    ...queues.flatMap(({ queue, ready, delayed, active }) =>
      ready + delayed + active > 0
        ? [`${queue}: ${ready} ready, ${delayed} later, ${active} active`]
        : [],
    ),
  ]
}

/** Events the inbox has not had from the broker; those aside count as well. */
async function leftAtBroker(db: Db): Promise<string[]> {
  const { rows } = await sql<{ missing: number }>`
    select count(*)::int as missing from outbox o
    where o.type in ('order.completed', 'ticket.generated') and not exists (
      select from inbox_processed p where p.message_id = o.message_id)`.execute(db)
  const missing = rows[0]?.missing ?? 0
  return missing > 0 ? [`${missing} events to come from the broker`] : []
}
