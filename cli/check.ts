// fleet check: the settings of all workers, and whether what they name can be reached. One line a thing; exit 1 when
// something is wrong.

import { once } from 'node:events'
import { connect } from 'node:net'
import { findEmbedded } from '../db/embedded.ts'
import { schemaStatus } from '../db/migrate.ts'
import { openDatabase } from '../db/open.ts'
import { ConfigError } from '../workers/config.ts'
import { givenDatabase, withoutPassword } from './database.ts'
import { type Command, type Context, dataDirOf, Exit } from './program.ts'
import { allFaults, workers } from './workers.ts'

const connectMs = 3000

type Finding = { about: string; good: boolean; says: string }

export const check: Command = (context) => ({
  command: 'check',
  describe: 'check the settings of all workers and what they name; exit 1 tells what is wrong',
  handler: async () => {
    const { env } = context
    const findings = [
      ...checkSettings(context),
      await checkDatabase(context),
      ...(await checkServer('redis', env.REDIS_URL, 6379)),
      ...(await checkServer('broker', env.BROKER_URL, 5672)),
    ]
    for (const { about, good, says } of findings) {
      context.say(`${good ? 'ok  ' : 'FAIL'}  ${about.padEnd(10)}${says}`)
    }
    const wrong = findings.filter(({ good }) => !good).length
    if (wrong > 0) throw new Exit('failed', `${wrong} of ${findings.length} checks failed`)
  },
})

function checkSettings({ env }: Context): Finding[] {
  const placeholder =
    env.DATABASE_URL || env.DATABASE_URL_FILE ? {} : { DATABASE_URL: 'postgres://embedded' }
  const faults = allFaults(workers, {
    ...env,
    FLEET_DATA_DIR: dataDirOf(env),
    ...placeholder,
  })
  if (faults.length > 0) return faults.map((says) => ({ about: 'settings', good: false, says }))
  return [{ about: 'settings', good: true, says: `of ${workers.length} workers` }]
}

async function checkDatabase({ env }: Context): Promise<Finding> {
  const about = 'postgres'
  let url: string | undefined
  try {
    url = givenDatabase(env) ?? (await findEmbedded(dataDirOf(env)))
  } catch (error) {
    // A bad DATABASE_URL is named among the settings already.
    const says = error instanceof ConfigError ? 'DATABASE_URL cannot be used' : messageOf(error)
    return { about, good: false, says }
  }
  if (!url) return { about, good: true, says: 'embedded, not running: `fleet up` starts it' }
  const database = openDatabase({ url, name: 'check', poolMax: 1 })
  try {
    const { is, missing, unknown, changed } = await schemaStatus(database.db)
    const faults = [
      ...(is === 'behind' ? [`lacks ${missing.join(', ')}: run \`fleet migrate\``] : []),
      ...(is === 'newer' ? [`is newer than this code: has ${unknown.join(', ')}`] : []),
      ...(changed.length > 0 ? [`had another text of ${changed.join(', ')}`] : []),
    ]
    const where = withoutPassword(url)
    if (faults.length > 0) return { about, good: false, says: `${where} ${faults.join('; ')}` }
    return { about, good: true, says: `${where}, schema current` }
  } catch (error) {
    return { about, good: false, says: `${withoutPassword(url)} ${messageOf(error)}` }
  } finally {
    await database.close()
  }
}

/** Only whether somebody listens: the workers tell the rest. Nothing for an unset URL. */
async function checkServer(
  about: string,
  given: string | undefined,
  usualPort: number,
): Promise<Finding[]> {
  if (!given || !URL.canParse(given)) return []
  const { hostname: host, port } = new URL(given)
  const socket = connect({ host, port: Number(port) || usualPort })
  try {
    await once(socket, 'connect', { signal: AbortSignal.timeout(connectMs) })
    return [{ about, good: true, says: `${host}:${Number(port) || usualPort} answers` }]
  } catch (error) {
    return [
      { about, good: false, says: `${host}:${Number(port) || usualPort} ${messageOf(error)}` },
    ]
  } finally {
    socket.destroy()
  }
}

/** Node leaves the message of a failed connection to several addresses empty. */
function messageOf(error: unknown): string {
  const { message, code, name } = error as NodeJS.ErrnoException
  if (name === 'AbortError') return `did not answer within ${connectMs / 1000} s`
  return message || code || String(error)
}
