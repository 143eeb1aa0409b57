// Turns a mail job into subject, HTML and text. Templates are templates/<name>.<locale>.{html,txt}.hbs; the first line
// of the text one is the subject. A locale without its own falls back to its language, and that to English. Values are
// escaped in HTML; money and times are written the way the reader's locale has them.

import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import type { EmailJob, EmailTemplate } from '../../domain/emails.ts'
import type { Money } from '../../domain/events.ts'

export type Rendered = { subject: string; html: string; text: string; language: string }

const folder = join(import.meta.dirname, 'templates')
const fallback = 'en'
const strict = { strict: true, knownHelpersOnly: true } as const

type Render = (view: object) => string

export async function createRenderer(): Promise<(job: EmailJob) => Rendered> {
  const { default: Handlebars } = await import('handlebars')
  const handlebars = Handlebars.create()
  const source = (file: string) => readFileSync(join(folder, `${file}.hbs`), 'utf8')
  handlebars.registerPartial('layout', source('layout.html'))
  const files = new Set(readdirSync(folder))
  const compiled = new Map<string, { html: Render; text: Render }>()

  function load(template: EmailTemplate, language: string) {
    const name = `${template}.${language}`
    const found = compiled.get(name) ?? {
      html: handlebars.compile(source(`${name}.html`), strict),
      text: handlebars.compile(source(`${name}.txt`), { ...strict, noEscape: true }),
    }
    compiled.set(name, found)
    return found
  }

  return (job) => {
    const locale = canonical(job.payload.locale)
    const language = languages(locale).find((tag) =>
      files.has(`${job.template}.${tag}.txt.hbs`),
    ) as string
    // Dates of a language we do not write would be a riddle among English words.
    const view = toView(job, language === fallback && !locale.startsWith('en') ? 'en' : locale)
    const { html, text } = load(job.template, language)
    const [head = '', ...body] = text(view).split('\n')
    const subject = head.replace(/^Subject: /, '')
    return {
      subject,
      language,
      html: html({ ...view, subject, language }),
      text: body.join('\n').trim().concat('\n'),
    }
  }
}

function canonical(locale: string | undefined): string {
  try {
    return Intl.getCanonicalLocales(locale ?? fallback)[0] ?? fallback
  } catch {
    return fallback
  }
}

/** `pt-BR` is looked for as itself, as `pt`, and as English. */
const languages = (locale: string): string[] => [locale, locale.split('-')[0] ?? '', fallback]

/** Every field a template names is there: a missing one is an error (strict), not a gap in a mail. */
function toView({ payload, template }: EmailJob, locale: string): object {
  const { order_id, event_name, starts_at, section, quantity, seats, total } = payload
  const tickets = 'tickets' in payload && template === 'ticket_delivery' ? payload.tickets : []
  return {
    order_id: oneLine(order_id),
    event_name: oneLine(event_name),
    section: oneLine(section),
    quantity: new Intl.NumberFormat(locale).format(quantity),
    seats: seats?.length ? new Intl.ListFormat(locale).format(seats.map(oneLine)) : '',
    when: formatTime(starts_at, locale),
    total: formatMoney(total, locale),
    several: tickets.length > 1,
    tickets: tickets.map(({ seat, code }) => ({
      place: oneLine(placeOf(section, seat)),
      code: oneLine(code),
    })),
  }
}

/** `Stalls-10-24` of the section Stalls for a reader; a standing place is its section. */
function placeOf(section: string, label: string | undefined): string {
  if (!label) return section
  const [row, seat] = label.startsWith(`${section}-`)
    ? label.slice(section.length + 1).split('-')
    : []
  return row && seat ? `${section}, row ${row}, seat ${seat}` : `${section}, seat ${label}`
}

/** A subject and the lines of a text mail are made of these: no value makes a line of its own. */
const oneLine = (value: string): string => value.replace(/[\p{Cc}\p{Zl}\p{Zp}]+/gu, ' ').trim()

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

/** The place of an event has no time zone here: the time is told in UTC, and says so. */
export const formatTime = (iso: string, locale: string): string =>
  new Intl.DateTimeFormat(locale, {
    weekday: 'long',
    day: 'numeric',
    month: 'long',
    year: 'numeric',
    hour: 'numeric',
    minute: '2-digit',
    timeZone: 'UTC',
    timeZoneName: 'short',
  }).format(new Date(iso))
