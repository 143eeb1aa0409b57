// Brings a database to the schema of this code: migrations/*.sql in the order of their names, all in one transaction,
// then the job table and its queues. A migration is frozen once applied: its file's hash is kept, and another one is an
// error. A database that has migrations this code does not know is newer, and refused. Safe to run from many processes,
// and beside workers: it gives way to them, and tries again.

import { createHash } from 'node:crypto'
import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { sql } from 'kysely'
import { type Migration, Migrator } from 'kysely/migration'
import pg from 'pg'
import { installJobs } from './jobTable.ts'
import { mendOutbox } from './mend.ts'
import { openDatabase } from './open.ts'
import type { Db } from './schema.ts'
import { sqlState } from './transaction.ts'

export type MigrateOptions = {
  url: string
  /** Told of each migration applied. */
  onStep?: (line: string) => void
  /** For tests: another folder of migrations. */
  folder?: string
}

export type SchemaStatus = {
  is: 'current' | 'behind' | 'newer'
  /** Files that are not applied yet. */
  missing: string[]
  /** Applied by a later release: this code does not know them. */
  unknown: string[]
  /** Applied, and the file is another one now. */
  changed: string[]
}

/** The database belongs to a later release; only newer code can mend that, so a worker exits on it. */
export class SchemaTooNew extends Error {
  readonly unknown: string[]
  constructor(unknown: string[]) {
    super(
      `the database's schema is newer than this code: it has ${unknown.join(', ')}, which this release does not know; ` +
        'run the release that made it, or a later one',
    )
    this.name = 'SchemaTooNew'
    this.unknown = unknown
  }
}

export class MigrationChanged extends Error {
  constructor(changed: string[]) {
    super(
      `${changed.map((name) => `db/migrations/${name}.sql`).join(', ')} was changed after it had been applied: ` +
        'restore the file and put the change in a new migration',
    )
    this.name = 'MigrationChanged'
  }
}

type File = { name: string; text: string; hash: string }

const migrationsFolder = join(import.meta.dirname, 'migrations')
const migrationTableName = 'schema_migrations'
/** Two migrators of one database take turns under this advisory lock: "flotilla" in ASCII, cut to 63 bits. */
const lockKey = '7380878379737665'

/**
 * A change of a table waits for whoever uses it, and everybody else waits behind the change: so it waits no longer than
 * this, all is undone, workers get a second or two, and it begins again. Some two minutes of that are as many tries as
 * come between two transactions of workers, and less than systemd or Kubernetes give a start.
 */
const waits = { lock: '3s', pauseMs: 1000, attemptsMax: 30 } as const
const inTheWay: Record<string, string> = {
  '55P03': `a table is in use for longer than ${waits.lock}`,
  '40P01': 'a worker and the change wait for each other',
}

/** One value for the migrations as a whole: names a template database made from them. */
export function migrationsHash(folder = migrationsFolder): string {
  const all = readFiles(folder).map(({ name, hash }) => `${name} ${hash}`)
  return hashOf(all.join('\n'))
}

/** @returns names of the migrations applied. @throws SchemaTooNew, MigrationChanged, or the SQL's own error with its name */
export async function migrate({ url, onStep, folder }: MigrateOptions): Promise<string[]> {
  // A session of its own holds the lock: it goes with the process, whatever happens to it.
  const lock = new pg.Client({ connectionString: url, application_name: 'flotilla:migrate' })
  lock.on('error', () => {})
  await lock.connect()
  try {
    await lock.query('select pg_advisory_lock($1)', [lockKey])
    const database = openDatabase({ url, name: 'migrate', poolMax: 2, statementMaxMs: 0 })
    try {
      const applied = await applyMissing(database.db, folder ?? migrationsFolder, onStep)
      if (folder === undefined) await mendOutbox(database.db, (line) => onStep?.(line))
      await installJobs(database.pool)
      return applied
    } finally {
      await database.close()
    }
  } finally {
    await lock.end()
  }
}

