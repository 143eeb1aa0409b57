// Migrations: in order, once, frozen, and never backwards.

import assert from 'node:assert/strict'
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, beforeEach, test } from 'node:test'
import { sql } from 'kysely'
import {
  MigrationChanged,
  migrate,
  migrationsHash,
  SchemaTooNew,
  schemaStatus,
} from '../db/migrate.ts'
import { queues } from '../domain/queues.ts'
import { type TestDatabase, testDatabase } from './database.ts'

const folder = mkdtempSync(join(tmpdir(), 'flotilla-migrations-'))
after(() => rmSync(folder, { recursive: true }))

const write = (name: string, text: string) => writeFileSync(join(folder, `${name}.sql`), text)

let database: TestDatabase
const run = () => migrate({ url: database.url, folder })
const count = async (table: string) => {
  const { rows } = await sql<{
    n: number
  }>`select count(*)::int as n from ${sql.table(table)}`.execute(database.db)
  return rows[0]?.n
}

beforeEach(async () => {
  database = await testDatabase({ empty: true })
  rmSync(folder, { recursive: true })
  mkdirSync(folder)
  write('0001_one', 'create table one (n int); insert into one values (1);')
  write('0002_two', 'create table two (n int);\r\ninsert into two select n from one;')
})

test('applies the files in order, once, with the job table and its queues', async () => {
  assert.deepEqual(await run(), ['0001_one', '0002_two'])
  assert.deepEqual(await run(), [])
  assert.equal(await count('two'), 1)
  assert.equal(await count('pgboss.queue'), 2 * queues.length)
  const { is, missing, unknown, changed } = await schemaStatus(database.db, folder)
  assert.deepEqual([is, missing, unknown, changed], ['current', [], [], []])
})

test('two at once apply each file once', async () => {
  const both = await Promise.all([run(), run()])
  assert.deepEqual(both.flat().sort(), ['0001_one', '0002_two'])
  assert.equal(await count('one'), 1)
})

test('says what is missing before it is applied', async () => {
  await run()
  write('0003_three', 'create table three (n int)')
  const status = await schemaStatus(database.db, folder)
  assert.deepEqual([status.is, status.missing], ['behind', ['0003_three']])
  assert.deepEqual(await run(), ['0003_three'])
})

test('refuses when an applied file was changed, and names it', async () => {
  await run()
  write('0001_one', 'create table one (n bigint)')
  write('0003_three', 'create table three (n int)')
  await assert.rejects(run(), (error) => {
    assert.ok(error instanceof MigrationChanged)
    assert.match(error.message, /db\/migrations\/0001_one\.sql was changed/)
    return true
  })
  assert.deepEqual((await schemaStatus(database.db, folder)).changed, ['0001_one'])
})

test('the line ends of a checkout do not count as a change', async () => {
  await run()
  const before = migrationsHash(folder)
  write('0002_two', 'create table two (n int);\ninsert into two select n from one;')
  assert.equal(migrationsHash(folder), before)
  assert.deepEqual(await run(), [])
})

test('refuses a schema that is newer than the code, and names what it does not know', async () => {
  write('0003_three', 'create table three (n int)')
  await run()
  rmSync(join(folder, '0003_three.sql'))
  await assert.rejects(run(), (error) => {
    assert.ok(error instanceof SchemaTooNew)
    assert.deepEqual(error.unknown, ['0003_three'])
    return true
  })
  assert.equal((await schemaStatus(database.db, folder)).is, 'newer')
})

test('a file that fails is named, and nothing of the run stays', async () => {
  write('0003_three', 'create table three (n int); select 1/0')
  await assert.rejects(run(), /0003_three failed: division by zero/)
  const status = await schemaStatus(database.db, folder)
  assert.deepEqual(status.missing, ['0001_one', '0002_two', '0003_three'])
})

test('waits for whoever uses a table, and stops nobody else for longer than its patience', async () => {
  await run()
  write('0003_three', 'alter table one add m int')
  const client = await database.database.pool.connect()
  await client.query('begin')
  await client.query('select from one')
  const steps: string[] = []
  const onStep = (line: string) => {
    steps.push(line)
    if (steps.length === 1) void client.query('commit').then(() => client.release())
  }
  assert.deepEqual(await migrate({ url: database.url, folder, onStep }), ['0003_three'])
  assert.deepEqual(steps, [
    '0003_three waits: a table is in use for longer than 3s',
    'applied 0003_three',
  ])
})
