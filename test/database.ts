// A database for a test file: a fresh clone of the migrated template, dropped when the file is done. A file that is run
// alone, without test/setup.ts, starts its servers itself.

import { randomBytes } from 'node:crypto'
import { after } from 'node:test'
import pg from 'pg'
import { type Database, openDatabase } from '../db/open.ts'
import type { Db } from '../db/schema.ts'
import {
  globalSetup,
  globalTeardown,
  redisVariable,
  templateVariable,
  withDatabase,
} from './setup.ts'

export type TestDatabase = {
  url: string
  database: Database
  db: Db
  /** One more pool on the same database: a second process, as it were. Closed with the rest. */
  open(name?: string): Database
  /** Earlier than the end of the file. */
  close(): Promise<void>
}

const closeMaxMs = 5000

const open = new Set<TestDatabase>()
let alone = false

// Registered at the top of the file that imports this, and so run after its last test.
after(async () => {
  for (const database of open) await database.close()
  if (alone) await globalTeardown()
})

/** `empty`: without the schema. */
export async function testDatabase({ empty = false } = {}): Promise<TestDatabase> {
  const template = new URL(await templateUrl())
  const name = `flotilla_test_${randomBytes(6).toString('hex')}`
  const url = withDatabase(template.href, name)
  await asAdmin(
    template,
    `create database ${name} template ${empty ? 'template0' : template.pathname.slice(1)}`,
  )
  const pools: Database[] = []
  const another = (title = 'test') => {
    const pool = openDatabase({ url, name: title })
    pools.push(pool)
    return pool
  }
  const database = another()
  const self: TestDatabase = {
    url,
    database,
    db: database.db,
    open: another,
    async close() {
      if (!open.delete(self)) return
      for (const pool of pools) await closePool(pool)
      await asAdmin(template, `drop database ${name} with (force)`)
    },
  }
  open.add(self)
  return self
}

/** A pool waits for every connection it lent: one that never comes back is a fault of the code under test. */
async function closePool(pool: Database): Promise<void> {
  const { promise, reject } = Promise.withResolvers<never>()
  const late = setTimeout(() => {
    const lent = pool.pool.totalCount - pool.pool.idleCount
    reject(new Error(`${lent} connections were taken from a pool and not given back`))
  }, closeMaxMs)
  await Promise.race([pool.close(), promise])
  clearTimeout(late)
}

async function templateUrl(): Promise<string> {
  if (!process.env[templateVariable]) {
    alone = true
    await globalSetup()
  }
  return process.env[templateVariable] ?? ''
}

/** Never connected to the template itself: a session there would keep others from cloning it. */
async function asAdmin(template: URL, statement: string): Promise<void> {
  const admin = new pg.Client({ connectionString: withDatabase(template.href, 'postgres') })
  await admin.connect()
  try {
    await admin.query(statement)
  } finally {
    await admin.end()
  }
}

const servers = {
  redis: {
    variable: redisVariable,
    remedy: 'apt-get install redis-server, or set TEST_REDIS_URL',
  },
} as const

/**
 * For `test(name, { skip: needs('redis') }, …)`: false when the server is there, else the reason and the remedy. With
 * FLOTILLA_REFUSE_SKIPS=1 what is missing is an error.
 */
export function needs(server: keyof typeof servers): string | false {
  const { variable, remedy } = servers[server]
  if (process.env[variable]) return false
  const reason = `needs ${server}: ${remedy}`
  if (process.env.FLOTILLA_REFUSE_SKIPS === '1') throw new Error(reason)
  return reason
}
