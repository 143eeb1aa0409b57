// One job with all that is known of it, as `jobs show`: payload without secrets and personal data, times, every attempt
// that failed, its audits, its trace. Retried, removed or cancelled from here.

import { type Attempt, type Audit, readAttempts } from '../../../db/attempts.ts'
import { cancelJob, findJobs, idRange, type JobDetail, readAuditsOf } from '../../../db/operate.ts'
import { retryFailed } from '../../../db/redrive.ts'
import { AppError } from '../../../domain/errors.ts'
import { mask, redact } from '../../../domain/redact.ts'
import { traceIdOf, traceparentIn } from '../../../domain/traces.ts'
import { cancelledCommand } from '../../problem.ts'
import { removeFailed } from '../../removeFailed.ts'
import { act, field, pressed } from './act.ts'
import { attemptList } from './failureList.ts'
import { type Html, html, link, nothing } from './html.ts'
import { form } from './layout.ts'
import { jobLink } from './queues.ts'
import { facts, table } from './table.ts'
import type { Page, PageOf, Redirect, Signed } from './visit.ts'
import { ago, badge, moment, said, type Tone } from './words.ts'

const idForm = (
  given: string,
): Html => html`<form method="get" action="/console/jobs" class="card filter" role="search">
<label class="grow">Id of a job, or its first 8 characters or more <input name="id" value="${given}" required maxlength="40" autocomplete="off" spellcheck="false"></label>
<button>Find</button></form>`

/** By the id in the query. */
export const findJob: PageOf = async (_parts, visit) => {
  const id = (visit.query.get('id') ?? '').trim()
  if (id === '') return { title: 'Find a job', still: idForm('') }
  if (idRange(id) === undefined) {
    const said = html`<p class="notice bad" role="alert">An id has 8 to 32 hexadecimal digits.</p>`
    return { title: 'Find a job', status: 400, still: html`${said}${idForm(id)}` }
  }
  return { to: `/console/jobs/${encodeURIComponent(id)}` }
}

export const job: PageOf = async ({ db }, visit, id): Promise<Page> => {
  if (idRange(id) === undefined) throw new AppError('NOT_FOUND', 'there is no such job')
  const found = await findJobs(db, id)
  if (found.length > 1) return choice(found)
  const [one] = found
  const attempts = one ? ((await readAttempts(db, [one.id])).get(one.id) ?? []) : []
  const audits = await readAuditsOf(db, one?.id ?? id)
  if (one === undefined && audits.length === 0) {
    return {
      title: 'There is no such job',
      status: 404,
      still: html`<p>No job has this id: it is completed in a queue that keeps none, or was cancelled or removed long ago.</p>${idForm(id)}`,
    }
  }
  return {
    title: `Job ${one?.id ?? id}`,
    live: html`${one ? detail(visit, one) : html`<p class="notice warn">The job is gone: it is completed, cancelled or removed.</p>`}
${attempts.length > 0 && html`<section class="card"><h2>Failed attempts</h2>${attemptTable(attempts)}</section>`}
${audits.map(auditCard)}`,
    still: one && payload(one),
  }
}

const choice = (found: readonly JobDetail[]): Page => ({
  title: 'Several jobs have this id',
  live: html`<section class="card">${table({
    caption: 'Jobs',
    columns: [{ head: 'Job' }, { head: 'Queue' }, { head: 'State' }, { head: 'Created' }],
    rows: found.map((row) => ({
      key: row.dead_id ?? row.id,
      cells: [jobLink(row), row.queue, row.state, moment(row.created_at)],
    })),
    empty: '',
  })}</section>`,
})

const tones: Record<JobDetail['state'], Tone> = {
  ready: 'calm',
  delayed: 'calm',
  active: 'good',
  failed: 'bad',
  finished: 'calm',
}

function detail(visit: Signed, job: JobDetail): Html {
  const { state } = job
  const waits = state === 'ready' || state === 'delayed'
  return html`<section class="card">
<p>${badge(state === 'finished' ? job.raw_state : state, tones[state])} in <a href="/console/queues/${encodeURIComponent(job.queue)}">${job.queue}</a></p>
${facts([
  ['Type', [job.type, job.template].filter(Boolean).join(' ')],
  ['Id', html`<code>${job.id}</code>`],
  ['In dead letters', job.dead_id && html`<code>${job.dead_id}</code>`],
  ['Attempts', `${job.attempts} of ${job.attempts_max}`],
  ['Priority', job.priority === 0 ? null : String(job.priority)],
  ['Created', moment(job.created_at)],
  ['Due', waits ? moment(job.due_at) : null],
  ['Started', job.started_at && moment(job.started_at)],
  ['Sign of life', state === 'active' ? ago(job.heartbeat_at) : null],
  [state === 'failed' ? 'Failed' : 'Finished', job.finished_at && moment(job.finished_at)],
  [
    'Trace',
    traceIdOf(traceparentIn(job.data)) && html`<code>${traceIdOf(traceparentIn(job.data))}</code>`,
  ],
  ['Error', job.error && said(job.error)],
])}
${buttons(visit, job)}
</section>`
}

