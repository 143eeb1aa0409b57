// The relay over any broker, on a real Postgres: how it shares slots with others, what it does with what the broker
// refuses or loses, and how much it holds. The brokers themselves: rabbitmq.test.ts, brokers.test.ts.

import { randomUUID } from 'node:crypto'
import { before, beforeEach, describe, test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { sql } from 'kysely'
import { slotOf } from '../db/outbox.ts'
import { holdSlots } from '../db/relay.ts'
import type { Outgoing, Publisher, Verdict } from '../domain/broker.ts'
import { createLog } from '../workers/log.ts'
import { remoteRelayPass } from '../workers/outbox/relay.ts'
import { type TestDatabase, testDatabase } from './database.ts'
import { completed, write } from './events.ts'
import { until } from './worker.ts'

const log = createLog('test', 'silent')
const { signal } = new AbortController()

describe('the relay', () => {
  let fresh: TestDatabase
  before(async () => {
    fresh = await testDatabase()
  })
  beforeEach(async () => {
    await sql`truncate outbox, outbox_aside, outbox_relays`.execute(fresh.db)
    await sql`update outbox_cursors set txid = '0', id = 0, relayed = 0, leased_by = null,
      leased_until = null`.execute(fresh.db)
    await sql`delete from pgboss.job`.execute(fresh.db)
  })

  type Publish = (event: Outgoing, tell: (verdict: Verdict) => void) => void

  /** Runs a relay whose broker answers as `publish` says. */
  async function withRelay(
    publish: Publish,
    work: (pass: () => Promise<void>) => Promise<void>,
  ): Promise<void> {
    const publisher: Publisher = {
      name: 'list',
      away: () => undefined,
      onChange() {},
      publish,
      close: async () => {},
    }
    const metrics = { relayed() {}, confirmed() {}, refused() {}, buried() {} }
    const worker = { log, failed() {}, dying: new AbortController().signal }
    const pass = remoteRelayPass({ db: fresh.db, publisher, windowMax: 500, worker, metrics })
    try {
      await work(async () => {
        const outcome = await pass(signal, Number.POSITIVE_INFINITY)
        if (typeof outcome === 'object') await sleep(outcome.waitMs)
      })
    } finally {
      await pass.finish?.()
    }
  }

  /** Subjects that all go through one slot. */
  const neighbours = (count: number): string[] => {
    const first = randomUUID()
    const found = [first]
    while (found.length < count) {
      const subject = randomUUID()
      if (slotOf(subject) === slotOf(first)) found.push(subject)
    }
    return found
  }

  test('gives a slot up whose next event waits behind one that was taken', async () => {
    const groups = Array.from({ length: 64 }, () => neighbours(2))
    // In each slot: two events of one subject, and between them and the end one of another.
    await write(
      fresh.db,
      groups.flatMap(([one = '', two = '']) => [
        completed(one, 1),
        completed(one, 2),
        completed(two, 1),
      ]),
    )
    const unanswered: ((verdict: Verdict) => void)[] = []
    let holdsBack = true
    const publish: Publish = (_event, tell) => {
      if (holdsBack) unanswered.push(tell)
      else setImmediate(tell, { is: 'taken' })
    }
    await withRelay(publish, async (pass) => {
      await until(async () => {
        await pass()
        return unanswered.length === 128
      })
      const other = randomUUID()
      await holdSlots(fresh.db, other)
      // Once it has renewed its leases it knows of the other, and sends nothing of what it is to give up.
      const renewedAt = await lastRenewal()
      await until(async () => {
        await pass()
        return (await lastRenewal()) !== renewedAt
      })
      holdsBack = false
      for (const tell of unanswered.splice(0)) tell({ is: 'taken' })
      await until(async () => {
        await pass()
        await holdSlots(fresh.db, other)
        return (await slotsOf(other)) === 8
      })
    })
  })

  const lastRenewal = async (): Promise<string | undefined> => {
    const { rows } = await sql<{ at: string }>`
      select max(leased_until)::text as at from outbox_cursors`.execute(fresh.db)
    return rows[0]?.at
  }
  const slotsOf = async (relay: string): Promise<number> => {
    const { rows } = await sql<{ n: number }>`
      select count(*)::int as n from outbox_cursors where leased_by = ${relay}`.execute(fresh.db)
    return rows[0]?.n ?? 0
  }
})
