// Money, times and widths as a reader's locale has them.

import type { Money } from '../../domain/events.ts'

/** Minor units as ISO 4217 counts them: cents of euros, none of yen, thousandths of dinars. */
export function formatMoney({ amount_minor, currency }: Money, locale: string): string {
  const format = new Intl.NumberFormat(locale, { style: 'currency', currency })
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
  new Intl.DateTimeFormat(locale, {
    weekday: 'long',
    day: 'numeric',
    month: 'long',
    year: 'numeric',
    hour: 'numeric',
    minute: '2-digit',
    timeZone,
    timeZoneName: 'short',
  }).format(new Date(iso))

/** Columns of a text in a font of one width: Chinese and Japanese characters take two. */
export const widthOf = (text: string): number =>
  [...text].reduce(
    (width, char) =>
      width +
      (/[\u1100-\u115f\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\uff00-\uff60]/.test(char) ? 2 : 1),
    0,
  )
