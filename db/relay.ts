// The outbox as a relay over the network reads it: slots are leased, each relay its share of them, read ahead with no
// transaction open, and their cursors moved under the lease's number, so that who lost a slot cannot move it. Positions
// are those of db/outbox.ts: (txid, id), read below the oldest transaction still writing.

import { sql } from 'kysely'
import type { EventHead } from '../domain/events.ts'
import { type Aside, putAside } from './aside.ts'
import type { Db, Tx } from './schema.ts'
import { transaction } from './transaction.ts'

/** A lease that is not renewed ends after so long, seconds. */
export const leaseSeconds = 10

export type Position = { txid: string; id: string }
export type Lease = Position & { slot: number; leaseNo: string }
export type Held = {
  /** All that are ours now. */
  leases: Lease[]
  /** How many we should have: of more, some are to be given up. */
  share: number
}

const readCommitted = { isolation: 'read committed' } as const

/**
 * Shows that `relay` is alive, renews its leases and takes free slots up to its share: all slots divided by the relays
 * that were seen lately, the first of them taking one more. Locks cursors in any order, skipping taken ones.
 */
export async function holdSlots(db: Db, relay: string): Promise<Held> {
  const life = sql`${leaseSeconds} * interval '1 second'`
  return await transaction(
    db,
    async (tx) => {
      await sql`
        insert into outbox_relays (id) values (${relay})
        on conflict (id) do update set seen_at = clock_timestamp()`.execute(tx)
      const { rows } = await sql<{ share: number }>`
        select (select count(*) from outbox_cursors)::int / count(*)::int
          + (count(*) filter (where id < ${relay})
             < (select count(*) from outbox_cursors) % count(*))::int as share
        from outbox_relays where seen_at > clock_timestamp() - ${life}`.execute(tx)
      const share = rows[0]?.share ?? 0
      const renewed = await sql<Lease>`
        update outbox_cursors set leased_until = clock_timestamp() + ${life}
        where leased_by = ${relay} returning ${leaseColumns}`.execute(tx)
      const taken = await sql<Lease>`
        update outbox_cursors set leased_by = ${relay}, lease_no = lease_no + 1,
          leased_until = clock_timestamp() + ${life}
        where slot = any(array(
          select slot from outbox_cursors
          where leased_by is distinct from ${relay}
            and (leased_until is null or leased_until < clock_timestamp())
          order by random() limit ${Math.max(0, share - renewed.rows.length)}
          for update skip locked))
        returning ${leaseColumns}`.execute(tx)
      return { leases: [...renewed.rows, ...taken.rows], share }
    },
    readCommitted,
  )
}

const leaseColumns = sql.raw('slot, lease_no as "leaseNo", txid, id')

/** Others may take them at once. */
export async function giveUpSlots(db: Db, relay: string, slots: readonly number[]): Promise<void> {
  await sql`
    update outbox_cursors set leased_by = null, leased_until = null
    where leased_by = ${relay} and slot = any(${[...slots]}::int[])`.execute(db)
}

/** Gives up every slot: its share is the others' again. Forgets relays that died, too. */
export async function leaveRelays(db: Db, relay: string): Promise<void> {
  await sql`
    with given as (
      update outbox_cursors set leased_by = null, leased_until = null where leased_by = ${relay})
    delete from outbox_relays
    where id = ${relay} or seen_at < clock_timestamp() - interval '1 hour'`.execute(db)
}

/** An event as it lies in the outbox: `data` is JSON already, and stays text on its way. */
export type OutboxRow = Position & EventHead & { slot: number; data: string }

const positions = (slots: readonly (Position & { slot: number })[]) => sql`
  ${slots.map(({ slot }) => slot)}::int[], ${slots.map(({ txid }) => txid)}::xid8[],
  ${slots.map(({ id }) => id)}::bigint[]`

/** A number for the time: reading one out of a text costs more than the rest of the row. */
export const headColumns = sql.raw(`message_id as "messageId", type, subject, sequence,
  request_id as "requestId", traceparent, 1000 * date_part('epoch', created_at) as "createdMs"`)

/** The next events of each slot, those of one slot in their order: the first, and more up to `bytesMax` a slot. */
export async function readSlots(
  db: Db,
  slots: readonly (Position & { slot: number })[],
  slotMax: number,
  bytesMax: number,
): Promise<OutboxRow[]> {
  const { rows } = await sql<OutboxRow>`
    select slot, txid, id, ${headColumns}, data::text from read_outbox(${positions(slots)}, ${slotMax}, ${bytesMax})`.execute(
    db,
  )
  return rows
}

/** Whether any of the slots has more, also what cannot be read yet because an older transaction still writes. */
export async function waitsInSlots(
  db: Db,
  slots: readonly (Position & { slot: number })[],
): Promise<boolean> {
  const { rows } = await sql<{ waits: boolean }>`
    select outbox_waits(${positions(slots)}) as waits`.execute(db)
  return rows[0]?.waits ?? false
}

/** How far a slot is settled, and how many events that is since the last time. */
export type Move = Lease & { count: number }

/**
 * Moves cursors, and puts aside what the broker refused of the events they pass, all or nothing for each slot.
 * @returns the slots that are still ours
 */
export async function settleSlots(
  db: Db,
  relay: string,
  moves: readonly Move[],
  asides: readonly Aside[],
): Promise<Set<number>> {
  if (asides.length === 0) return await moveCursors(db, relay, moves)
  return await transaction(
    db,
    async (tx) => {
      const ahead = await lockAhead(tx, moves)
      const ours = await moveCursors(tx, relay, moves)
      await putAside(
        tx,
        asides.filter(({ slot }) => ours.has(slot) && ahead.has(slot)),
      )
      return ours
    },
    readCommitted,
  )
}

/** The slots that a move changes: what goes aside with one that is repeated is there, or was sent from there. */
async function lockAhead(tx: Tx, moves: readonly Move[]): Promise<Set<number>> {
  const { rows } = await sql<{ slot: number }>`
    select c.slot from unnest(${positions(moves)}) as m (slot, txid, id)
    join outbox_cursors c on c.slot = m.slot and (c.txid, c.id) < (m.txid, m.id)
    for update of c`.execute(tx)
  return new Set(rows.map(({ slot }) => slot))
}

/**
 * A move that is repeated, since its answer was lost, changes nothing. None goes back: a slot whose lease ran out may have
 * been read inside the database meanwhile (db/outbox.ts), and is not ours any more.
 */
async function moveCursors(
  on: Db | Tx,
  relay: string,
  moves: readonly Move[],
): Promise<Set<number>> {
  const { rows } = await sql<{ slot: number }>`
    update outbox_cursors c set txid = m.txid, id = m.id,
      relayed = c.relayed + case when (c.txid, c.id) < (m.txid, m.id) then m.count else 0 end
    from unnest(${positions(moves)}, ${moves.map(({ leaseNo }) => leaseNo)}::bigint[],
      ${moves.map(({ count }) => count)}::bigint[]) as m (slot, txid, id, lease_no, count)
    where c.slot = m.slot and c.leased_by = ${relay} and c.lease_no = m.lease_no
      and (c.txid, c.id) <= (m.txid, m.id)
    returning c.slot`.execute(on)
  return new Set(rows.map(({ slot }) => slot))
}
