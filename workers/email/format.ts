// Money, times and widths as a reader's locale has them. A formatter of Intl takes a ms to make: they are kept.

import type { Money } from '../../domain/events.ts'

const formats = new Map<string, unknown>()
/** Locales come from users: no more are kept than a shop has readers' languages. */
const formatsMax = 200

function kept<T>(key: string, make: () => T): T {
  const found = formats.get(key) as T | undefined
  if (found !== undefined) return found
  if (formats.size >= formatsMax) formats.clear()
  const made = make()
  formats.set(key, made)
  return made
}

export const formatNumber = (value: number, locale: string): string =>
  kept(`number ${locale}`, () => new Intl.NumberFormat(locale)).format(value)

export const formatList = (values: readonly string[], locale: string): string =>
  kept(`list ${locale}`, () => new Intl.ListFormat(locale)).format(values)

export const pluralOf = (count: number, language: string): Intl.LDMLPluralRule =>
  kept(`plural ${language}`, () => new Intl.PluralRules(language)).select(count)

/** Minor units as ISO 4217 counts them: cents of euros, none of yen, thousandths of dinars. */
export function formatMoney({ amount_minor, currency }: Money, locale: string): string {
  const make = () => new Intl.NumberFormat(locale, { style: 'currency', currency })
  const format = kept(`${currency} ${locale}`, make)
  const digits = format.resolvedOptions().maximumFractionDigits ?? 2
  // As a text: no rounding of large amounts on the way.
  const sign = amount_minor < 0 ? '-' : ''
  const padded = String(Math.abs(amount_minor)).padStart(digits + 1, '0')
  const whole = padded.slice(0, padded.length - digits)
  const decimal = digits > 0 ? `${whole}.${padded.slice(-digits)}` : whole
  return format.format(`${sign}${decimal}` as Intl.StringNumericLiteral)
}

/** In the zone of the place, else in UTC; either is named. */
export const formatTime = (iso: string, locale: string, timeZone = 'UTC'): string =>
  kept(
    `time ${timeZone} ${locale}`,
    () => new Intl.DateTimeFormat(locale, { ...wholeTime, timeZone }),
  ).format(new Date(iso))

const wholeTime = {
  weekday: 'long',
  day: 'numeric',
  month: 'long',
  year: 'numeric',
  hour: 'numeric',
  minute: '2-digit',
  timeZoneName: 'short',
} as const

/** Columns of a text in a font of one width: Chinese and Japanese characters take two. */
export const widthOf = (text: string): number =>
  [...text].reduce(
    (width, char) =>
      width +
      (/[\u1100-\u115f\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\uff00-\uff60]/.test(char) ? 2 : 1),
    0,
  )
