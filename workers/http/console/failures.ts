// What was given up and why: a page of failures with their attempts, found by queue and by words of their error. The list
// stays as it is until it is loaded again, so that nothing moves under the hand of whoever chooses; what is new is told.

import { type Audit, readAudits } from '../../../db/attempts.ts'
import {
  type FailedFilter,
  type FailedPlace,
  type HourCount,
  lookFailed,
  readErrorGroups,
  readFailedHours,
} from '../../../db/failedPages.ts'
import { levelMax } from '../../../db/jobStats.ts'
import { type JobRow, readFailed } from '../../../db/operate.ts'
import { AppError } from '../../../domain/errors.ts'
import { type QueueName, queues } from '../../../domain/queues.ts'
import { redact } from '../../../domain/redact.ts'
import { type Html, html, link, type Part } from './html.ts'
import { form } from './layout.ts'
import { jobLink, queueNamed } from './queues.ts'
import { bars } from './spark.ts'
import { table } from './table.ts'
import type { ConsoleParts, PageOf, Signed } from './visit.ts'
import { count, countUpTo, moment, said, several } from './words.ts'

export const pageMax = 50
/** Rows a search for words looks at for one page. */
const searchMax = 20_000
/** Of the latest failures, told by how their errors begin. */
const groupedMax = 2000
const textMax = 200
const hoursShown = 24

export type Chosen = { queue: QueueName | undefined; text: string }

/** What is looked for, of an address or of a form. @throws AppError */
export function chosenIn(given: URLSearchParams): Chosen {
  const queue = given.get('queue') || undefined
  const text = (given.get('text') ?? '').trim()
  if (text.length > textMax || text.includes('\0')) {
    throw new AppError('BAD_REQUEST', `look for at most ${textMax} characters of an error`)
  }
  return { queue: queue && queueNamed(queue), text }
}

export const filterOf = ({ queue, text }: Chosen): FailedFilter => ({
  queues: queue ? [queue] : queues.map(({ name }) => name),
  ...(text && { text }),
})

export const pathOf = ({ queue, text }: Chosen, more: Record<string, string | undefined> = {}) =>
  link('/console/failures', { queue, text, ...more })

export const failures: PageOf = async (parts, visit) => {
  const chosen = chosenIn(visit.query)
  const summary = await summaryOf(parts, chosen)
  // What the script asks for again and again.
  if (visit.headers['x-console-part'] === 'live') return { title: 'Failures', live: summary }
  const page = await readPage(parts, chosen, visit.query)
  return {
    title: 'Failures',
    live: summary,
    still: html`${filterForm(chosen)}
${page.groups.length > 1 && chosen.text === '' && groupList(chosen, page.groups)}
${list(visit, chosen, page)}`,
  }
}

async function summaryOf({ db, figures }: ConsoleParts, chosen: Chosen): Promise<Html> {
  const { queues: names } = filterOf(chosen)
  const [all, hours] = await Promise.all([
    figures.queues(),
    readFailedHours(db, names, hoursShown),
  ])
  const rows = all.filter(({ queue }) => names.includes(queue as QueueName))
  const failed = rows.reduce((sum, row) => sum + row.failed, 0)
  const some = rows.some((row) => row.failed >= levelMax)
  const where = chosen.queue ? `in ${chosen.queue}` : 'in all queues'
  return html`<section class="card summary">
<p><span class="figure">${some ? countUpTo(failed, 0) : count(failed)}</span> failed ${where}</p>
${failed > 0 && hourBars(hours)}
</section>`
}

function hourBars(hours: readonly HourCount[]): Html {
  const all = hours.reduce((sum, hour) => sum + hour.count, 0)
  const list = hours.map(({ at, count: value }) => ({
    label: `${at.toISOString().slice(11, 16)} UTC`,
    value,
  }))
  const says = `Failures of the last ${hoursShown} hours, an hour a bar: ${several(all, 'failure')}, ${hours.at(-1)?.count ?? 0} in this hour`
  return html`<figure>${bars(list, says)}<figcaption class="soft">The last ${hoursShown} hours, as far as they still lie here: ${count(all)}</figcaption></figure>`
}

type FailurePage = {
  rows: JobRow[]
  audits: Map<string, Audit>
  groups: { begins: string; count: number }[]
  newer: string | undefined
  older: string | undefined
  /** A search that came to no end: how many it looked at. */
  looked: number | undefined
}

async function readPage(
  { db }: ConsoleParts,
  chosen: Chosen,
  query: URLSearchParams,
): Promise<FailurePage> {
  const filter = filterOf(chosen)
  const newer = placeIn(query.get('newer'))
  const older = placeIn(query.get('older'))
  const direction = newer ? 'newer' : 'older'
  const lookMax = filter.text ? searchMax : pageMax + 1
  const look = { direction, from: newer ?? older, lookMax, max: pageMax + 1 } as const
  const { found, looked, last } = await lookFailed(db, filter, look)
  const places = found.slice(0, pageMax)
  const isMore = found.length > pageMax
  const onwards = isMore ? places.at(-1) : looked === lookMax ? last : undefined
  // Whoever came here from a page can go back to it.
  const back = newer || older ? (places[0] ?? older) : undefined
  const ids = places.map(({ id }) => id)
  const [rows, audits, groups] = await Promise.all([
    readFailed(db, ids),
    readAudits(db, ids),
    newer || older || filter.text
      ? []
      : readErrorGroups(db, filter.queues, { lookMax: groupedMax, max: 8 }),
  ])
  const [to, from] = direction === 'newer' ? [onwards, back] : [back, onwards]
  return {
    rows,
    audits,
    groups,
    newer: to && toText(to),
    older: from && toText(from),
    looked: filter.text && !isMore && looked === lookMax ? looked : undefined,
  }
}

