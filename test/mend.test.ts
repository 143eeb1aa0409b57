// An outbox that came out of a dump of another server, on a real Postgres: what was not relayed is, in its order.

import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { before, describe, test } from 'node:test'
import { sql } from 'kysely'
import { mendOutbox } from '../db/mend.ts'
import { relayEvents } from '../db/outbox.ts'
import type { CloudEvent } from '../domain/events.ts'
import { type TestDatabase, testDatabase } from './database.ts'
import { completed, write } from './events.ts'

describe('an outbox of another server', () => {
  let fresh: TestDatabase
  before(async () => {
    fresh = await testDatabase()
  })

  const relay = async () => {
    const taken: CloudEvent[] = []
    const publish = async (_tx: unknown, events: CloudEvent[]) => void taken.push(...events)
    while ((await relayEvents(fresh.db, publish, 100)) > 0);
    return taken.map(({ sequence }) => Number(sequence))
  }
  const mend = async () => {
    const lines: string[] = []
    await mendOutbox(fresh.db, (line) => lines.push(line))
    return lines
  }

  test('is left alone when it is ours', async () => {
    const subject = randomUUID()
    await write(fresh.db, [completed(subject, 1)])
    assert.deepEqual(await mend(), [])
    assert.deepEqual(await relay(), [1])
    assert.deepEqual(await mend(), [])
  })

  test('keeps what was not relayed, in its order, and what comes after', async () => {
    const subject = randomUUID()
    for (const sequence of [1, 2, 3]) await write(fresh.db, [completed(subject, sequence)])
    // As if written far ahead of this server's count, the first of them relayed there.
    await sql`update outbox set txid = (txid::text::bigint + 1000000000)::text::xid8`.execute(
      fresh.db,
    )
    await sql`update outbox_cursors c set txid = o.txid, id = o.id from outbox o
      where o.slot = c.slot and o.subject = ${subject} and o.sequence = 1`.execute(fresh.db)
    await sql`update outbox_cursors set txid = '2000000000' where txid < '1000000000'`.execute(
      fresh.db,
    )
    assert.deepEqual(await relay(), [])
    const [line = ''] = await mend()
    assert.match(line, /2 events not relayed yet keep their order/)
    await write(fresh.db, [completed(subject, 4)])
    assert.deepEqual(await relay(), [2, 3, 4])
    assert.deepEqual(await mend(), [])
  })

  test('loses nothing of what was written here before it was mended', async () => {
    await sql`truncate outbox`.execute(fresh.db)
    await sql`update outbox_cursors set txid = '2000000000', id = 100`.execute(fresh.db)
    const subject = randomUUID()
    for (const sequence of [1, 2, 3]) await write(fresh.db, [completed(subject, sequence)])
    assert.equal((await mend()).length, 1)
    await write(fresh.db, [completed(subject, 4)])
    assert.deepEqual(await relay(), [1, 2, 3, 4])
  })
})
