// Takes personal data and secrets out of what is kept, logged or shown: `redact` out of a text, such as the message of an
// error that quotes whatever the other side said; `mask` out of a payload, where the name of a field tells as well. What
// is left still lets an operator see what the thing is about. Neither is a proof that nothing is left.

type Rule = readonly [RegExp, string | ((found: string) => string)]

/** The repetitions are bounded: an error may quote a megabyte. */
const rules: readonly Rule[] = [
  [/([a-z][a-z0-9+.-]{0,30}:\/\/)[^\s/@]{1,512}@/gi, '$1***@'],
  [/[^\s<>"'(),;:@/]{1,64}@[^\s<>"'(),;:@]{1,255}\.[a-z0-9-]{1,63}/gi, '***@***'],
  [/\b(bearer|basic)\s+[\w+/=.~-]{8,}/gi, '$1 ***'],
  // A JWT begins with `{"` in base64url.
  [/\beyJ[\w-]{8,}\.[\w-]{4,}(\.[\w-]*)?/g, '***'],
  // Keys that say whose they are: Stripe, OpenAI, Mailgun, AWS, Google, GitHub, Slack.
  [
    /\b(sk|pk|rk)[-_][\w-]{12,}|\bwhsec_\w{8,}|\bkey-[0-9a-f]{32}\b|\b(AKIA|ASIA)[0-9A-Z]{16}\b/g,
    '***',
  ],
  [/\bAIza[\w-]{30,}|\bya29\.[\w-]{20,}|\bgh[a-z]_\w{20,}|\bxox[a-z]-[\w-]{10,}/g, '***'],
  [
    /-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----[\s\S]*?(-----END [A-Z ]{0,30}PRIVATE KEY-----|$)/g,
    '***',
  ],
  // name=value and "name":"value".
  [
    /\b((?:[a-z]{1,20}[-_]?){0,3}(?:password|passwd|secret|token|api[-_]?key|authorization|signature)"?\s?[=:]\s?"?)(?!\*\*\*|bearer |basic )[^\s"&,;}]{3,}/gi,
    '$1***',
  ],
  // Card numbers: 14-19 digits from 2 to 6 (so no time in ms or µs), in groups or not, that pass the Luhn check.
  [/(?<![\w-])[2-6](?:[ -]?\d){13,18}(?![\w-])/g, (found) => (isLuhn(found) ? '***' : found)],
]

export const redact = (text: string): string =>
  rules.reduce(
    (said, [pattern, instead]) =>
      typeof instead === 'string'
        ? said.replace(pattern, instead)
        : said.replace(pattern, (found) => instead(found)),
    text,
  )

/** ISO/IEC 7812-1, annex B. */
function isLuhn(text: string): boolean {
  const digits = [...text].filter((char) => char >= '0' && char <= '9').reverse()
  const sum = digits.reduce((total, digit, place) => {
    const value = Number(digit) * (place % 2 === 0 ? 1 : 2)
    return total + (value > 9 ? value - 9 : value)
  }, 0)
  return sum % 10 === 0
}

/** Fields that hold a secret (a ticket's code opens a door) or a person, whatever their value looks like. */
const hidden: readonly RegExp[] = [
  /pass(word|wd|phrase)|secret|token|api_?key|private_?key|authoriz|cookie|signature|credential/i,
  /^(code|pin|otp|fid|devices|iban|bic|cvc|cvv|ssn|ip|e?-?mail)$|card|phone|mobile|birth|street|postcode/i,
  /^(first|last|full|given|family|sur|maiden)_?name$|^(recipient|address|to|cc|bcc)$/i,
]

/** A copy of a payload that may be shown: the same shape, secrets and personal data as `***`. */
export function mask(value: unknown, name = ''): unknown {
  if (value === null || typeof value === 'boolean') return value
  if (hidden.some((pattern) => pattern.test(name))) return '***'
  if (typeof value === 'string') return redact(value)
  if (typeof value === 'number') return redact(String(value)) === '***' ? '***' : value
  if (Array.isArray(value)) return value.map((one) => mask(one))
  return Object.fromEntries(
    Object.entries(value as object).map(([key, one]) => [redact(key), mask(one, key)]),
  )
}
