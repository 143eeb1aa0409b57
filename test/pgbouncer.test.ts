// The fleet behind a real PgBouncer in transaction mode: a ticket is bought and its mails are written, with fewer
// connections to Postgres than there are workers, and nobody relies on a session.

import assert from 'node:assert/strict'
import { globSync, mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, describe, test } from 'node:test'
import { sql } from 'kysely'
import { openDatabase } from '../db/open.ts'
import { transaction } from '../db/transaction.ts'
import { newKey, openApi } from './api.ts'
import { testDatabase } from './database.ts'
import { startPgBouncer, withoutPgBouncer } from './servers/pgbouncer.ts'
import { endWorkers, exited, startCommand, startWorker, until } from './worker.ts'

/** Fewer than the workers have pools: they are lent from one transaction to the next. */
const servers = 3

describe('behind PgBouncer', { skip: withoutPgBouncer() }, () => {
  if (withoutPgBouncer()) return
  const dataDir = mkdtempSync(join(tmpdir(), 'flotilla-pooled-'))
  after(async () => {
    await endWorkers()
    rmSync(dataDir, { recursive: true, force: true })
  })

  test('a ticket is bought, told of and mailed, and everything is woken', async () => {
    const { url, db, database } = await testDatabase()
    const api = await openApi(database)
    const eventId = await api.makeEvent()
    await api.close()
    const pooled = await startPgBouncer(url, servers)
    const env = {
      DATABASE_DIRECT_URL: url,
      FLEET_DATA_DIR: dataDir,
      HTTP_PORT: '0',
      RATE_LIMIT_USER_PER_MINUTE: '0',
      // Far longer than the test: what is not woken is not done.
      OUTBOX_POLL_MS: '600000',
      INBOX_POLL_MS: '600000',
      EMAIL_POLL_MS: '600000',
    }
    const names = ['http', 'outbox', 'inbox', 'email'] as const
    const fleet = names.map((name) => startWorker(name, pooled, [], env))
    const base = () => /listening at (http:[^"]+)"/.exec(fleet[0]!.output())?.[1]
    await until(() => base() !== undefined)

    const call = async (method: string, path: string, body: object, more = {}) => {
      const answer = await fetch(`${base()}/api/v1/${path}`, {
        method,
        headers: {
          'content-type': 'application/json',
          'x-mock-user-id': 'ann',
          'idempotency-key': newKey(),
          ...more,
        },
        body: JSON.stringify(body),
      })
      return { status: answer.status, json: (await answer.json()) as Record<string, string> }
    }
    await call('PUT', 'users/ann', { email: 'ann@example.org', locale: 'en' })
    const asked = Array.from({ length: 8 }, () =>
      call('POST', 'reservations', { event_id: eventId, quantity: 1 }),
    )
    const holds = await Promise.all(asked)
    assert.deepEqual(new Set(holds.map(({ status }) => status)), new Set([201]))
    for (const { json } of holds.slice(0, 2)) {
      const path = `reservations/${json.reservation_id}/confirm`
      const key = newKey()
      const first = await call('POST', path, {}, { 'idempotency-key': key })
      assert.equal(first.status, 200)
      assert.deepEqual(await call('POST', path, {}, { 'idempotency-key': key }), first)
    }
    const later = { prefer: 'respond-async' }
    assert.equal(
      (await call('POST', 'reservations', { event_id: eventId, quantity: 1 }, later)).status,
      202,
    )
    // Two orders, and a ticket each.
    await until(() => globSync('mail/*.eml', { cwd: dataDir }).length === 4)
    await until(async () => {
      const { rows } = await sql<{ held: number }>`
        select count(*)::int as held from reservations`.execute(db)
      return rows[0]?.held === 9
    })
    for (const worker of fleet) worker.process.kill('SIGTERM')
    assert.deepEqual(await Promise.all(fleet.map(exited)), [0, 0, 0, 0])
    const unwell = fleet.flatMap((worker) => worker.lines().filter(({ level }) => level !== 'info'))
    assert.deepEqual(unwell, [])
  })

  test('the settings of a transaction are not seen by the next', async () => {
    const { url } = await testDatabase()
    const pooled = openDatabase({ url: await startPgBouncer(url, 1), name: 'test' })
    const setting = sql<{ wait: string }>`select current_setting('lock_timeout') as wait`
    const inside = await transaction(pooled.db, async (tx) => (await setting.execute(tx)).rows[0])
    const outside = (await setting.execute(pooled.db)).rows[0]
    assert.deepEqual([inside, outside], [{ wait: '8s' }, { wait: '0' }])
    await pooled.close()
  })

  test('migrations go past it', async () => {
    const { url } = await testDatabase({ empty: true })
    // One connection, lent to the lock of the migrations: through the pooler they would wait for ever.
    const env = {
      PATH: process.env.PATH ?? '',
      DATABASE_URL: await startPgBouncer(url, 1),
      DATABASE_DIRECT_URL: url,
    }
    const fleet = join(import.meta.dirname, '..', 'cli', 'fleet.js')
    const migrated = startCommand(process.execPath, [fleet, 'migrate'], env)
    assert.equal(await exited(migrated), 0, migrated.output())
    assert.match(migrated.output(), /is current now/)
  })
})
