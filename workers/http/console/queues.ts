// The queues as they stand, with pause and resume, and the jobs of one of them by their state.

import { levelMax } from '../../../db/jobStats.ts'
import { type JobRow, type JobState, jobStates, listJobs } from '../../../db/operate.ts'
import { pauseQueue, resumeQueue } from '../../../db/pauses.ts'
import { AppError } from '../../../domain/errors.ts'
import { type QueueName, queues as queueList, queueOf } from '../../../domain/queues.ts'
import { act, field, pressed } from './act.ts'
import type { QueueFigures } from './figures.ts'
import { type Html, html, link, type Part } from './html.ts'
import { form } from './layout.ts'
import { sparkline } from './spark.ts'
import { table } from './table.ts'
import type { Page, PageOf, Redirect, Signed } from './visit.ts'
import { age, badge, count, countUpTo, moment, said, several, shortId } from './words.ts'

export const queues: PageOf = async ({ figures }, visit) => ({
  title: 'Queues',
  live: html`<section class="card">${queueTable(await figures.queues(), visit)}</section>
<p class="soft">Rates are those the workers tell of, over the last minute. A paused queue takes new jobs; nothing is claimed from it.</p>`,
})

export function queueTable(list: readonly QueueFigures[], visit: Signed): Html {
  return table({
    caption: 'Queues: what waits, what runs, what failed',
    columns: [
      { head: 'Queue', wide: true },
      { head: 'Ready', numeric: true },
      { head: 'Delayed', numeric: true },
      { head: 'Active', numeric: true },
      { head: 'Failed', numeric: true },
      { head: 'Oldest', numeric: true },
      { head: 'A minute', numeric: true },
      { head: 'Lately' },
      { head: 'State' },
    ],
    rows: list.map((row) => ({
      key: row.queue,
      ...(row.paused && { tone: 'warn' as const }),
      cells: [
        html`<a href="/console/queues/${encodeURIComponent(row.queue)}">${row.queue}</a> <span class="soft purpose">${queueOf(row.queue)?.purpose}</span>`,
        countUpTo(row.ready, levelMax),
        countUpTo(row.delayed, levelMax),
        count(row.active),
        row.failed === 0
          ? '0'
          : html`<a class="bad" href="${link('/console/failures', { queue: row.queue })}">${countUpTo(row.failed, levelMax)}</a>`,
        age(row.oldest_seconds),
        count(Math.round(row.perMinute)),
        picture(row),
        pauseForm(row, visit),
      ],
    })),
    empty: 'There is no queue.',
  })
}

function picture({ queue, lately, perMinute, ready, delayed }: QueueFigures): Part {
  const [values, what, now] = lately.perMinute.some((value) => value > 0)
    ? [lately.perMinute, 'settled a minute', Math.round(perMinute)]
    : [lately.waiting, 'waiting', ready + delayed]
  return sparkline(
    values,
    `${queue}, ${what}: now ${now}, at most ${Math.round(Math.max(...values))} lately`,
  )
}

function pauseForm({ queue, paused }: QueueFigures, visit: Signed): Html {
  const [word, verb] = paused ? ['resume', 'Resume'] : ['pause', 'Pause']
  const button = html`<button class="small" name="do" value="${word}">${verb}<span class="quiet"> ${queue}</span></button>`
  return html`<span class="inline">${paused ? badge('paused', 'warn') : badge('open', 'good')}${form(visit, 'queues/do', button, { queue })}</span>`
}

export const queueForm: PageOf = async (parts, visit): Promise<Redirect> => {
  const queue = queueNamed(field(visit, 'queue'))
  const pauses = pressed(visit, 'pause', 'resume') === 'pause'
  const action = pauses ? 'queue.pause' : 'queue.resume'
  const did = await act(parts, visit, { action, subject: queue }, async () => {
    const changed = await (pauses ? pauseQueue : resumeQueue)(parts.db, queue)
    const says = pauses
      ? changed
        ? `${queue} is paused: what is in hand is finished, the rest waits`
        : `${queue} was paused already`
      : changed
        ? `${queue} is resumed`
        : `${queue} was not paused`
    return { says, done: Number(changed) }
  })
  return { to: link('/console/queues', { did }) }
}

/** @throws AppError NOT_FOUND */
export function queueNamed(name: string): QueueName {
  const queue = queueOf(name)
  if (queue) return queue.name
  const known = queueList.map((one) => one.name).join(', ')
  throw new AppError('NOT_FOUND', `there is no queue of that name; there are ${known}`)
}

const jobsMax = 50

export const queue: PageOf = async ({ db }, visit, name): Promise<Page> => {
  const found = queueNamed(name)
  const state = jobStates.find((one) => one === visit.query.get('state')) ?? 'ready'
  const rows = await listJobs(db, found, state, jobsMax)
  const tabs = jobStates.map(
    (one) =>
      html`<li><a href="${link(`/console/queues/${encodeURIComponent(found)}`, { state: one })}" ${one === state && html`aria-current="page"`}>${one}</a></li>`,
  )
  return {
    title: `Queue ${found}`,
    // Not live: of a long queue it is a sort of all that waits.
    still: html`<nav class="tabs" aria-label="State of the jobs"><ul>${tabs}</ul></nav>
<section class="card">${jobTable(rows, state)}</section>
${rows.length === jobsMax && html`<p class="soft">${several(jobsMax, 'job')} are shown; there may be more.</p>`}`,
  }
}

function jobTable(rows: readonly JobRow[], state: JobState): Html {
  return table({
    caption: `Jobs that are ${state}`,
    columns: [
      { head: 'Job' },
      { head: 'Type' },
      { head: 'Attempts' },
      { head: 'Created' },
      { head: state === 'failed' ? 'Failed' : 'When' },
      { head: 'Last error', wide: true },
    ],
    rows: rows.map((row) => ({
      key: row.dead_id ?? row.id,
      cells: [
        jobLink(row),
        row.template ?? row.type ?? '–',
        `${row.attempts} of ${row.attempts_max}`,
        moment(row.created_at),
        moment(row.finished_at ?? row.started_at ?? row.due_at),
        row.error === null ? '' : said(row.error),
      ],
    })),
    empty: `No job of this queue is ${state}.`,
  })
}

/** By the id in the dead letter queue, where it lies in one: two jobs of one id are told apart. */
export const jobLink = ({ id, dead_id }: Pick<JobRow, 'id' | 'dead_id'>): Html =>
  html`<a href="/console/jobs/${dead_id ?? id}"><code>${shortId(id)}</code></a>`
