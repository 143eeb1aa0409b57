// What was given up and why: a page of failures with their attempts, found by queue and by words of their error. The list
// stays as it is until it is loaded again, so that nothing moves under the hand of whoever chooses; what is new is told.

import { readAudits } from '../../../db/attempts.ts'
import {
  type FailedPlace,
  type HourCount,
  lookFailed,
  readErrorGroups,
} from '../../../db/failedPages.ts'
import { levelMax } from '../../../db/jobStats.ts'
import { readFailed } from '../../../db/operate.ts'
import type { QueueName } from '../../../domain/queues.ts'
import { type Chosen, chosenIn, filterOf } from './failureFilter.ts'
import { type FailurePage, filterForm, groupList, list } from './failureList.ts'
import { type Html, html } from './html.ts'
import { bars } from './spark.ts'
import type { ConsoleParts, PageOf } from './visit.ts'
import { count, several } from './words.ts'

export const pageMax = 50
/** Rows a search for words looks at for one page. */
const searchMax = 20_000
/** Of the latest failures, told by how their errors begin. */
const groupedMax = 2000
const hoursShown = 24

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

async function summaryOf({ figures }: ConsoleParts, chosen: Chosen): Promise<Html> {
  const { queues: names } = filterOf(chosen)
  const [all, hours] = await Promise.all([figures.queues(), figures.failedHours(names, hoursShown)])
  const rows = all.filter(({ queue }) => names.includes(queue as QueueName))
  const failed = rows.reduce((sum, row) => sum + row.failed, 0)
  const isMore = rows.some((row) => row.failed >= levelMax)
  const where = chosen.queue ? `in ${chosen.queue}` : 'in all queues'
  return html`<section class="card summary">
<p><span class="figure">${count(failed)}${isMore && '+'}</span> failed ${where}</p>
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
  const [, us, id] =
    /^(\d{1,16})\.([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})$/.exec(text ?? '') ?? []
  return us !== undefined && id !== undefined ? { us, id } : undefined
}
