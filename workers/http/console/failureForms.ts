// Failures retried and removed: those that were chosen, or all that a filter finds. Removal, and whatever is not named
// job by job, is asked for once more. All of a filter is done in the background (bulk.ts), and its page tells how far it is.

import { readMoment } from '../../../db/failedPages.ts'
import { beginAction } from '../../../db/operatorActions.ts'
import { readPaused } from '../../../db/pauses.ts'
import { countFailed, type Moved, retryFailed } from '../../../db/redrive.ts'
import { AppError } from '../../../domain/errors.ts'
import { redact } from '../../../domain/redact.ts'
import { removeFailed } from '../../removeFailed.ts'
import { act, field, isId, operatorOf, pressed } from './act.ts'
import { type Chosen, chosenIn, filterOf, pathOf } from './failureFilter.ts'
import { pageMax } from './failures.ts'
import { html, link } from './html.ts'
import { form } from './layout.ts'
import type { ConsoleParts, Page, PageOf, Redirect, Signed } from './visit.ts'
import { count, several } from './words.ts'

const words = ['retry', 'remove', 'retry-all', 'remove-all'] as const

/** Ids in the dead letter queues. @throws AppError */
function idsIn({ form }: Signed): string[] {
  const ids = [...new Set(form.getAll('id'))]
  if (!ids.every(isId)) throw new AppError('BAD_REQUEST', 'an id is malformed')
  if (ids.length > pageMax) {
    throw new AppError('BAD_REQUEST', `choose at most ${pageMax} at once, or all that match`)
  }
  return ids
}

/** The form of the list. Chosen ones are retried at once: that can be repeated, and is what a press means. */
export const askFailures: PageOf = async (parts, visit) => {
  const chosen = chosenIn(visit.form)
  const what = pressed(visit, ...words)
  if (what === 'retry-all' || what === 'remove-all') return await askAll(parts, visit, chosen, what)
  const ids = idsIn(visit)
  if (ids.length === 0) {
    return {
      title: 'Nothing is chosen',
      status: 400,
      still: html`<p>Tick the failures that are meant, then press the button.</p>
<p><a class="button" href="${pathOf(chosen)}">Back to the failures</a></p>`,
    }
  }
  if (what === 'retry') return await moveChosen(parts, visit, 'retry', ids, chosen)
  return {
    title: `Remove ${several(ids.length, 'failed job')}?`,
    still: html`<div class="card">
<p>The ${ids.length === 1 ? 'job is' : 'jobs are'} deleted for good. What went wrong stays known: the audit rows are kept.</p>
${form(
  visit,
  'failures/do',
  html`${ids.map((id) => html`<input type="hidden" name="id" value="${id}">`)}<p class="actions"><button class="danger" name="do" value="remove">Remove ${several(ids.length, 'job')}</button> <a class="button" href="${pathOf(chosen)}">Keep ${ids.length === 1 ? 'it' : 'them'}</a></p>`,
  { queue: chosen.queue ?? '', text: chosen.text },
)}</div>`,
  }
}

/** The words are kept with the action, to go on with after a stop; errors are kept without such data, so none has them. */
function refusePersonal({ text }: Chosen): void {
  if (redact(text) === text) return
  throw new AppError('BAD_REQUEST', 'no error has personal data or secrets: look for other words')
}

async function askAll(
  { db }: ConsoleParts,
  visit: Signed,
  chosen: Chosen,
  what: 'retry-all' | 'remove-all',
): Promise<Page> {
  refusePersonal(chosen)
  const { failed } = await countFailed(db, filterOf(chosen).queues)
  const [verb, cls] = what === 'retry-all' ? ['Retry', 'strong'] : ['Remove', 'danger']
  const among = `${several(failed, 'failed job')}${chosen.queue ? ` of ${chosen.queue}` : ''}`
  const which = chosen.text
    ? html`those of ${among} whose error has <q class="said">${chosen.text}</q>`
    : html`all ${among}`
  const means =
    what === 'retry-all'
      ? 'Each goes back to its queue under its id, with a fresh count of attempts.'
      : 'They are deleted for good. What went wrong stays known: the audit rows are kept.'
  const until = await readMoment(db)
  return {
    title: `${verb} all${chosen.text || chosen.queue ? ' that match' : ''}?`,
    still: html`<div class="card"><p>${verb} ${which}. ${means} What fails from now on is not meant.</p>
${form(
  visit,
  'failures/do',
  html`<p class="actions"><button class="${cls}" name="do" value="${what}">${verb} them</button> <a class="button" href="${pathOf(chosen)}">Leave them</a></p>`,
  { queue: chosen.queue ?? '', text: chosen.text, until },
)}</div>`,
  }
}

/** The form of the question. */
export const doFailures: PageOf = async (parts, visit): Promise<Redirect> => {
  const chosen = chosenIn(visit.form)
  const what = pressed(visit, ...words)
  if (what === 'retry' || what === 'remove') {
    const ids = idsIn(visit)
    if (ids.length === 0) throw new AppError('BAD_REQUEST', 'no job is chosen')
    return await moveChosen(parts, visit, what, ids, chosen)
  }
  return await moveAll(parts, visit, chosen, what)
}

async function moveChosen(
  parts: ConsoleParts,
  visit: Signed,
  what: 'retry' | 'remove',
  ids: string[],
  chosen: Chosen,
): Promise<Redirect> {
  const retries = what === 'retry'
  const subject = ids.length === 1 ? `job ${ids[0]}` : several(ids.length, 'failed job')
  const action = { action: `jobs.${what}`, subject, detail: { ids } }
  const did = await act(parts, visit, action, async () => {
    const moved = await (retries ? retryFailed : removeFailed)(parts.db, { deadIds: ids })
    const gone = ids.length - moved.length
    const says = [
      `${retries ? 'retried' : 'removed'} ${several(moved.length, 'job')}`,
      gone > 0 && `${count(gone)} ${gone === 1 ? 'was' : 'were'} gone already`,
      retries && (await pausedWord(parts, moved)),
    ]
    return { says: says.filter(Boolean).join('; '), done: moved.length }
  })
  return { to: pathOf(chosen, { did }) }
}

async function pausedWord({ db }: ConsoleParts, moved: readonly Moved[]): Promise<string> {
  const paused = await readPaused(db)
  const names = [...new Set(moved.map(({ queue }) => queue))].filter((name) => paused.has(name))
  return names.length === 0 ? '' : `${names.join(', ')} is paused: they wait until it is resumed`
}

async function moveAll(
  { db, bulk }: ConsoleParts,
  visit: Signed,
  chosen: Chosen,
  what: 'retry-all' | 'remove-all',
): Promise<Redirect> {
  const until = field(visit, 'until')
  if (!/^\d{1,16}$/.test(until)) throw new AppError('BAD_REQUEST', 'load the failures again')
  refusePersonal(chosen)
  const filter = filterOf(chosen)
  const { failed } = await countFailed(db, filter.queues)
  const action = what === 'retry-all' ? 'jobs.retry' : 'jobs.remove'
  const detail = { queues: [...filter.queues], text: chosen.text, until }
  const words = chosen.text && `, with “${chosen.text}” in their error`
  const subject = `all that failed in ${chosen.queue ?? 'all queues'}${words}`
  const id = await beginAction(db, {
    ...operatorOf(visit),
    action,
    subject,
    detail,
    total: failed,
  })
  bulk.start({ id, action, detail, cursor: null })
  return { to: link(`/console/history/${id}`) }
}
