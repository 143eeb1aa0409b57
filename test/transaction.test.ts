// The retry rule of write transactions, deterministic: what is run again, after how long, and what rises at once.

import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { test } from 'node:test'
import { sql } from 'kysely'
import { openDatabase } from '../db/open.ts'
import type { Db, Tx } from '../db/schema.ts'
import { CommitUnknown, isConnectionLost, transaction } from '../db/transaction.ts'
import { AppError } from '../domain/errors.ts'
import { transactionDelayMs } from '../domain/retries.ts'
import { testDatabase } from './database.ts'
import { openCable } from './servers/cable.ts'

const { db, url } = await testDatabase()

/** Has Postgres raise an SQLSTATE, as if the statement had met that fault. */
const raise = (tx: Tx, state: string) =>
  sql`do $$ begin raise exception 'made' using errcode = '${sql.raw(state)}'; end $$`.execute(tx)

/** Runs a transaction that fails with `states` in turn, and tells its waits and attempts. */
async function attempts(states: string[], random = 0.5) {
  const waits: number[] = []
  let runs = 0
  const result = await transaction(
    db,
    async (tx) => {
      const state = states[runs++]
      if (state) await raise(tx, state)
      return 'done'
    },
    { wait: async (ms) => waits.push(ms), random: () => random },
  ).catch((error: unknown) => error)
  return { result, waits, runs }
}

test('the delays are min(1000, U(0.5, 1.5) × 50 × 2^n)', () => {
  const at = (random: number) => [1, 2, 3, 4, 5].map((n) => transactionDelayMs(n, random))
  assert.deepEqual(at(0), [50, 100, 200, 400, 800])
  assert.deepEqual(at(0.5), [100, 200, 400, 800, 1000])
  assert.deepEqual(at(0.999), [149.9, 299.8, 599.6, 1000, 1000])
})

for (const state of ['55P03', '40P01', '40001']) {
  test(`${state} is run again, after the delays of the schedule`, async () => {
    const { result, waits, runs } = await attempts([state, state, state])
    assert.equal(result, 'done')
    assert.equal(runs, 4)
    assert.deepEqual(waits, [100, 200, 400])
  })
}

for (const state of ['23505', '23514', '22P02', '57014', '53300', 'P0001', '40002', '42601']) {
  test(`${state} rises at once`, async () => {
    const { result, waits, runs } = await attempts([state])
    assert.equal((result as { code?: string }).code, state)
    assert.deepEqual({ waits, runs }, { waits: [], runs: 1 })
  })
}

test('an AppError rises at once and nothing is written', async () => {
  const refused = new AppError('SOLD_OUT', 'no')
  await assert.rejects(
    transaction(db, async (tx) => {
      await tx.insertInto('users').values({ id: 'ghost' }).execute()
      throw refused
    }),
    refused,
  )
  assert.deepEqual(
    await db.selectFrom('users').select('id').where('id', '=', 'ghost').execute(),
    [],
  )
})

test('after the sixth attempt it is LOCK_TIMEOUT, with the cause', async () => {
  const { result, waits, runs } = await attempts(Array(9).fill('40001'), 0)
  assert.ok(result instanceof AppError)
  assert.equal(result.code, 'LOCK_TIMEOUT')
  assert.equal((result.cause as { code: string }).code, '40001')
  assert.equal(runs, 6)
  assert.deepEqual(waits, [50, 100, 200, 400, 800])
})

test('it is SERIALIZABLE and waits 8 s for a lock, and only inside', async () => {
  const inside = await transaction(db, async (tx) => {
    const { rows } = await sql<{ isolation: string; lock: string; idle: string }>`
      select current_setting('transaction_isolation') as isolation,
        current_setting('lock_timeout') as lock,
        current_setting('idle_in_transaction_session_timeout') as idle`.execute(tx)
    return rows[0]
  })
  assert.deepEqual(inside, { isolation: 'serializable', lock: '8s', idle: '1min' })
})