function buttons(visit: Signed, { id, dead_id, queue, state }: JobDetail): Html {
  if (dead_id !== null) {
    return html`<div class="actions">${form(visit, 'jobs/do', html`<button class="strong" name="do" value="retry">Retry</button>`, { id: dead_id })}
${form(visit, 'failures/ask', html`<button class="danger" name="do" value="remove">Remove…</button>`, { id: dead_id })}</div>`
  }
  if (state === 'finished') return nothing
  return html`<details><summary>Cancel this job</summary><p class="soft">It is taken out of its queue for good. A worker that has it in hand is told to drop it; what it has done stays done.</p>
${form(visit, 'jobs/do', html`<button class="danger" name="do" value="cancel">Cancel the job</button>`, { id, queue })}</details>`
}

/** Long ones stay in their box. */
const payload = ({ data }: JobDetail): Html =>
  html`<section class="card"><h2>Payload</h2><p class="soft">Secrets and personal data are shown as ***.</p><pre tabindex="0" aria-label="Payload">${JSON.stringify(mask(data ?? null), null, 2)}</pre></section>`

const kinds: Record<Attempt['kind'], string> = {
  failed: '',
  died: 'its worker died: ',
  late: 'too late: ',
  hopeless: '',
}

const attemptTable = (attempts: readonly Attempt[]): Html =>
  table({
    caption: 'Attempts that failed, the first first',
    columns: [{ head: 'Attempt' }, { head: 'Failed' }, { head: 'Error', wide: true }],
    rows: attempts.map(({ attempt, failedAt, kind, message, stack }) => ({
      key: String(attempt),
      cells: [attempt, moment(failedAt), html`${kinds[kind]}${said(message)}${stackOf(stack)}`],
    })),
    empty: '',
  })

const stackOf = (stack: string | null): Html =>
  stack === null
    ? nothing
    : html`<details><summary>Stack</summary><pre tabindex="0" aria-label="Stack">${redact(stack)}</pre></details>`

const auditCard = (audit: Audit): Html =>
  html`<section class="card"><h2>Given up</h2>${facts([
    ['Code', audit.code],
    ['Audit', html`<code>${audit.id}</code>`],
    ['Job', html`<code>${audit.jobId}</code>`],
    ['In dead letters', html`<code>${audit.deadJobId}</code>`],
    ['Queue', audit.queue],
    ['Type', audit.type],
    ['Transport', audit.transport],
    ['Attempts', String(audit.attempts)],
    ['At', moment(audit.createdAt)],
    [
      'Resolved',
      audit.resolvedAt ? html`${audit.resolvedAs} at ${moment(audit.resolvedAt)}` : 'no',
    ],
  ])}${attemptList(audit.errors)}${stackOf(audit.stack)}</section>`

export const jobForm: PageOf = async (parts, visit): Promise<Redirect> => {
  const id = field(visit, 'id')
  const what = pressed(visit, 'retry', 'remove', 'cancel')
  if (idRange(id) === undefined) throw new AppError('BAD_REQUEST', 'the id is malformed')
  const [found] = (await findJobs(parts.db, id)).filter(
    (one) => one.id === id || one.dead_id === id,
  )
  if (found === undefined) throw new AppError('NOT_FOUND', 'the job is gone')
  const subject = `job ${found.id} in ${found.queue}`
  const did = await act(parts, visit, { action: `jobs.${what}`, subject }, async () => {
    if (what === 'cancel') {
      const done = (await cancelJob(parts.db, found, cancelledCommand)) === 'cancelled'
      return {
        says: done ? 'cancelled' : 'it had finished, or failed for good, by then',
        done: Number(done),
      }
    }
    const move = what === 'retry' ? retryFailed : removeFailed
    const moved = await move(parts.db, { deadIds: found.dead_id ? [found.dead_id] : [] })
    const done = moved.length > 0
    const says = what === 'retry' ? 'retried' : 'removed'
    return { says: done ? says : 'it was gone already', done: moved.length }
  })
  return { to: link(`/console/jobs/${found.id}`, { did }) }
}
