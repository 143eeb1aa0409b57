// The workers: where they run, since when, what they do, when they last showed a sign of life.

import type { WorkerRow } from '../../../db/registry.ts'
import { html, type Part } from './html.ts'
import { table } from './table.ts'
import type { PageOf } from './visit.ts'
import { ago, badge, count, megabytes } from './words.ts'

export const workers: PageOf = async ({ figures }) => {
  const rows = await figures.workers()
  const alive = rows.filter((row) => row.alive)
  return {
    title: 'Workers',
    live: html`<section class="card">${table({
      caption: `${alive.length} workers alive`,
      columns: [
        { head: 'Worker' },
        { head: 'State' },
        { head: 'Host' },
        { head: 'Pid', numeric: true },
        { head: 'Started' },
        { head: 'Last sign of life' },
        { head: 'Memory', numeric: true },
        { head: 'Version' },
        { head: 'Doing', wide: true },
      ],
      rows: rows.map((row) => ({
        key: row.id,
        ...(!row.alive && { tone: 'bad' as const }),
        cells: [
          row.name,
          row.alive ? badge('alive', 'good') : badge('died', 'bad'),
          row.host,
          String(row.pid),
          ago(row.startedAt),
          ago(row.seenAt),
          megabytes(row.doing.rssBytes),
          row.version ?? '–',
          doing(row),
        ],
      })),
      empty: 'No worker is known. Each shows itself within seconds of its start.',
    })}</section>
<p class="soft">A worker that ends in order leaves this list; one that died stays for a day.</p>`,
  }
}

function doing({ doing }: WorkerRow): Part {
  const queues = Object.entries(doing.queues ?? {})
  if (queues.length === 0) return '–'
  return html`<ul class="bare">${queues.map(
    ([queue, { active, handled, perSecond }]) =>
      html`<li>${queue}: ${count(active)} active, ${count(handled)} handled${perSecond ? `, ${perSecond.toFixed(1)}/s` : ''}</li>`,
  )}</ul>`
}
