// fleet check: the settings of all workers, and whether what they name can be reached and is as this code needs it. One
// line a thing, or one JSON document; exit 1 when something is wrong.

import { findEmbedded } from '../db/embedded.ts'
import { schemaStatus } from '../db/migrate.ts'
import { openDatabase } from '../db/open.ts'
import { readJobTable, serverVersion } from '../db/operate.ts'
import type { Db } from '../db/schema.ts'
import { parseBrokerUrl } from '../domain/brokerUrl.ts'
import { redact } from '../domain/redact.ts'
import { parseRedisUrl } from '../redis/address.ts'
import { answered, openRedis } from '../redis/open.ts'
import { askRabbit } from '../workers/amqp.ts'
import {
  brokerSettings,
  ConfigError,
  type Environment,
  readConfig,
  type Setting,
} from '../workers/config.ts'
import { httpSettings } from '../workers/http/config.ts'
import { askNats } from '../workers/nats.ts'
import { openSearch } from '../workers/opensearch.ts'
import { givenDatabase, withoutPassword } from './database.ts'
import { jsonOption } from './jobs/options.ts'
import { type Command, type Context, dataDirOf, Exit } from './program.ts'
import { allFaults, workers } from './workers.ts'

const connectMs = 3000
/** The oldest Postgres that the fleet is run on. */
const oldestPostgres = 15

type Finding = { about: string; good: boolean; says: string }

export const check: Command<{ json: boolean }> = (context) => ({
  command: 'check',
  describe: 'check the settings of all workers and what they name; exit 1 tells what is wrong',
  builder: (yargs) => yargs.option('json', jsonOption),
  handler: async ({ json }) => {
    const [database, redis, broker, search] = await Promise.all([
      checkDatabase(context),
      checkRedis(context.env),
      checkBroker(context.env),
      checkSearch(context.env),
    ])
    const findings = [...checkSettings(context), ...database, ...redis, ...broker, ...search]
    const wrong = findings.filter(({ good }) => !good)
    if (json) context.say(JSON.stringify({ good: wrong.length === 0, findings }, null, 2))
    else {
      for (const { about, good, says } of findings) {
        context.say(`${good ? 'ok  ' : 'FAIL'}  ${about.padEnd(10)}${says}`)
      }
    }
    if (wrong.length === 0) return
    const named = [...new Set(wrong.map(({ about }) => about))].join(', ')
    throw new Exit('failed', `${wrong.length} of ${findings.length} checks failed: ${named}`)
  },
})

function checkSettings({ env }: Context): Finding[] {
  const given = env.DATABASE_URL || env.DATABASE_URL_FILE || env.NODE_ENV === 'production'
  const placeholder = given ? {} : { DATABASE_URL: 'postgres://embedded' }
  const faults = allFaults(workers, {
    ...env,
    FLEET_DATA_DIR: dataDirOf(env),
    ...placeholder,
  })
  if (faults.length > 0) return faults.map((says) => ({ about: 'settings', good: false, says }))
  return [{ about: 'settings', good: true, says: `of ${workers.length} workers` }]
}

async function checkDatabase({ env }: Context): Promise<Finding[]> {
  const about = 'postgres'
  let url: string | undefined
  try {
    url = givenDatabase(env) ?? (await findEmbedded(dataDirOf(env)))
  } catch (error) {
    // A bad DATABASE_URL is named among the settings already.
    const says = error instanceof ConfigError ? 'DATABASE_URL cannot be used' : messageOf(error)
    return [{ about, good: false, says }]
  }
  if (!url && env.NODE_ENV === 'production') {
    const says = 'DATABASE_URL is not set: the embedded one is refused when NODE_ENV is production'
    return [{ about, good: false, says }]
  }
  if (!url) return [{ about, good: true, says: 'embedded, not running: `fleet up` starts it' }]
  const database = openDatabase({ url, name: 'check', poolMax: 1 })
  try {
    const major = await serverVersion(database.db)
    const where = withoutPassword(url)
    if (major < oldestPostgres) {
      const says = `${where} is Postgres ${major}: the fleet needs ${oldestPostgres} or later`
      return [{ about, good: false, says }]
    }
    const reached = { about, good: true, says: `${where}, Postgres ${major}` }
    return [reached, await checkSchema(database.db), await checkJobTable(database.db)]
  } catch (error) {
    return [{ about, good: false, says: `${withoutPassword(url)} ${messageOf(error)}` }]
  } finally {
    await database.close()
  }
}

