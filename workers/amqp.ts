// One connection with one channel to RabbitMQ, prepared and kept open (workers/kept.ts), and what its refusals mean.

import { type Channel, type ChannelModel, connect } from 'amqplib'
import { addressOf, explainTls, type Kept, keepOpen, type Link } from './kept.ts'
import type { Log } from './log.ts'

/** The topic exchange all events go through; the routing key is the event's type. */
export const exchange = 'flotilla.events'

export type ChannelOptions<C extends Channel> = {
  url: string
  /** Shown by the management of RabbitMQ: `flotilla:<worker>`. */
  name: string
  log: Log
  open(connection: ChannelModel): Promise<C>
  /** Declares what is needed. Whatever it throws is why there is no channel yet. */
  prepare(channel: C): Promise<void>
  /** A channel is there, or no more. `error` has a `code` where RabbitMQ itself closed the channel. */
  onUp(channel: C): void
  onDown(error: Error & { code?: number }): void
  /** `away` has changed. */
  onChange?(): void
}

export type KeptChannel = Kept & {
  /** Breaks the connection, so that another one is opened. */
  reset(why: string): void
}

const connectMs = 10_000
/** Two missed ones break the connection. */
const heartbeatSeconds = 10

export function keepChannel<C extends Channel>(options: ChannelOptions<C>): KeptChannel {
  const { url, name, log, onChange } = options
  let breakUp: ((error: Error) => void) | undefined

  async function live({ up, limit, ended }: Link): Promise<Error> {
    const broken = Promise.withResolvers<Error>()
    // Not noDelay: what is published together goes out together.
    const connection = await connect(withHeartbeat(url), {
      timeout: connectMs,
      keepAlive: true,
      clientProperties: { connection_name: `flotilla:${name}` },
    })
    const onEnd = () => broken.resolve(ended.reason)
    ended.addEventListener('abort', onEnd, { once: true })
    try {
      connection.on('error', broken.resolve)
      connection.on('close', (error) => broken.resolve(error ?? new Error('it was closed')))
      connection.on('blocked', (reason) => limit(`blocks publishers: ${reason}`))
      connection.on('unblocked', () => limit(undefined))
      const channel = await options.open(connection)
      channel.on('error', broken.resolve)
      channel.on('close', () => broken.resolve(new Error('the channel was closed')))
      const failed = broken.promise.then((error) => Promise.reject(error))
      failed.catch(() => {})
      await Promise.race([options.prepare(channel), failed])
      breakUp = broken.resolve
      options.onUp(channel)
      up()
      const error = await broken.promise
      breakUp = undefined
      // First: nothing more is handed over.
      setImmediate(() => options.onDown(error))
      return error
    } finally {
      ended.removeEventListener('abort', onEnd)
      // Half open or broken: nobody waits for its farewell.
      void connection.close().catch(() => {})
    }
  }

  const kept = keepOpen({ what: `RabbitMQ at ${addressOf(url)}`, log, explain, live, onChange })
  return { ...kept, reset: (why) => breakUp?.(new Error(why)) }
}

function withHeartbeat(url: string): string {
  const changed = new URL(url)
  if (!changed.searchParams.has('heartbeat')) {
    changed.searchParams.set('heartbeat', String(heartbeatSeconds))
  }
  return changed.href
}

/** Lets itself in, and goes. @throws Error that says what people can do about it */
export async function askRabbit(url: string, timeoutMs: number): Promise<void> {
  try {
    const connection = await connect(url, { timeout: timeoutMs })
    connection.on('error', () => {})
    await connection.close()
  } catch (error) {
    throw new Error(explain(error as Error), { cause: error })
  }
}

/** What people can do about it. */
function explain(error: Error & { code?: unknown }): string {
  const said = error.message || String(error.code)
  if (/ACCESS[-_]REFUSED.*(login|auth)/is.test(said)) {
    return 'refuses the user name or the password'
  }
  if (/ACCESS[-_]REFUSED/i.test(said)) return `the user may not do this: ${said}`
  // What RabbitMQ says then is not in amqplib's error.
  if (/Expected ConnectionOpenOk/.test(said)) {
    return 'there is no such virtual host, or the user may not enter it'
  }
  if (/PRECONDITION[-_]FAILED/i.test(said) && /exchange|queue/.test(said)) {
    return `something of this name but of another kind is already there: ${said}`
  }
  return explainTls(error) ?? said
}
