// Which database a command works on: DATABASE_URL, else the embedded one of the data folder.

import { findEmbedded } from '../db/embedded.ts'
import { type Database, openDatabase } from '../db/open.ts'
import { isConnectionLost } from '../db/transaction.ts'
import { commonSettings, type Environment, readConfig } from '../workers/config.ts'
import { dataDirOf, Exit } from './program.ts'

/** DATABASE_URL or its file; undefined: the embedded one is meant. @throws ConfigError */
export function givenDatabase(env: Environment): string | undefined {
  if (!env.DATABASE_URL && !env.DATABASE_URL_FILE) return undefined
  return readConfig({ DATABASE_URL: commonSettings.DATABASE_URL }, env).DATABASE_URL
}

/** The given database past a pooler: for what keeps a session, as the lock of migrations does. @throws ConfigError */
export function givenDirectly(env: Environment): string | undefined {
  const { DATABASE_DIRECT_URL } = commonSettings
  return (
    givenDatabase(env) &&
    (readConfig({ DATABASE_DIRECT_URL }, env).DATABASE_DIRECT_URL ?? givenDatabase(env))
  )
}

/** @throws Exit when DATABASE_URL is unset and no embedded server is running */
export async function runningDatabase(env: Environment): Promise<string> {
  const url = givenDatabase(env) ?? (await findEmbedded(dataDirOf(env)))
  if (url) return url
  throw new Exit(
    'failed',
    `DATABASE_URL is not set, and no embedded Postgres is running in ${dataDirOf(env)}: start \`fleet up\`, or set DATABASE_URL`,
  )
}

/** How a database may be named on a screen: without its password. */
export function withoutPassword(url: string): string {
  const { username, host, pathname } = new URL(url)
  return `${username}@${host}${pathname}`
}

/** What an operator reads when it is away: which one was meant, and what names it. @throws Exit */
export async function reaching<T>(url: string, work: () => Promise<T>): Promise<T> {
  try {
    return await work()
  } catch (error) {
    if (!isConnectionLost(error)) throw error
    const { message } = error as Error
    throw new Exit(
      'failed',
      `Postgres at ${withoutPassword(url)} does not answer (${message}): is it there, and does DATABASE_URL name it?`,
    )
  }
}

/** For a command that needs it: opened, handed over, closed. One connection: an operator is no load. */
export async function withDatabase<T>(
  env: Environment,
  use: (database: Database) => Promise<T>,
): Promise<T> {
  const url = await runningDatabase(env)
  const database = openDatabase({ url, name: 'jobs', poolMax: 1 })
  try {
    return await reaching(url, () => use(database))
  } finally {
    await database.close()
  }
}
