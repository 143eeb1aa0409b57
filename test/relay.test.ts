// The relay over any broker, on a real Postgres: how it shares slots with others, what it does with what the broker
// refuses or loses, and how much it holds. The brokers themselves: rabbitmq.test.ts, brokers.test.ts.

import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { before, beforeEach, describe, test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { sql } from 'kysely'
import { slotOf } from '../db/outbox.ts'
import { holdSlots, type Lease, readSlots, settleSlots } from '../db/relay.ts'
import type { Outgoing, Publisher, Verdict } from '../domain/broker.ts'
import { createLog } from '../workers/log.ts'
import { remoteRelayPass } from '../workers/outbox/relay.ts'
import { type TestDatabase, testDatabase } from './database.ts'
import { completed, held, order, write } from './events.ts'
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
    db = fresh.db,
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
    const pass = remoteRelayPass({ db, publisher, windowMax: 500, worker, metrics })
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

  test('a type that the broker refuses waits as a whole, however many of others it takes', async () => {
    const of = (type: typeof completed, count: number) =>
      Array.from({ length: count }, () => type(randomUUID(), 1))
    await write(fresh.db, of(completed, 105))
    let refuses = true
    let tries = 0
    // Some twice, if a lease runs out on a slow machine.
    const taken = new Set<string>()
    const publish: Publish = ({ id, type }, tell) => {
      const isRefused = refuses && type === 'order.completed'
      if (isRefused) tries++
      else taken.add(id)
      setImmediate(tell, isRefused ? { is: 'refused', why: 'no' } : { is: 'taken' })
    }
    await withRelay(publish, async (pass) => {
      // Far more often than any of them may be refused.
      for (let i = 0; i < 6; i++) {
        await write(fresh.db, of(held, 20))
        await pass()
        await makeDue()
      }
      await until(async () => {
        await pass()
        return taken.size === 120 && (await countOf('outbox_aside')) === 105
      })
      assert.ok(tries < 150, `${tries} were sent`)
      assert.equal(await countOf(`pgboss.job where name = 'outbox.dead'`), 0)
      refuses = false
      await until(async () => {
        await pass()
        await makeDue()
        return taken.size === 225
      })
    })
    assert.equal(await countOf('outbox_aside'), 0)
  })

  test('what breaks the connection is found, and the others flow', async () => {
    const poison = completed(randomUUID(), 1)
    const others = Array.from({ length: 40 }, () => held(randomUUID(), 1))
    await write(fresh.db, [...others.slice(0, 20), poison, ...others.slice(20)])
    // As RabbitMQ does: all that is on its way is lost, unless it is the one alone.
    const onWay = new Set<{ id: string; tell: (verdict: Verdict) => void }>()
    const taken = new Set<string>()
    let breaks = 0
    const answer = () => {
      const sent = [...onWay]
      onWay.clear()
      const isPoisoned = sent.some(({ id }) => id === poison.messageId)
      if (isPoisoned) breaks++
      for (const { id, tell } of sent) {
        if (!isPoisoned) taken.add(id)
        if (!isPoisoned) tell({ is: 'taken' })
        else tell(sent.length === 1 ? { is: 'refused', why: 'no' } : { is: 'lost' })
      }
    }
    const publish: Publish = ({ id }, tell) => {
      if (onWay.size === 0) setTimeout(answer, 2)
      onWay.add({ id, tell })
    }
    await withRelay(publish, async (pass) => {
      await until(async () => {
        await pass()
        await makeDue()
        return (await countOf(`pgboss.job where name = 'outbox.dead'`)) === 1
      })
    })
    assert.equal(taken.size, 40)
    assert.ok(breaks <= 8, `it broke ${breaks} times`)
  })

  test('reads no more than it may hold, however large the events are', async () => {
    const [subject = ''] = neighbours(1)
    const large = { ...order, event_name: 'x'.repeat(50_000) }
    await write(
      fresh.db,
      [1, 2, 3, 4].map((sequence) => ({ ...completed(subject, sequence), data: large }) as never),
    )
    const from = [{ slot: slotOf(subject), txid: '0', id: '0' }]
    const read = async (bytes: number) => (await readSlots(fresh.db, from, 100, bytes)).length
    assert.deepEqual([await read(0), await read(60_000), await read(1e6)], [1, 2, 4])
  })

  test('a slot that was relayed further meanwhile is not set back', async () => {
    const relay = randomUUID()
    const { leases } = await holdSlots(fresh.db, relay)
    const [{ slot, leaseNo }] = leases as [Lease]
    await sql`update outbox_cursors set txid = '900', id = 9 where slot = ${slot}`.execute(fresh.db)
    const move = { slot, leaseNo, txid: '800', id: '1', count: 1 }
    assert.equal((await settleSlots(fresh.db, relay, [move], [])).size, 0)
    const { rows } = await sql`select txid::text from outbox_cursors where slot = ${slot}`.execute(
      fresh.db,
    )
    assert.deepEqual(rows, [{ txid: '900' }])
  })

  test('a move whose answer is lost is repeated, and counted once however much follows it', async () => {
    let lost = 0
    const lossy = fresh.db.withPlugin({
      transformQuery: ({ node }) => node,
      async transformResult({ result }) {
        const isMove = result.rows.length > 0 && Object.keys(result.rows[0] ?? {}).join() === 'slot'
        if (!isMove || lost === 3) return result
        lost++
        throw new Error('the answer was lost')
      },
    })
    let passes = 0
    await withRelay(
      (_event, tell) => setImmediate(tell, { is: 'taken' }),
      async (pass) => {
        await until(async () => {
          if (passes++ < 20)
            await write(
              fresh.db,
              neighbours(3).map((subject) => completed(subject, 1)),
            )
          await pass().catch((error) => assert.match(String(error), /the answer was lost/))
          return (
            passes > 20 &&
            (await countOf(`outbox_cursors c join outbox o using (slot)
            where (o.txid, o.id) > (c.txid, c.id)`)) === 0
          )
        })
      },
      lossy,
    )
    assert.equal(lost, 3)
    const { rows } = await sql`select sum(relayed)::int as relayed from outbox_cursors`.execute(
      fresh.db,
    )
    assert.deepEqual(rows, [{ relayed: 60 }])
  })

  test('what goes aside with a move that is repeated is not put there again', async () => {
    const [subject = ''] = neighbours(1)
    await write(fresh.db, [completed(subject, 1)])
    const relay = randomUUID()
    const lease = (await holdSlots(fresh.db, relay)).leases.find(
      ({ slot }) => slot === slotOf(subject),
    )
    const [row] = await readSlots(fresh.db, [lease as Lease], 1, 1e6)
    const { txid = '', id = '', messageId = '' } = row ?? {}
    const move = { ...(lease as Lease), txid, id, count: 1 }
    const body = JSON.stringify({ id: messageId, type: 'order.completed' })
    const aside = { slot: move.slot, subject, txid, id, messageId, body, error: 'no' }
    const settle = () => settleSlots(fresh.db, relay, [move], [aside])
    assert.equal((await settle()).size, 1)
    assert.equal(await countOf('outbox_aside'), 1)
    await sql`delete from outbox_aside`.execute(fresh.db)
    assert.equal((await settle()).size, 1, 'it is ours still')
    assert.equal(await countOf('outbox_aside'), 0)
  })

  const makeDue = () =>
    sql`update outbox_aside set next_at = clock_timestamp() where next_at is not null`.execute(
      fresh.db,
    )
  const countOf = async (rowsOf: string): Promise<number | undefined> => {
    const { rows } = await sql<{ n: number }>`
      select count(*)::int as n from ${sql.raw(rowsOf)}`.execute(fresh.db)
    return rows[0]?.n
  }
})