const toText = ({ us, id }: FailedPlace): string => `${us}.${id}`

function placeIn(text: string | null): FailedPlace | undefined {
  const [, us, id] = /^(\d{1,16})\.([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})$/.exec(text ?? '') ?? []
  return us !== undefined && id !== undefined ? { us, id } : undefined
}

function filterForm({ queue, text }: Chosen): Html {
  const options = queues.map(
    ({ name }) => html`<option ${name === queue && html`selected`}>${name}</option>`,
  )
  return html`<form method="get" action="/console/failures" class="card filter" role="search">
<label>Queue <select name="queue"><option value="">all</option>${options}</select></label>
<label class="grow">Words of the error, or its class <input name="text" value="${text}" maxlength="${textMax}" autocomplete="off" spellcheck="false"></label>
<button>Show</button> ${(queue || text) && html`<a href="/console/failures">all failures</a>`}
</form>`
}

function groupList(chosen: Chosen, groups: FailurePage['groups']): Html {
  return html`<details class="card" open><summary>Most frequent among the latest</summary><ul class="groups">${groups.map(
    ({ begins, count: many }) =>
      html`<li>${groupLink(chosen, begins)} <span class="soft">${count(many)}</span></li>`,
  )}</ul></details>`
}

/** One that holds a secret stands in no address. */
const groupLink = (chosen: Chosen, begins: string): Html =>
  redact(begins) === begins
    ? html`<a href="${pathOf({ ...chosen, text: begins })}">${said(begins)}</a>`
    : said(begins)

function list(visit: Signed, chosen: Chosen, page: FailurePage): Html {
  const { rows, looked } = page
  const filtered = chosen.text !== '' || chosen.queue !== undefined
  if (rows.length === 0) {
    const nothing = filtered ? 'No failure matches.' : 'No job has failed.'
    return html`<section class="card"><p class="empty">${looked ? searched(looked) : nothing}</p></section>${pager(chosen, page)}`
  }
  const which = filtered ? 'all that match' : 'all'
  const body = html`<section class="card">${failureTable(page)}</section>
<div class="actions">
<button name="do" value="retry" class="strong">Retry chosen</button>
<button name="do" value="remove">Remove chosen…</button>
<span class="gap"></span>
<button name="do" value="retry-all">Retry ${which}…</button>
<button name="do" value="remove-all" class="danger">Remove ${which}…</button>
</div>`
  return html`${form(visit, 'failures/ask', body, { queue: chosen.queue ?? '', text: chosen.text })}
${looked && html`<p class="soft">${searched(looked)}</p>`}${pager(chosen, page)}`
}

const searched = (looked: number): string =>
  `Looked at ${count(looked)} failures for this page; older ones may match too.`

function failureTable({ rows, audits }: FailurePage): Html {
  return table({
    caption: `${several(rows.length, 'failure')}, the latest first`,
    nameAt: 1,
    columns: [
      { head: 'Choose', quiet: true },
      { head: 'Job' },
      { head: 'Queue' },
      { head: 'Type' },
      { head: 'Attempts', numeric: true },
      { head: 'Failed' },
      { head: 'Error', wide: true },
    ],
    rows: rows.map((row) => ({
      key: row.dead_id ?? row.id,
      cells: [
        html`<label class="choose"><input type="checkbox" name="id" value="${row.dead_id}"><span class="quiet">Choose ${row.id}</span></label>`,
        jobLink(row),
        row.queue,
        row.template ?? row.type ?? '–',
        row.attempts,
        moment(row.finished_at),
        errorCell(row, audits.get(row.dead_id ?? '')),
      ],
    })),
    empty: '',
  })
}

function errorCell({ error }: JobRow, audit: Audit | undefined): Part {
  const shown = said(error ?? 'no error was kept')
  if (audit === undefined) return shown
  return html`<details><summary>${shown}</summary>${attemptList(audit.errors)}
<p class="soft">${audit.code} · audit <code>${audit.id}</code> · ${audit.transport}</p></details>`
}

export const attemptList = (
  errors: readonly { attempt: number; failed_at: string; message: string }[],
): Html =>
  html`<ol class="attempts">${errors.map(
    ({ attempt, failed_at, message }) =>
      html`<li value="${attempt}">${moment(failed_at)} ${said(message)}</li>`,
  )}</ol>`

function pager(chosen: Chosen, { newer, older }: FailurePage): Html {
  return html`<nav class="pager" aria-label="Pages of failures">
${newer && html`<a href="${pathOf(chosen)}">Latest</a> <a rel="prev" href="${pathOf(chosen, { newer })}">← Newer</a>`}
${older && html`<a rel="next" href="${pathOf(chosen, { older })}">Older →</a>`}
</nav>`
}
