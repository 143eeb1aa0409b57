// Takes personal data and secrets out of a text that will be kept or logged: mail addresses, credentials in URLs,
// bearer tokens. For the messages of errors, which quote whatever the other side said.

const rules: readonly [RegExp, string][] = [
  [/([a-z][a-z0-9+.-]*:\/\/)[^\s/@]+@/gi, '$1***@'],
  [/[^\s<>"'(),;:@]+@[^\s<>"'(),;:@]+\.[a-z0-9-]+/gi, '***@***'],
  [/\b(bearer|basic)\s+[\w+/=.~-]{8,}/gi, '$1 ***'],
]

export const redact = (text: string): string =>
  rules.reduce((said, [pattern, instead]) => said.replace(pattern, instead), text)
