// What was changed from the console: by whom, when, and what came of it; and how far a change is that takes its time,
// which can be stopped and gone on with here.

import {
  endAction,
  listActions,
  type OperatorAction,
  readAction,
  resumeAction,
} from '../../../db/operatorActions.ts'
import { AppError } from '../../../domain/errors.ts'
import { field, isId, pressed } from './act.ts'
import { bulkActions } from './bulk.ts'
import { type Html, html, link, nothing } from './html.ts'
import { form } from './layout.ts'
import { facts, table } from './table.ts'
import type { PageOf, Redirect, Signed } from './visit.ts'
import { badge, count, moment, said, type Tone } from './words.ts'

const pageMax = 50

const tones: Record<OperatorAction['state'], Tone> = {
  running: 'calm',
  done: 'good',
  failed: 'bad',
  stopped: 'warn',
}

export const history: PageOf = async ({ db }, visit, id) => {
  if (id !== '') {
    const action = isId(id) ? await readAction(db, id) : undefined
    if (action === undefined) throw new AppError('NOT_FOUND', 'there is no such change')
    return { title: wordOf(action), live: one(visit, action) }
  }
  const before = visit.query.get('before') ?? ''
  const rows = await listActions(db, pageMax + 1, isId(before) ? before : undefined)
  const shown = rows.slice(0, pageMax)
  const next = rows.length > pageMax ? shown.at(-1)?.id : undefined
  return {
    title: 'History',
    live: html`<section class="card">${actionTable(shown)}</section>
<nav class="pager" aria-label="Pages of changes">${before && html`<a href="/console/history">Latest</a>`} ${next && html`<a rel="next" href="${link('/console/history', { before: next })}">Older →</a>`}</nav>`,
  }
}

const words: Record<string, string> = {
  'jobs.retry': 'Retry',
  'jobs.remove': 'Remove',
  'jobs.cancel': 'Cancel',
  'queue.pause': 'Pause a queue',
  'queue.resume': 'Resume a queue',
  'source.pause': 'Pause a source',
  'source.resume': 'Resume a source',
  'flag.on': 'Switch a flag on',
  'flag.off': 'Switch a flag off',
  'session.begin': 'Sign in',
  'session.end': 'Sign out',
}

const wordOf = ({ action }: OperatorAction): string => words[action] ?? action

export const actionTable = (rows: readonly OperatorAction[]): Html =>
  table({
    caption: 'Changes made from the console, the latest first',
    columns: [
      { head: 'What' },
      { head: 'Of', wide: true },
      { head: 'When' },
      { head: 'From' },
      { head: 'State' },
      { head: 'What came of it', wide: true },
    ],
    rows: rows.map((row) => ({
      key: row.id,
      cells: [
        html`<a href="/console/history/${row.id}">${wordOf(row)}</a>`,
        said(row.subject),
        moment(row.at),
        html`${row.address} <span class="soft">${row.session}</span>`,
        badge(row.state, tones[row.state]),
        row.outcome && said(row.outcome),
      ],
    })),
    empty: 'Nothing was changed from here yet.',
  })

const isBulk = ({ action, total }: OperatorAction) => total !== null && action in bulkActions

function one(visit: Signed, action: OperatorAction): Html {
  const { state, total, looked, done, subject, outcome } = action
  return html`<section class="card">
<p>${badge(state, tones[state])} ${said(subject)}</p>
${isBulk(action) ? progress(action) : nothing}
${facts([
  ['Asked', moment(action.at)],
  ['From', `${action.address}, session ${action.session}`],
  ['Looked at', total === null ? null : `${count(looked)} of ${count(Math.max(total, looked))}`],
  ['Done', count(done)],
  ['Ended', action.finishedAt && moment(action.finishedAt)],
  ['What came of it', outcome],
])}
${isBulk(action) && buttons(visit, action)}
</section>
<p><a href="/console/failures">To the failures</a> · <a href="/console/history">All changes</a></p>`
}

function progress({ looked, total, state, done, action }: OperatorAction): Html {
  const most = Math.max(total ?? 0, looked, 1)
  const value = state === 'done' ? most : looked
  const did = action === 'jobs.retry' ? 'retried' : 'removed'
  return html`<p><label>${count(done)} ${did}<progress max="${most}" value="${value}">${Math.floor((100 * value) / most)} %</progress></label></p>
${state === 'running' && html`<noscript><p class="soft">Load this page again to see how far it is.</p></noscript>`}`
}

function buttons(visit: Signed, { id, state }: OperatorAction): Html {
  if (state === 'running') {
    return form(
      visit,
      'history/do',
      html`<button name="do" value="stop">Stop after the batch in hand</button>`,
      { id },
    )
  }
  if (state !== 'stopped') return nothing
  return form(
    visit,
    'history/do',
    html`<button class="strong" name="do" value="continue">Go on</button>`,
    { id },
  )
}

export const historyForm: PageOf = async ({ db, bulk }, visit): Promise<Redirect> => {
  const id = field(visit, 'id')
  const found = isId(id) ? await readAction(db, id) : undefined
  if (found === undefined || !isBulk(found))
    throw new AppError('NOT_FOUND', 'there is no such change')
  if (pressed(visit, 'stop', 'continue') === 'stop') {
    await endAction(db, id, 'stopped', `stopped from ${visit.address}`)
  } else {
    // Undefined: somebody else goes on with it already.
    const resumed = await resumeAction(db, id)
    if (resumed) bulk.start(resumed)
  }
  return { to: `/console/history/${id}` }
}

/** What the page after a form says of it. */
export const noticeOf = (action: OperatorAction): Html => {
  const good = action.state === 'done'
  const text = action.outcome ?? `${wordOf(action)}: ${action.state}`
  return html`<p class="notice ${good ? 'good' : 'warn'}" role="status">${text.charAt(0).toUpperCase() + text.slice(1)}. <a href="/console/history/${action.id}">In the history</a></p>`
}
