// The failures as a list to choose from: what is looked for, how the errors begin, each with its attempts and its audit row,
// and the ways to the next page and back.

import type { Audit } from '../../../db/attempts.ts'
import type { JobRow } from '../../../db/operate.ts'
import { queues } from '../../../domain/queues.ts'
import { redact } from '../../../domain/redact.ts'
import { type Chosen, pathOf, textMax } from './failureFilter.ts'
import { type Html, html, type Part } from './html.ts'
import { form } from './layout.ts'
import { jobLink } from './queues.ts'
import { table } from './table.ts'
import type { Signed } from './visit.ts'
import { count, moment, said, several } from './words.ts'

export type FailurePage = {
  rows: JobRow[]
  audits: Map<string, Audit>
  groups: { begins: string; count: number }[]
  newer: string | undefined
  older: string | undefined
  /** A search that came to no end: how many it looked at. */
  looked: number | undefined
}

export function filterForm({ queue, text }: Chosen): Html {
  const options = queues.map(
    ({ name }) => html`<option ${name === queue && html`selected`}>${name}</option>`,
  )
  return html`<form method="get" action="/console/failures" class="card filter" role="search">
<label>Queue <select name="queue"><option value="">all</option>${options}</select></label>
<label class="grow">Words of the error, or its class <input name="text" value="${text}" maxlength="${textMax}" autocomplete="off" spellcheck="false"></label>
<button>Show</button> ${(queue || text) && html`<a href="/console/failures">all failures</a>`}
</form>`
}

export function groupList(chosen: Chosen, groups: FailurePage['groups']): Html {
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

export function list(visit: Signed, chosen: Chosen, page: FailurePage): Html {
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
