// Whether a webhook is Stripe's: the header Stripe-Signature has a time `t` and hex HMAC-SHA256s `v1` of `<t>.<body>`, one a
// secret while secrets are being exchanged; of ours, too, there may be several. Signed anew each time it is sent, so that
// what is old, or from the future, is somebody else's.
// https://docs.stripe.com/webhooks/signature

import { createHmac, timingSafeEqual } from 'node:crypto'

/** Stripe's own libraries bear as much. */
export const toleranceSeconds = 300
/** While secrets are exchanged there are two. */
const signaturesMax = 10

/** Why it is not to be believed; undefined: it is. `body`: byte for byte as it came. */
export function stripeSignatureFault(
  header: string | undefined,
  body: string,
  secrets: readonly string[],
  nowMs = Date.now(),
): string | undefined {
  if (header === undefined) return 'the header Stripe-Signature is missing'
  const pairs = header.split(',').map((pair) => pair.trim().split('=', 2))
  const time = pairs.find(([name]) => name === 't')?.[1] ?? ''
  const given = pairs.flatMap(([name, value]) =>
    name === 'v1' && /^[0-9a-f]{64}$/.test(value ?? '') ? [Buffer.from(value ?? '', 'hex')] : [],
  )
  if (!/^\d{1,12}$/.test(time) || given.length === 0) {
    return 'Stripe-Signature must be t=<time>,v1=<signature>'
  }
  if (!isSigned(given.slice(0, signaturesMax), `${time}.${body}`, secrets)) {
    return 'no signature is right: is STRIPE_WEBHOOK_SECRET that of this endpoint?'
  }
  if (Math.abs(nowMs / 1000 - Number(time)) <= toleranceSeconds) return undefined
  return `the signature is more than ${toleranceSeconds / 60} minutes old, or from the future`
}

/** Compares every pair, whatever it has found: the time it takes tells nothing. */
function isSigned(given: readonly Buffer[], signed: string, secrets: readonly string[]): boolean {
  let found = false
  for (const secret of secrets) {
    const right = createHmac('sha256', secret).update(signed).digest()
    for (const one of given) found = timingSafeEqual(one, right) || found
  }
  return found
}
