// Whether a webhook is Mailgun's: `signature` is the hex HMAC-SHA256 of timestamp and token under the webhook signing key.
// The body is not covered, so a token counts once (db/suppressions.ts) and not for long.
// https://documentation.mailgun.com/docs/mailgun/user-manual/webhooks/securing-webhooks

import { createHmac, timingSafeEqual } from 'node:crypto'

export type Signature = { timestamp: string; token: string; signature: string }

/** Webhooks may be late on their way; a clock may be ahead. */
export const ageMaxSeconds = 900

/** Why it is not to be believed; undefined: it is. */
export function signatureFault(
  { timestamp, token, signature }: Signature,
  key: string,
  nowMs = Date.now(),
): string | undefined {
  const right = createHmac('sha256', key).update(`${timestamp}${token}`).digest()
  const given = Buffer.from(signature, 'hex')
  if (given.length !== right.length || !timingSafeEqual(given, right)) {
    return 'the signature is not right: is MAILGUN_SIGNING_KEY the webhook signing key?'
  }
  const ageSeconds = Math.abs(nowMs / 1000 - Number(timestamp))
  if (ageSeconds <= ageMaxSeconds) return undefined
  return `the signature is more than ${ageMaxSeconds / 60} minutes old, or from the future`
}