/** How the database's schema stands to this code; changes nothing. */
export async function schemaStatus(db: Db, folder = migrationsFolder): Promise<SchemaStatus> {
  const files = readFiles(folder)
  const applied = await readApplied(db)
  const unknown = [...applied.keys()].filter((name) => !files.some((file) => file.name === name))
  const missing = files.filter(({ name }) => !applied.has(name)).map(({ name }) => name)
  const changed = files
    .filter(({ name, hash }) => applied.has(name) && applied.get(name) !== hash)
    .map(({ name }) => name)
  const is = unknown.length > 0 ? 'newer' : missing.length > 0 ? 'behind' : 'current'
  return { is, missing, unknown, changed }
}

async function applyMissing(db: Db, folder: string, onStep: MigrateOptions['onStep']) {
  const { unknown, changed } = await schemaStatus(db, folder)
  if (unknown.length > 0) throw new SchemaTooNew(unknown)
  if (changed.length > 0) throw new MigrationChanged(changed)
  await sql`create table if not exists schema_migration_hashes (name text primary key, hash text not null)`.execute(
    db,
  )
  for (let attempt = 1; ; attempt++) {
    const { error, results = [] } = await createMigrator(db, folder).migrateToLatest()
    if (error === undefined) {
      for (const { migrationName } of results) onStep?.(`applied ${migrationName}`)
      return results.map(({ migrationName }) => migrationName)
    }
    const failed = results.find(({ status }) => status === 'Error')
    if (!failed) throw error
    const why = inTheWay[sqlState(error) ?? '']
    const { message } = error as Error
    if (why === undefined) {
      throw new Error(`the migration ${failed.migrationName} failed: ${message}`, { cause: error })
    }
    if (attempt === waits.attemptsMax) {
      const told = `the migration ${failed.migrationName} found no moment in ${attempt} tries: ${why}`
      const mend = 'end the oldest transactions of pg_stat_activity, or come at a quieter time'
      throw new Error(`${told}; ${mend}`, { cause: error })
    }
    onStep?.(`${failed.migrationName} waits: ${why}`)
    await sleep(waits.pauseMs * (1 + Math.random()))
  }
}

const createMigrator = (db: Db, folder: string) =>
  new Migrator({
    db,
    provider: { getMigrations: async () => migrationsOf(readFiles(folder)) },
    migrationTableName,
    migrationLockTableName: `${migrationTableName}_lock`,
    nameComparator: byName,
  })

function migrationsOf(files: File[]): Record<string, Migration> {
  const entry = ({ name, text, hash }: File): [string, Migration] => [
    name,
    {
      async up(db) {
        await sql`select set_config('lock_timeout', ${waits.lock}, true)`.execute(db)
        await sql.raw(text).execute(db)
        await sql`insert into schema_migration_hashes (name, hash) values (${name}, ${hash})`.execute(
          db,
        )
      },
    },
  ]
  return Object.fromEntries(files.map(entry))
}

/** Names and hashes of what was applied; a database without the tables has none. */
async function readApplied(db: Db): Promise<Map<string, string>> {
  const tables = await sql<{ found: boolean }>`
    select to_regclass('schema_migrations') is not null
       and to_regclass('schema_migration_hashes') is not null as found`.execute(db)
  if (!tables.rows[0]?.found) return new Map()
  const { rows } = await sql<{ name: string; hash: string | null }>`
    select name, hash from schema_migrations left join schema_migration_hashes using (name)
    order by name`.execute(db)
  return new Map(rows.map(({ name, hash }) => [name, hash ?? '']))
}

function readFiles(folder: string): File[] {
  return readdirSync(folder)
    .filter((file) => file.endsWith('.sql'))
    .sort(byName)
    .map((file) => {
      // A checkout on Windows or with autocrlf is the same migration.
      const text = readFileSync(join(folder, file), 'utf8').replaceAll('\r\n', '\n')
      return { name: file.slice(0, -'.sql'.length), text, hash: hashOf(text) }
    })
}

/** By code unit: no locale has a say in the order of migrations. */
const byName = (a: string, b: string): number => (a < b ? -1 : a > b ? 1 : 0)

const hashOf = (text: string): string => createHash('sha256').update(text).digest('hex')
