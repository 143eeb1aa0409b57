// Keeps a connection open for as long as its owner lives: opens another when it breaks, and says meanwhile why there is
// none. A fault that only people can mend (a wrong password, a stream of another kind) is told once and tried again, so
// that mending it is all there is to do.

import { setTimeout as sleep } from 'node:timers/promises'
import { redact } from '../domain/redact.ts'
import type { Log } from './log.ts'

export type KeepOptions = {
  /** For people: `RabbitMQ at host:port`. */
  what: string
  log: Log
  /** What people can do about it, in a line. */
  explain(error: Error): string
  /**
   * Opens, calls `up`, and resolves with the reason when what it opened is broken or `ended` aborts. `limit` says why
   * nothing is taken though the connection is there. @throws why it could not be opened
   */
  live(link: Link): Promise<Error>
  onChange?: (() => void) | undefined
}

export type Link = {
  up(): void
  limit(why: string | undefined): void
  ended: AbortSignal
}

export type Kept = {
  away(): string | undefined
  close(): Promise<void>
}

const retryMs = { first: 200, most: 5000 }
const closeMs = 2000

export function keepOpen({ what, log, explain, live, onChange }: KeepOptions): Kept {
  const closing = new AbortController()
  let away: string | undefined = `${what}: not connected yet`
  let told = ''
  let lasting: NodeJS.Timeout | undefined

  function setAway(why: string | undefined): void {
    if (away === why) return
    away = why
    onChange?.()
  }

  const link: Link = {
    ended: closing.signal,
    up() {
      setAway(undefined)
      // One that is full or out of memory can be reached, and breaks at the first event: it is told of when it lasts.
      clearTimeout(lasting)
      lasting = setTimeout(() => {
        if (told !== '') log.info(`${what} can be reached again`)
        told = ''
      }, retryMs.most).unref()
    },
    limit(why) {
      if (why === undefined) log.info(`${what} takes events again`)
      else log.warn(`${what}: ${why}`)
      setAway(why === undefined ? undefined : `${what}: ${why}`)
    },
  }

  async function keep(): Promise<void> {
    for (let failures = 0; !closing.signal.aborted; ) {
      const begun = performance.now()
      try {
        const error = await live(link)
        const why = `${what}: ${oneLine(error.message)}`
        setAway(why)
        clearTimeout(lasting)
        if (closing.signal.aborted) return
        if (told !== why) log.warn(`${why}: the connection broke`)
        told = why
        failures = performance.now() - begun > retryMs.most ? 0 : failures + 1
      } catch (error) {
        clearTimeout(lasting)
        failures++
        const why = `${what}: ${oneLine(explain(error as Error))}`
        setAway(why)
        if (told !== why) log.error(`${why} (BROKER_URL); tries again`)
        told = why
      }
      const waitMs = Math.min(retryMs.most, retryMs.first * 2 ** Math.max(0, failures - 1))
      const ms = waitMs * (0.5 + Math.random() / 2)
      await sleep(ms, undefined, { signal: closing.signal }).catch(() => {})
    }
  }

  const kept = keep()
  return {
    away: () => away,
    async close() {
      clearTimeout(lasting)
      closing.abort(new Error('the worker stops'))
      await Promise.race([kept, sleep(closeMs, undefined, { ref: false })])
    },
  }
}

const oneLine = (text: string): string => redact(text).replace(/\s+/g, ' ').trim()

/** A URL without name and password. */
export function addressOf(url: string): string {
  const { host, pathname } = new URL(url)
  return pathname.length > 1 ? host + pathname : host
}

const tlsFault = /certificate|self.signed|\bssl\b|\btls\b|EPROTO|CERT_|altnames/i

/** Undefined: it is none of TLS. */
export function explainTls(error: Error & { code?: unknown }): string | undefined {
  const said = error.message
  if (!tlsFault.test(`${said} ${error.code}`)) return undefined
  return `TLS failed: ${said.replace(/^.*SSL routines:/s, '')}`
}
