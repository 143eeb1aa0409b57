// The first page: what needs a person, the figures of the fleet, and its queues.

import { levelMax } from '../../../db/jobStats.ts'
import { readSourceStatus, type SourceStatus } from '../../../db/loaderSources.ts'
import { listActions } from '../../../db/operatorActions.ts'
import type { WorkerRow } from '../../../db/registry.ts'
import type { QueueFigures } from './figures.ts'
import { actionTable } from './history.ts'
import { type Html, html, link, type Part } from './html.ts'
import { queueTable } from './queues.ts'
import type { PageOf } from './visit.ts'
import { age, count, countUpTo, several } from './words.ts'

type Lag = { rows: number; seconds: number; horizonSeconds: number; aside: number }

export const overview: PageOf = async (parts, visit) => {
  const { db, figures } = parts
  const [queues, workers, outbox, sources, actions] = await Promise.all([
    figures.queues(),
    figures.workers(),
    figures.outbox(),
    readSourceStatus(db),
    listActions(db, 5, undefined),
  ])
  return {
    title: 'Overview',
    live: html`${attention(queues, workers, outbox, sources)}
${tiles(queues, workers, outbox)}
<section class="card"><h2>Queues</h2>${queueTable(queues, visit)}</section>
<section class="card"><h2>Events to the broker</h2>${relay(outbox)}</section>
<section class="card"><h2>Last changes from here</h2>${actionTable(actions)}
<p><a href="/console/history">All changes</a></p></section>`,
    still: html`<p class="soft">A place to stand in line as a buyer does: <a href="${parts.waitingroomUrl(visit)}/demo/waitingroom">the waiting room’s page</a>. The API describes itself at <a href="/docs">/docs</a>.</p>`,
  }
}

function attention(
  queues: readonly QueueFigures[],
  workers: readonly WorkerRow[],
  outbox: Lag,
  sources: readonly SourceStatus[],
): Html {
  const items: Part[] = []
  for (const { queue, failed, paused } of queues) {
    if (failed > 0) {
      items.push(
        html`<a href="${link('/console/failures', { queue })}">${countUpTo(failed, levelMax)} failed in ${queue}</a>`,
      )
    }
    if (paused) items.push(html`<a href="/console/queues">${queue} is paused</a>`)
  }
  const dead = workers.filter(({ alive }) => !alive)
  if (dead.length > 0) {
    items.push(
      html`<a href="/console/workers">${several(dead.length, 'worker')} died without a word within a day</a>`,
    )
  }
  if (!workers.some(({ alive }) => alive)) items.push('No worker is alive')
  if (outbox.aside > 0)
    items.push(
      `${several(outbox.aside, 'event')} set aside: the broker refused them, or one before them`,
    )
  if (outbox.seconds > 60)
    items.push(`The oldest event waits for the broker since ${age(outbox.seconds)}`)
  const bad = sources.filter(({ state }) => state === 'failing' || state === 'silent')
  if (bad.length > 0)
    items.push(
      html`<a href="/console/sources">${several(bad.length, 'source')} failing or silent</a>`,
    )
  if (items.length === 0) return html`<p class="notice good">Nothing needs you.</p>`
  return html`<section class="notice warn" aria-label="What needs you"><ul>${items.map((item) => html`<li>${item}</li>`)}</ul></section>`
}

function tiles(queues: readonly QueueFigures[], workers: readonly WorkerRow[], outbox: Lag): Html {
  const sum = (of: (row: QueueFigures) => number) => queues.reduce((all, row) => all + of(row), 0)
  const upTo = (of: (row: QueueFigures) => number) =>
    `${count(sum(of))}${queues.some((row) => of(row) >= levelMax) ? '+' : ''}`
  const alive = workers.filter((worker) => worker.alive).length
  const list: [string, Part, string][] = [
    ['Ready', upTo(({ ready }) => ready), '/console/queues'],
    ['Delayed', upTo(({ delayed }) => delayed), '/console/queues'],
    ['Active', count(sum(({ active }) => active)), '/console/queues'],
    ['Failed', upTo(({ failed }) => failed), '/console/failures'],
    ['A minute', count(Math.round(sum(({ perMinute }) => perMinute))), '/console/queues'],
    ['Workers alive', count(alive), '/console/workers'],
    ['Events to relay', count(outbox.rows), '/console'],
  ]
  return html`<ul class="tiles">${list.map(
    ([name, value, to]) =>
      html`<li><a href="${to}"><span class="figure">${value}</span> <span class="soft">${name}</span></a></li>`,
  )}</ul>`
}

function relay({ rows, seconds, horizonSeconds, aside }: Lag): Html {
  const parts = [
    rows === 0
      ? 'No event waits.'
      : `${several(rows, 'event')} wait, the oldest since ${age(seconds)}.`,
    aside === 0 ? 'None is set aside.' : `${several(aside, 'event')} set aside.`,
    horizonSeconds > 5 &&
      `A transaction open since ${age(horizonSeconds)} holds back what came after it.`,
  ]
  return html`<p>${parts.map((part) => html`${part} `)}</p>
<p class="soft">Events that were refused too often lie in the <a href="${link('/console/failures', { queue: 'outbox' })}">failures of outbox</a>.</p>`
}
