// Turns a mail job into subject, HTML and text. What a mail is made of stands in templates/<name>.{html,txt}.hbs, its words
// in words/<language>.json; a locale without its own falls back to its language, and that to English. Values are escaped
// in HTML and make no line of their own anywhere; names from right to left stay apart from the words around them.

import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import type { EmailJob, EmailTemplate, EmailTemplates } from '../../domain/emails.ts'
import { formatList, formatMoney, formatNumber, formatTime, widthOf } from './format.ts'
import { isolated, oneLine, type Phrase, say, type Values, type Words } from './words.ts'

export type Rendered = { subject: string; html: string; text: string; language: string }

const folder = import.meta.dirname
const fallback = 'en'
const strict = { strict: true, knownHelpersOnly: true } as const

/** Those we write. */
export const languages = readdirSync(join(folder, 'words')).map((file) => file.split('.')[0] ?? '')

type Render = (view: object) => string

export async function createRenderer(): Promise<(job: EmailJob) => Rendered> {
  const { default: Handlebars } = await import('handlebars')
  const handlebars = Handlebars.create()
  const source = (file: string) => readFileSync(join(folder, 'templates', `${file}.hbs`), 'utf8')
  for (const partial of ['layout', 'rows']) {
    handlebars.registerPartial(partial, source(`${partial}.html`))
  }
  const compiled = new Map<EmailTemplate, { html: Render; text: Render }>()
  const written = new Map<string, Words>()

  function load(template: EmailTemplate) {
    const found = compiled.get(template) ?? {
      html: handlebars.compile(source(`${template}.html`), strict),
      text: handlebars.compile(source(`${template}.txt`), { ...strict, noEscape: true }),
    }
    compiled.set(template, found)
    return found
  }

  function wordsOf(language: string): Words {
    const file = join(folder, 'words', `${language}.json`)
    const found = written.get(language) ?? (JSON.parse(readFileSync(file, 'utf8')) as Words)
    written.set(language, found)
    return found
  }

  const asHtml = (value: string) => `<bdi>${handlebars.escapeExpression(value)}</bdi>`

  return (job) => {
    const { locale, language } = languageOf(job.payload.locale)
    const words = wordsOf(language)
    const view = toView(job, words, locale)
    const { values, count } = view
    const phrases = Object.entries(words[job.template] as Record<string, Phrase>)
    const common = Object.entries({ order: words.order, invitation: words.invitation })
    const said = (form: (value: string) => string) =>
      [...phrases, ...common].map(
        ([name, phrase]) => [name, say(phrase, values, { count, language, form })] as const,
      )
    const html = said(asHtml).map(([name, text]) => [name, new handlebars.SafeString(text)])
    const text = Object.fromEntries(said(isolated)) as Record<string, string>
    // Of one line, and in clients that show each line in its own direction.
    const subject = Object.fromEntries(said((value) => value)).subject as string
    const render = load(job.template)
    return {
      subject,
      language,
      html: render.html({ ...view, subject, language, words: Object.fromEntries(html) }),
      text: render
        .text({
          ...view,
          ...isolatedLists(view),
          event_name: isolated(view.event_name),
          words: text,
        })
        .trim()
        .concat('\n'),
    }
  }
}

/** `pt-BR` is looked for as itself, as `pt`, and as English. */
function languageOf(asked: string | undefined): { locale: string; language: string } {
  const locale = canonical(asked)
  const tags = [locale, locale.split('-')[0] ?? '', fallback]
  const language = tags.find((tag) => languages.includes(tag)) as string
  // Dates of a language we do not write would be a riddle among English words.
  return { language, locale: locale.split('-')[0] === language ? locale : language }
}

function canonical(locale: string | undefined): string {
  try {
    return Intl.getCanonicalLocales(locale ?? fallback)[0] ?? fallback
  } catch {
    return fallback
  }
}

