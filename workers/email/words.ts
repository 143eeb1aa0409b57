// The words of mails, as words/<language>.json has them, and how values are put into them: one line each, without
// characters that turn the direction of what follows.

import { pluralOf } from './format.ts'

export type Phrase =
  | string
  /** By the plural categories of the language (https://cldr.unicode.org): one, few, many, other. */
  | Partial<Record<Intl.LDMLPluralRule, string>>

const labels = ['event', 'when', 'section', 'seats', 'tickets', 'total', 'until'] as const

export type Words = Record<
  (typeof labels)[number] | 'place' | 'seat' | 'order' | 'invitation',
  string
> &
  Record<string, string | Record<string, Phrase>>

export type Values = Record<string, string>

/** `form` makes of a value what may stand there. A value that is missing is a fault of the phrase, and is left as it is. */
export function say(
  phrase: Phrase,
  values: Values,
  { count, language, form }: { count: number; language: string; form(value: string): string },
): string {
  const text = typeof phrase === 'string' ? phrase : formOf(phrase, count, language)
  return text.replace(/\{(\w+)\}/g, (whole, name: string) => {
    const value = values[name]
    return value === undefined ? whole : form(value)
  })
}

const formOf = (phrase: Exclude<Phrase, string>, count: number, language: string): string =>
  phrase[pluralOf(count, language)] ?? phrase.other ?? ''

/**
 * A subject and the lines of a text mail are made of these: no value makes a line of its own, nor reverses what follows
 * (U+202A–202E, U+2066–2069). What joins emoji (U+200D) stays.
 */
export const oneLine = (value: string): string =>
  value
    .toWellFormed()
    .replace(/[\p{Cc}\p{Zl}\p{Zp}]+/gu, ' ')
    .replace(/[\u200e\u200f\u202a-\u202e\u2066-\u2069]/g, '')
    .trim()

/** Of scripts that are written from right to left. */
const rightToLeft =
  /[\p{Script=Hebrew}\p{Script=Arabic}\p{Script=Syriac}\p{Script=Thaana}\p{Script=Nko}\p{Script=Adlam}]/u

/** Apart from what is around it (FSI … PDI, https://www.unicode.org/reports/tr9/), where that changes anything. */
export const isolated = (value: string): string =>
  rightToLeft.test(value) ? `\u2068${value}\u2069` : value
