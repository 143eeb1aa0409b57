// The outbox: domain events written in the transaction that makes them true, read once by the relay in commit order,
// pruned behind it. Append only. A reader stays below the oldest transaction still writing, because an id order is not
// a commit order; within one aggregate the order (txid, id) is the order of the commits, since every writer is
// SERIALIZABLE and updates the aggregate's row: its snapshot, and so its txid, is younger than its predecessor's commit.

import { sql } from 'kysely'
import {
  type CloudEvent,
  type EventHead,
  type EventType,
  envelopeOf,
  type NewEvent,
} from '../domain/events.ts'
import { headColumns, type Position } from './relay.ts'
import type { Db, Tx } from './schema.ts'
import { readByKey, transaction } from './transaction.ts'
import { wakeAfterCommit } from './wake.ts'

/** As many as 0001_foundation.sql made cursors. */
const slotCount = 16
/** Slots one relay takes at a time: others find some left. */
const slotsMax = 4

/** FNV-1a: which slot an aggregate's events go through. One relay at a time reads a slot, so order is kept in it. */
export function slotOf(subject: string): number {
  let hash = 0x811c9dc5
  for (let i = 0; i < subject.length; i++) {
    hash = Math.imul(hash ^ subject.charCodeAt(i), 0x01000193)
  }
  return (hash >>> 0) % slotCount
}

/** Appends events, in one statement, in their order. Part of the hot hold: arrays, not rows, and nothing is read. */
export async function writeEvents(tx: Tx, events: readonly NewEvent[]): Promise<void> {
  if (events.length === 0) return
  await sql`
    insert into outbox (slot, message_id, type, subject, sequence, data, request_id, traceparent)
    select * from unnest(
      ${events.map((event) => slotOf(event.subject))}::int[],
      ${events.map((event) => event.messageId)}::uuid[],
      ${events.map((event) => event.type)}::text[],
      ${events.map((event) => event.subject)}::text[],
      ${events.map((event) => event.sequence)}::int[],
      ${events.map((event) => JSON.stringify(event.data))}::jsonb[],
      ${events.map((event) => event.requestId ?? null)}::text[],
      ${events.map((event) => event.traceparent ?? null)}::text[]
    )`.execute(tx)
  wakeAfterCommit(tx, 'outbox')
}

const readCommitted = { isolation: 'read committed' } as const

type Row = Position & EventHead & { slot: number; type: EventType; data: CloudEvent['data'] }

/**
 * Hands the next events of a few free slots to `publish` and moves their cursors, all in one transaction: when it
 * throws, nothing was relayed. READ COMMITTED, as a serializable reader would make the writers fail. Locks cursors in
 * any order, skipping taken ones; reads by the primary key (slot, txid, id).
 * @returns how many events were relayed
 */
export async function relayEvents(
  db: Db,
  publish: (tx: Tx, events: CloudEvent[]) => Promise<void>,
  batchMax: number,
): Promise<number> {
  return await transaction(
    db,
    async (tx) => {
      await readByKey(tx)
      const aside = await takeAsides(tx, batchMax)
      if (aside.length > 0) {
        await publish(tx, aside)
        return aside.length
      }
      const rows = await takeEvents(tx, Math.ceil(batchMax / slotsMax))
      if (rows.length === 0) return 0
      await publish(tx, rows.map(toCloudEvent))
      await moveCursors(tx, rows)
      return rows.length
    },
    readCommitted,
  )
}

/** Not leased by a relay over the network: one that is stopped to come here gives its slots up, or loses them soon. */
const isFree = sql<boolean>`(c.leased_until is null or c.leased_until < clock_timestamp())`

/** What a broker across the network had refused, before it was exchanged for this one: it comes first. */
async function takeAsides(tx: Tx, batchMax: number): Promise<CloudEvent[]> {
  const { rows } = await sql<{ event: CloudEvent }>`
    with taken as materialized (
      select c.slot from outbox_cursors c
      where exists (select from outbox_aside a where a.slot = c.slot) and ${isFree}
      for update skip locked
    ), gone as (
      delete from outbox_aside a using (
        select f.slot, f.subject, f.txid, f.id from taken join outbox_aside f using (slot)
        order by f.txid, f.id limit ${batchMax}
      ) f
      where (a.slot, a.subject, a.txid, a.id) = (f.slot, f.subject, f.txid, f.id)
      returning a.txid, a.id, a.event
    )
    select event from gone order by txid, id`.execute(tx)
  return rows.map(({ event }) => event)
}

