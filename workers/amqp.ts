// Keeps one connection with one channel to RabbitMQ open for as long as its owner lives: opens it, prepares it, opens
// another when it breaks, and says meanwhile why there is none. A fault that only people can mend (wrong password, an
// exchange of another kind) is told once and tried again, so that mending it is all there is to do.

import { setTimeout as sleep } from 'node:timers/promises'
import { type Channel, type ChannelModel, connect } from 'amqplib'
import { redact } from '../domain/redact.ts'
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

export type KeptChannel = {
  away(): string | undefined
  /** Breaks the connection, so that another one is opened. */
  reset(why: string): void
  close(): Promise<void>
}

const retryMs = { first: 200, most: 5000 }
const connectMs = 10_000
/** Two missed ones break the connection. */
const heartbeatSeconds = 10

export function keepChannel<C extends Channel>(options: ChannelOptions<C>): KeptChannel {
  const { url, name, log, onChange } = options
  const where = addressOf(url)
  const closing = new AbortController()
  let away: string | undefined = `RabbitMQ at ${where}: not connected yet`
  let told = ''
  let current: { connection: ChannelModel; broken(error: Error): void } | undefined

  function setAway(why: string | undefined): void {
    if (away === why) return
    away = why
    onChange?.()
  }

  /** Resolves when what was opened is broken. @throws why it could not be opened */
  async function live(): Promise<void> {
    const broken = Promise.withResolvers<Error>()
    const socket = { timeout: connectMs, noDelay: true, keepAlive: true }
    const connection = await connect(withHeartbeat(url), {
      ...socket,
      clientProperties: { connection_name: `flotilla:${name}` },
    })
    try {
      connection.on('error', broken.resolve)
      connection.on('close', (error) => broken.resolve(error ?? new Error('it was closed')))
      connection.on('blocked', (reason) => {
        setAway(`RabbitMQ at ${where} blocks publishers: ${reason}`)
        log.warn({ reason }, 'RabbitMQ blocks publishers')
      })
      connection.on('unblocked', () => {
        setAway(undefined)
        log.info('RabbitMQ takes events again')
      })
      const channel = await options.open(connection)
      channel.on('error', broken.resolve)
      channel.on('close', () => broken.resolve(new Error('the channel was closed')))
      await Promise.race([
        options.prepare(channel),
        broken.promise.then(Promise.reject.bind(Promise)),
      ])
      current = { connection, broken: broken.resolve }
      options.onUp(channel)
      setAway(undefined)
      if (told !== '') log.info(`RabbitMQ at ${where} can be reached again`)
      told = ''
      const error = await broken.promise
      current = undefined
      setAway(`RabbitMQ at ${where}: ${redact(error.message)}`)
      options.onDown(error)
      if (!closing.signal.aborted) {
        log.warn({ error: redact(error.message) }, `the connection to RabbitMQ at ${where} broke`)
      }
    } finally {
      // Half open or broken: nobody waits for its farewell.
      void connection.close().catch(() => {})
    }
  }

  async function keep(): Promise<void> {
    for (let failures = 0; !closing.signal.aborted; ) {
      const begun = performance.now()
      try {
        await live()
        failures = performance.now() - begun > retryMs.most ? 0 : failures + 1
      } catch (error) {
        failures++
        const why = `RabbitMQ at ${where}: ${explain(error as Error)}`
        setAway(why)
        if (told !== why) log.error(`${why} (BROKER_URL); tries again`)
        told = why
      }
      const waitMs = Math.min(retryMs.most, retryMs.first * 2 ** (failures - 1))
      const ms = waitMs * (0.5 + Math.random() / 2)
      await sleep(ms, undefined, { signal: closing.signal }).catch(() => {})
    }
  }

  const kept = keep()
  return {
    away: () => away,
    reset: (why) => current?.broken(new Error(why)),
    async close() {
      closing.abort()
      current?.broken(new Error('the worker stops'))
      await Promise.race([kept, sleep(2000, undefined, { ref: false })])
    },
  }
}

/** Without name and password. */
function addressOf(url: string): string {
  const { host, pathname } = new URL(url)
  return pathname.length > 1 ? host + pathname : host
}

function withHeartbeat(url: string): string {
  const changed = new URL(url)
  if (!changed.searchParams.has('heartbeat')) {
    changed.searchParams.set('heartbeat', String(heartbeatSeconds))
  }
  return changed.href
}

const tlsFault = /certificate|self.signed|ssl|tls|EPROTO|CERT_|altnames/i

/** What people can do about it. */
export function explain(error: Error & { code?: unknown }): string {
  const said = redact(error.message || String(error.code))
    .replace(/\s+/g, ' ')
    .trim()
  if (/ACCESS[-_]REFUSED.*(login|auth)/i.test(said)) {
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
  if (tlsFault.test(`${said} ${error.code}`))
    return `TLS failed: ${said.replace(/^.*SSL routines:/, '')}`
  return said
}