async function checkSchema(db: Db): Promise<Finding> {
  const { is, missing, unknown, changed } = await schemaStatus(db)
  const faults = [
    ...(is === 'behind' ? [`lacks ${missing.join(', ')}: run \`fleet migrate\``] : []),
    ...(is === 'newer' ? [`is newer than this code: has ${unknown.join(', ')}`] : []),
    ...(changed.length > 0
      ? [`was made with another text of ${changed.join(', ')}: restore the file`]
      : []),
  ]
  const says = faults.length > 0 ? faults.join('; ') : 'current'
  return { about: 'schema', good: faults.length === 0, says }
}

async function checkJobTable(db: Db): Promise<Finding> {
  const about = 'job table'
  const { version, wants, missing } = await readJobTable(db)
  if (version === null) {
    return { about, good: false, says: 'is not there: run `fleet migrate`' }
  }
  const faults = [
    ...(version < wants ? [`is of version ${version}, not ${wants}: run \`fleet migrate\``] : []),
    ...(version > wants ? [`is of version ${version}, newer than this code's ${wants}`] : []),
    ...(missing.length > 0
      ? [`lacks the queues ${missing.join(', ')}: run \`fleet migrate\``]
      : []),
  ]
  const says = faults.join('; ') || `version ${version}, every queue with its dead letter queue`
  return { about, good: faults.length === 0, says }
}

/** Nothing when it is unset, or unusable, which the settings tell already. */
async function checkRedis(env: Environment): Promise<Finding[]> {
  const url = settingOf('REDIS_URL', httpSettings.REDIS_URL, env)
  return url === undefined ? [] : [await askRedis('redis', url)]
}

async function askRedis(about: string, url: string): Promise<Finding> {
  const where = parseRedisUrl(url)
    .nodes.map(({ host, port }) => `${host}:${port}`)
    .join(',')
  const opened = openRedis({ url, name: 'check', commandTimeoutMs: connectMs })
  try {
    await opened.ready(connectMs)
    await answered(opened.redis.ping(), connectMs)
    return { about, good: true, says: `${where} answers` }
  } catch (error) {
    return { about, good: false, says: `${where} ${messageOf(error)}` }
  } finally {
    opened.redis.disconnect()
  }
}

/** Also from its file. */
function settingOf<T>(name: string, setting: Setting<T>, env: Environment): T | undefined {
  try {
    return readConfig({ [name]: setting }, env)[name]
  } catch {
    return undefined
  }
}

/** It must let us in, too. Nothing for an unset URL. */
async function checkBroker(env: Environment): Promise<Finding[]> {
  const url = settingOf('BROKER_URL', brokerSettings.BROKER_URL, env)
  if (url === undefined) return []
  const about = 'broker'
  const { kind, nodes } = parseBrokerUrl(url)
  if (kind === 'redis') return [await askRedis(about, url)]
  const where = nodes.map(({ host, port }) => `${host}:${port}`).join(',')
  try {
    await (kind === 'nats' ? askNats : askRabbit)(url, connectMs)
    return [{ about, good: true, says: `${where} answers` }]
  } catch (error) {
    return [{ about, good: false, says: `${where} ${messageOf(error)}` }]
  }
}

/** Nothing for an unset URL. */
async function checkSearch(env: Environment): Promise<Finding[]> {
  const url = settingOf('OPENSEARCH_URL', httpSettings.OPENSEARCH_URL, env)
  if (url === undefined) return []
  const alias = settingOf('OPENSEARCH_INDEX', httpSettings.OPENSEARCH_INDEX, env) ?? ''
  const about = 'opensearch'
  const { host } = new URL(url)
  try {
    const { live } = await openSearch({ url, alias, timeoutMs: connectMs }).aliases()
    const index = live === undefined ? `no index ${alias} yet: fleet items:reindex makes it` : live
    return [{ about, good: true, says: `${host} answers, ${index}` }]
  } catch (error) {
    return [{ about, good: false, says: `${host} ${messageOf(error)}` }]
  }
}

/** Node leaves the message of a failed connection to several addresses empty. */
function messageOf(error: unknown): string {
  const { message, code, name } = error as NodeJS.ErrnoException
  if (name === 'AbortError') return `did not answer within ${connectMs / 1000} s`
  return redact(message || code || String(error))
}