async function takeEvents(tx: Tx, perSlotMax: number): Promise<Row[]> {
  const { rows } = await sql<Row>`
    with taken as materialized (
      select c.slot, c.txid, c.id from outbox_cursors c
      where exists (
        select from outbox o where o.slot = c.slot and (o.txid, o.id) > (c.txid, c.id)
          and o.txid < pg_snapshot_xmin(pg_current_snapshot())
      )
      and ${isFree} and not exists (select from outbox_aside a where a.slot = c.slot)
      order by random() limit ${slotsMax} for update skip locked
    )
    select e.slot, e.txid, e.id, ${headColumns}, data from taken t cross join lateral (
      select o.slot, o.txid, o.id, o.message_id, o.type, o.subject, o.sequence, o.data,
        o.request_id, o.traceparent, o.created_at
      from outbox o where o.slot = t.slot and (o.txid, o.id) > (t.txid, t.id)
        and o.txid < pg_snapshot_xmin(pg_current_snapshot())
      order by o.txid, o.id limit ${perSlotMax}
    ) e
    order by e.slot, e.txid, e.id`.execute(tx)
  return rows
}

/** Whether events wait that nobody relays now: behind an older transaction that still writes, or in another's hands. */
export async function eventsWait(db: Db): Promise<boolean> {
  return await transaction(
    db,
    async (tx) => {
      await readByKey(tx)
      const { rows } = await sql<{ waits: boolean }>`
        select exists (
          select from outbox_cursors c where ${isFree} and exists (
            select from outbox o where o.slot = c.slot and (o.txid, o.id) > (c.txid, c.id))
        ) as waits`.execute(tx)
      return rows[0]?.waits ?? false
    },
    readCommitted,
  )
}

/** Rows come in the order of their slots: the last of a slot is where its cursor goes. */
async function moveCursors(tx: Tx, rows: Row[]): Promise<void> {
  const last = new Map<number, { txid: string; id: string; count: number }>()
  for (const { slot, txid, id } of rows) {
    last.set(slot, { txid, id, count: (last.get(slot)?.count ?? 0) + 1 })
  }
  const moved = [...last.values()]
  await sql`
    update outbox_cursors c set txid = m.txid, id = m.id, relayed = c.relayed + m.count
    from unnest(${[...last.keys()]}::int[], ${moved.map((m) => m.txid)}::xid8[],
      ${moved.map((m) => m.id)}::bigint[], ${moved.map((m) => m.count)}::bigint[])
      as m (slot, txid, id, count)
    where c.slot = m.slot`.execute(tx)
}

const toCloudEvent = (row: Row): CloudEvent => ({
  ...envelopeOf(row),
  type: row.type,
  data: row.data,
})

/**
 * Deletes relayed rows older than `keepSeconds`, the oldest of each slot first.
 * @returns how many went; fewer than asked when the rest is young
 */
export async function pruneOutbox(
  db: Db,
  { keepSeconds = 3 * 86_400, batchMax = 1600 } = {},
): Promise<number> {
  return await transaction(
    db,
    async (tx) => {
      await readByKey(tx)
      // The limit is inside the age check: a slot whose oldest rows are young is not read further.
      const result = await sql`
        delete from outbox o using (
          select r.slot, r.txid, r.id from outbox_cursors c cross join lateral (
            select o.slot, o.txid, o.id, o.created_at from outbox o
            where o.slot = c.slot and (o.txid, o.id) <= (c.txid, c.id)
            order by o.txid, o.id limit ${Math.ceil(batchMax / slotCount)}
          ) r
          where r.created_at < clock_timestamp() - ${keepSeconds} * interval '1 second'
        ) old
        where o.slot = old.slot and o.txid = old.txid and o.id = old.id`.execute(tx)
      return Number(result.numAffectedRows ?? 0)
    },
    readCommitted,
  )
}

export type OutboxLag = {
  /** Events not relayed yet, counted up to 160,000. */
  rows: number
  /** Age of the oldest of them, seconds. */
  seconds: number
  /** Age of the oldest transaction that holds a transaction id: nothing younger can be relayed. */
  horizonSeconds: number
}

export async function readOutboxLag(db: Db): Promise<OutboxLag> {
  return await transaction(
    db,
    async (tx) => {
      await readByKey(tx)
      const { rows } = await sql<OutboxLag>`
        select coalesce(sum(n), 0)::int as rows,
          coalesce(extract(epoch from clock_timestamp() - min(oldest)), 0)::float8 as seconds,
          (select coalesce(extract(epoch from clock_timestamp() - min(xact_start)), 0)::float8
            from pg_stat_activity where backend_xid is not null) as "horizonSeconds"
        from outbox_cursors c cross join lateral (
          select count(*) as n, min(created_at) as oldest from (
            select o.created_at from outbox o
            where o.slot = c.slot and (o.txid, o.id) > (c.txid, c.id)
            order by o.txid, o.id limit 10000
          ) waiting
        ) s`.execute(tx)
      return rows[0] ?? { rows: 0, seconds: 0, horizonSeconds: 0 }
    },
    readCommitted,
  )
}
