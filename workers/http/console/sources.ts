// The event loader's sources: state, cursor, lag, rate, last error; paused and resumed as by `fleet loader:pause`.

import {
  pauseSource,
  readSourceStatus,
  resumeSource,
  type SourceState,
  type SourceStatus,
} from '../../../db/loaderSources.ts'
import { AppError } from '../../../domain/errors.ts'
import { act, field, pressed } from './act.ts'
import { type Html, html, link, type Part } from './html.ts'
import { form } from './layout.ts'
import { table } from './table.ts'
import type { PageOf, Redirect, Signed } from './visit.ts'
import { age, ago, badge, count, said, several, type Tone } from './words.ts'

const tones: Record<SourceState, Tone> = {
  ok: 'good',
  new: 'calm',
  paused: 'warn',
  silent: 'warn',
  failing: 'bad',
  gone: 'calm',
}

export const sources: PageOf = async ({ db }, visit) => {
  const rows = await readSourceStatus(db)
  return {
    title: 'Loader sources',
    live: html`<section class="card">${table({
      caption: 'Sources of the event loader',
      columns: [
        { head: 'Source', wide: true },
        { head: 'State' },
        { head: 'Cursor', numeric: true },
        { head: 'Behind', numeric: true },
        { head: 'Last answer' },
        { head: 'Loaded', numeric: true },
        { head: 'A minute', numeric: true },
        { head: 'Last error', wide: true },
        { head: 'Change', quiet: true },
      ],
      rows: rows.map((row) => ({
        key: row.source,
        ...(row.state === 'failing' && { tone: 'bad' as const }),
        cells: cells(row, visit),
      })),
      empty: html`There is no source: the setting LOADER_SOURCES or <code>fleet loader:add</code> names some.`,
    })}</section>`,
  }
}

function cells(row: SourceStatus, visit: Signed): Part[] {
  return [
    row.source,
    badge(row.failures > 0 ? `${row.state} (${row.failures})` : row.state, tones[row.state]),
    row.last_id,
    row.lag_events === null ? '–' : several(row.lag_events, 'event'),
    row.lag_seconds === null ? '–' : `${age(row.lag_seconds)} ago`,
    row.loaded,
    count(Math.round(row.rate_per_second * 60)),
    row.last_error && html`${said(row.last_error)} <span class="soft">${ago(row.failed_at)}</span>`,
    pauseForm(row, visit),
  ]
}

function pauseForm({ source, state }: SourceStatus, visit: Signed): Html {
  const [word, verb] = state === 'paused' ? ['resume', 'Resume'] : ['pause', 'Pause']
  const button = html`<button class="small" name="do" value="${word}">${verb}<span class="quiet"> ${source}</span></button>`
  return form(visit, 'sources/do', button, { source })
}

export const sourceForm: PageOf = async (parts, visit): Promise<Redirect> => {
  const source = field(visit, 'source')
  const pauses = pressed(visit, 'pause', 'resume') === 'pause'
  const action = pauses ? 'source.pause' : 'source.resume'
  const did = await act(parts, visit, { action, subject: source.slice(0, 200) }, async () => {
    const changed = await (pauses ? pauseSource : resumeSource)(parts.db, source)
    if (changed === undefined) throw new AppError('NOT_FOUND', 'there is no source of that name')
    const state = pauses ? 'paused' : 'resumed'
    return {
      says: changed ? `${source} is ${state}` : `${source} was ${state} already`,
      done: Number(changed),
    }
  })
  return { to: link('/console/sources', { did }) }
}
