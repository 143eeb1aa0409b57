// The pace of calls to a vendor (domain/vendorPace.ts) as a row that all instances share: read, reckoned with and written
// under its lock, by the database's clock.

import { sql } from 'kysely'
import {
  freshState,
  hear,
  type PaceState,
  reserveCall,
  type Ticket,
  type Told,
  unheard,
} from '../domain/vendorPace.ts'
import type { Db } from './schema.ts'
import { transaction } from './transaction.ts'

export type Reserved = { ticket?: Ticket; waitMs: number }

export type VendorLimits = {
  /** The next call, to begin in `waitMs`; without a ticket: then it is worth asking again. */
  reserve(estimate: number): Promise<Reserved>
  /** An answer came. */
  heard(ticket: Ticket, told: Told, usedTokens: number | undefined): Promise<void>
  /** None came; or a refusal that asks for `holdMs` of quiet. */
  failed(holdMs: number): Promise<void>
}

export function openVendorLimits(db: Db, name: string, windowMs: number): VendorLimits {
  const change = <T>(fn: (state: PaceState, nowMs: number) => { state: PaceState; result: T }) =>
    transaction(
      db,
      async (tx) => {
        await sql`
          insert into vendor_limits (name, state) values (${name}, ${JSON.stringify(freshState())}::jsonb)
          on conflict do nothing`.execute(tx)
        const { state } = await tx
          .selectFrom('vendor_limits')
          .select('state')
          .where('name', '=', name)
          .forUpdate()
          .executeTakeFirstOrThrow()
        // After the lock is ours: who waited for it must not count from before.
        const { rows } = await sql<{ now: number }>`
          select extract(epoch from clock_timestamp())::float8 * 1000 as now`.execute(tx)
        const changed = fn(state as PaceState, rows[0]?.now ?? 0)
        await tx
          .updateTable('vendor_limits')
          .set({ state: JSON.stringify(changed.state) })
          .where('name', '=', name)
          .execute()
        return changed.result
      },
      { isolation: 'read committed' },
    )

  return {
    reserve: (estimate) =>
      change((before, nowMs) => {
        const { state, ...result } = reserveCall(before, { estimate, nowMs, windowMs })
        return { state, result }
      }),
    heard: (ticket, told, usedTokens) =>
      change((state, nowMs) => ({
        state: hear(state, ticket, told, usedTokens, nowMs),
        result: undefined,
      })),
    failed: (holdMs) =>
      change((state, nowMs) => ({
        state: unheard(state, holdMs > 0 ? nowMs + holdMs : 0),
        result: undefined,
      })),
  }
}
