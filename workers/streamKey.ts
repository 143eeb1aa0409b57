// The name that outbox and inbox know the Redis stream of events by, and what Redis's refusals mean.

import { explainTls } from './kept.ts'

export const streamKey = 'flotilla:events'

/** What people can do about it. */
export function explainRedis(error: Error, url: string): string {
  const said = error.message
  if (/WRONGPASS|NOAUTH|invalid username-password/i.test(said)) {
    return 'refuses the user name or the password'
  }
  if (/WRONGTYPE/.test(said)) return `the key ${streamKey} is there already, and is no stream`
  // A server without TLS waits for the end of a line that never comes.
  if (/^rediss/.test(url) && /ETIMEDOUT/.test(said)) {
    return `does not answer to TLS: without it, its URL begins with redis:// (${said})`
  }
  return explainTls(error) ?? said
}

/** Without name and password; of several hosts all. */
export const hostsOf = (url: string): string => url.replace(/^[^:]+:\/\/([^@/]*@)?([^?]*).*$/, '$2')