test('a real serialization failure is run again and sees what the other wrote', async () => {
  await db.insertInto('users').values({ id: 'u', email: '0' }).execute()
  let runs = 0
  await transaction(db, async (tx) => {
    const { email } = await tx
      .selectFrom('users')
      .select('email')
      .where('id', '=', 'u')
      .executeTakeFirstOrThrow()
    if (runs++ === 0)
      await db.updateTable('users').set({ email: '5' }).where('id', '=', 'u').execute()
    await tx
      .updateTable('users')
      .set({ email: String(Number(email) + 1) })
      .where('id', '=', 'u')
      .execute()
  })
  const row = await db.selectFrom('users').select('email').where('id', '=', 'u').executeTakeFirst()
  assert.deepEqual([runs, row?.email], [2, '6'])
})

test('a connection that breaks in the middle is an error, not a crash, and the pool goes on', async () => {
  await assert.rejects(
    transaction(db, async (tx) => {
      const { rows } = await sql<{ pid: number }>`select pg_backend_pid() as pid`.execute(tx)
      await sql`select pg_terminate_backend(${rows[0]!.pid})`.execute(db)
      await sql`select 1`.execute(tx)
    }),
  )
  assert.equal(await transaction(db, async () => 'on'), 'on')
})

test('a lost answer to COMMIT is unknown, and the effect may be there', async () => {
  // A deferred trigger runs inside COMMIT and has the backend end itself there, before the commit.
  await sql`create table doomed (n int)`.execute(db)
  await sql`
    create function die() returns trigger language plpgsql as
    $$ begin perform pg_terminate_backend(pg_backend_pid()); perform pg_sleep(5); return null; end $$`.execute(
    db,
  )
  await sql`
    create constraint trigger die after insert on doomed
    deferrable initially deferred for each row execute function die()`.execute(db)
  await assert.rejects(
    transaction(db, (tx) => sql`insert into doomed values (1)`.execute(tx)),
    CommitUnknown,
  )
  assert.ok(url)
})

test('a deferred constraint that refuses the COMMIT is known: nothing was written', async () => {
  await sql`create table late (n int unique deferrable initially deferred)`.execute(db)
  await sql`insert into late values (1)`.execute(db)
  await assert.rejects(
    transaction(db, (tx) => sql`insert into late values (1)`.execute(tx)),
    { code: '23505' },
  )
})

test('a connection that swallows a statement is given up, and the pool goes on', async () => {
  const cable = await openCable(url)
  const far = openDatabase({ url: cable.url, name: 'far', poolMax: 1, statementMaxMs: 1500 })
  const write = (beforeCommit = () => {}, inside = () => {}) =>
    transaction(far.db, async (tx) => {
      inside()
      // A row of its own: the server still holds the lock of whom the network took away.
      await tx.insertInto('users').values({ id: randomUUID() }).execute()
      beforeCommit()
    })
  try {
    await write()
    await assert.rejects(write(undefined, cable.silence), isConnectionLost)
    await write()
    await assert.rejects(write(cable.silence), CommitUnknown)
    await write()
    const direct = far.pool.query('select pg_sleep(20)')
    await assert.rejects(direct, isConnectionLost)
    await write()
  } finally {
    await far.close()
    cable.pull()
  }
})

test('a server that takes no writes any more is left for one that does', async () => {
  const demoted = openDatabase({ url, name: 'demoted', poolMax: 1 })
  const insert = (on: Db | Tx) => sql`insert into users (id) values (${randomUUID()})`.execute(on)
  try {
    for (const write of [() => insert(demoted.db), () => transaction(demoted.db, insert)]) {
      await write()
      await sql`set default_transaction_read_only = on`.execute(demoted.db)
      await assert.rejects(write(), isConnectionLost)
      await write()
    }
    await demoted.pool.query('set default_transaction_read_only = on')
    await assert.rejects(demoted.pool.query('create table none ()'), isConnectionLost)
    await insert(demoted.db)
  } finally {
    await demoted.close()
  }
})

for (const [state, lost] of [
  ['53100', true],
  ['53200', true],
  ['58030', true],
  ['57P01', true],
  ['08006', true],
  ['25006', true],
  ['57014', false],
  ['23505', false],
] as const) {
  test(`${state} says that Postgres ${lost ? 'cannot work now' : 'did not like the statement'}`, async () => {
    const { result } = await attempts([state])
    assert.equal(isConnectionLost(result), lost)
  })
}
