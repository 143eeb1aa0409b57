// One connection to NATS, kept open (workers/kept.ts), with the stream that all events go through: made where it is not
// there, on disk and without limits; one that its operator made is used as it is.

import {
  DiscardPolicy,
  type JetStreamManager,
  jetstreamManager,
  StorageType,
} from '@nats-io/jetstream'
import { connect, type NatsConnection } from '@nats-io/transport-node'
import { addressOf, explainTls, type Kept, keepOpen, type Link } from './kept.ts'
import type { Log } from './log.ts'

export const stream = 'flotilla_events'
/** Before the event's type. */
export const subjectOf = (type: string): string => `flotilla.events.${type}`

export type NatsOptions = {
  url: string
  name: string
  log: Log
  /** Whatever it throws is why there is no connection yet. */
  onUp(connection: NatsConnection, manager: JetStreamManager): Promise<void>
  onDown(): void
  onChange?(): void
}

export type KeptNats = Kept & { reset(why: string): void }

const connectMs = 10_000
const pingMs = 10_000
/** As long as the relay may send one again for want of an answer, and then some. */
const duplicateMs = 120_000

export function keepNats(options: NatsOptions): KeptNats {
  const { url, name, log, onChange } = options
  let breakUp: ((error: Error) => void) | undefined

  async function live({ up, ended }: Link): Promise<Error> {
    const broken = Promise.withResolvers<Error>()
    const connection = await connect({ ...addressed(url), name: `flotilla:${name}` })
    const onEnd = () => broken.resolve(ended.reason)
    ended.addEventListener('abort', onEnd, { once: true })
    connection
      .closed()
      .then((error) => broken.resolve(error instanceof Error ? error : new Error('it was closed')))
    try {
      const manager = await jetstreamManager(connection, { timeout: connectMs })
      await ensureStream(manager)
      breakUp = broken.resolve
      await options.onUp(connection, manager)
      up()
      const error = await broken.promise
      return error
    } finally {
      breakUp = undefined
      ended.removeEventListener('abort', onEnd)
      setImmediate(options.onDown)
      void connection.close().catch(() => {})
    }
  }

  const kept = keepOpen({ what: `NATS at ${addressOf(url)}`, log, explain, live, onChange })
  return { ...kept, reset: (why) => breakUp?.(new Error(why)) }
}

/** Lets itself in, asks for JetStream, and goes. @throws Error that says what people can do about it */
export async function askNats(url: string, timeoutMs: number): Promise<void> {
  let connection: NatsConnection | undefined
  try {
    connection = await connect({ ...addressed(url), timeout: timeoutMs })
    await jetstreamManager(connection, { timeout: timeoutMs })
  } catch (error) {
    throw new Error(explain(error as Error), { cause: error })
  } finally {
    await connection?.close().catch(() => {})
  }
}

function addressed(url: string) {
  const { protocol, host, username, password } = new URL(url)
  const user = decodeURIComponent(username)
  const pass = decodeURIComponent(password)
  return {
    servers: host,
    // Ours to do.
    reconnect: false,
    timeout: connectMs,
    pingInterval: pingMs,
    ...(pass !== '' ? { user, pass } : user !== '' ? { token: user } : {}),
    ...(protocol === 'tls:' ? { tls: {} } : {}),
  }
}

async function ensureStream(manager: JetStreamManager): Promise<void> {
  const subjects = [subjectOf('>')]
  try {
    const { config } = await manager.streams.info(stream)
    if (config.subjects?.some(covers)) return
    throw new Error(`the stream ${stream} is there, without the subjects ${subjects}`)
  } catch (error) {
    if (!/stream not found/i.test((error as Error).message)) throw error
  }
  await manager.streams.add({
    name: stream,
    subjects,
    storage: StorageType.File,
    discard: DiscardPolicy.New,
    duplicate_window: duplicateMs * 1e6,
  })
}

/** `flotilla.>` has all of `flotilla.events.>`, and so has `*.events.>`. */
function covers(pattern: string): boolean {
  const words = pattern.split('.')
  if (words.pop() !== '>' || words.length > ours.length) return false
  return words.every((word, i) => word === '*' || word === ours[i])
}

const ours = subjectOf('').split('.').slice(0, -1)

function explain(error: Error): string {
  const said = error.message
  if (/authorization|authentication/i.test(said)) return 'refuses the user name or the password'
  if (error.name === 'JetStreamNotEnabled') return 'JetStream is not enabled: start it with -js'
  if (/subjects overlap/i.test(said)) {
    return `another stream has the subjects ${subjectOf('>')} already: ${said}`
  }
  return explainTls(error) ?? said
}