type Row = { label: string; padded: string; value: string; strong: boolean }
type View = {
  event_name: string
  when: string
  rows: Row[]
  tickets: { place: string; code: string }[]
  /** What phrases are filled with, and what decides their plural. */
  values: Values
  count: number
}

type AlertJob = Extract<EmailJob, { template: 'alert' }>

/** Every field a template names is there: a missing one is an error (strict), not a gap in a mail. */
const toView = (job: EmailJob, words: Words, locale: string): View =>
  job.template === 'alert' ? alertView(job) : eventView(job, words, locale)

function alertView({ payload: { title, facts } }: AlertJob): View {
  const rows = toRows(facts.map(({ label, value }) => [oneLine(label), oneLine(value)] as const))
  const values = { title: oneLine(title) }
  return { event_name: '', when: '', tickets: [], values, count: 1, rows }
}

function eventView(
  { payload, template }: Exclude<EmailJob, AlertJob>,
  words: Words,
  locale: string,
): View {
  const { starts_at, time_zone, quantity } = payload
  const event_name = oneLine(payload.event_name)
  const when = formatTime(starts_at, locale, time_zone)
  const amount = formatNumber(quantity, locale)
  const view = {
    event_name,
    when,
    tickets: [],
    values: { event_name, count: amount },
    count: quantity,
  }
  if (template === 'quota_invitation') {
    const { quota_id, expires_at } = payload as EmailTemplates['quota_invitation']
    const rows = [
      [words.event, event_name],
      [words.when, when],
      [words.tickets, amount],
      [words.until, expires_at === undefined ? '' : formatTime(expires_at, locale, time_zone)],
    ] as const
    const values = { ...view.values, quota_id: oneLine(quota_id) }
    return { ...view, values, rows: toRows(rows) }
  }
  const { order_id, section, seats, total } = payload as EmailTemplates['order_confirmation']
  const { tickets = [] } = payload as Partial<EmailTemplates['ticket_delivery']>
  const rows = [
    [words.event, event_name],
    [words.when, when],
    [words.section, oneLine(section)],
    [words.seats, seats?.length ? formatList(seats.map(oneLine), locale) : ''],
    [words.tickets, amount],
    [words.total, formatMoney(total, locale)],
  ] as const
  const delivered = template === 'ticket_delivery'
  return {
    ...view,
    values: { ...view.values, order_id: oneLine(order_id) },
    count: delivered ? tickets.length : quantity,
    rows: toRows(rows, words.total),
    tickets: tickets.map(({ seat, code }) => ({
      place: placeOf(words, oneLine(section), seat && oneLine(seat)),
      code: oneLine(code),
    })),
  }
}

/** Rows without a value are left out; labels of the text are padded to one width. */
function toRows(pairs: readonly (readonly [string, string])[], strong?: string): Row[] {
  const there = pairs.filter(([, value]) => value !== '')
  const width = Math.max(...there.map(([label]) => widthOf(label))) + 3
  return there.map(([label, value]) => ({
    label,
    value,
    padded: `${label}:${' '.repeat(width - widthOf(label) - 1)}`,
    strong: label === strong,
  }))
}

/** In a text there is no markup to keep two directions apart. */
const isolatedLists = ({ rows, tickets }: View) => ({
  rows: rows.map((row) => ({ ...row, value: isolated(row.value) })),
  tickets: tickets.map(({ place, code }) => ({ place: isolated(place), code })),
})

/** `Stalls-10-24` of the section Stalls for a reader; a standing place is its section. */
function placeOf(words: Words, section: string, label: string | undefined): string {
  if (!label) return section
  const [row, seat] = label.startsWith(`${section}-`)
    ? label.slice(section.length + 1).split('-')
    : []
  const plain = { count: 1, language: fallback, form: (value: string) => value }
  return row && seat
    ? say(words.place, { section, row, seat }, plain)
    : say(words.seat, { section, seat: label }, plain)
}
