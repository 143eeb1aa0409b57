// What keeps strangers out of the console: requests that another site makes somebody's browser send, and guesses of the
// password, which are limited by address and altogether, over all instances.

import { isIPv6 } from 'node:net'
import { AppError } from '../../../domain/errors.ts'
import type { RateLimiter } from '../../../domain/limits.ts'
import type { Visit } from './visit.ts'

/** Tries to sign in. Whoever knows the password needs one. */
const triesOfAddress = 10
const triesOfAll = 100

/**
 * Browsers say where a form comes from (Sec-Fetch-Site, Origin). Programs say neither, and need the form's token alone.
 * @throws AppError FORBIDDEN
 */
export function refuseOtherSites({ headers, host }: Pick<Visit, 'headers' | 'host'>): void {
  const site = headers['sec-fetch-site']
  const { origin } = headers
  const isOurs =
    (site === undefined || site === 'same-origin' || site === 'none') &&
    (origin === undefined || (URL.canParse(origin) && new URL(origin).host === host))
  if (isOurs) return
  throw new AppError('FORBIDDEN', 'this form was sent from another site; open the console itself')
}

/** The address first: one who tries often must not use up what all share. @throws AppError RATE_LIMITED */
export async function countTry(limits: RateLimiter, address: string): Promise<void> {
  const counted = [
    { subject: `console:${network(address)}`, perMinute: triesOfAddress },
    { subject: 'console', perMinute: triesOfAll },
  ]
  for (const limit of counted) {
    const { granted, retryAfterMs } = await limits.take(limit)
    if (granted) continue
    throw new AppError('RATE_LIMITED', 'too many tries to sign in: wait a minute', { retryAfterMs })
  }
}

/** Who has one address of IPv6 has 2^64. */
function network(address: string): string {
  if (!isIPv6(address) || address.startsWith('::ffff:')) return address
  const [head = '', tail = ''] = address.split('::')
  const front = head.split(':').filter(Boolean)
  const back = tail.split(':').filter(Boolean)
  const gap = address.includes('::') ? Math.max(0, 8 - front.length - back.length) : 0
  return `${[...front, ...Array(gap).fill('0'), ...back].slice(0, 4).join(':')}::/64`
}
