// The waiting rooms: who waits, who may buy, how fast people are let in, how long a newcomer would wait. To look at only:
// opening, pausing and the rate are the waiting room's own routes, which hold its store and Postgres together.

import { type RoomOverview, readRoomOverviews } from '../../../db/waitingRooms.ts'
import { estimateMinutes } from '../../../domain/admission.ts'
import { html, link, type Part } from './html.ts'
import { table } from './table.ts'
import type { ConsoleParts, PageOf } from './visit.ts'
import { badge, count, moment, type Tone } from './words.ts'

const roomsMax = 100

export const rooms: PageOf = async (parts, visit) => {
  const list = await readRoomOverviews(parts.db, roomsMax)
  const lengths = await lengthsOf(parts, list)
  const demo = `${parts.waitingroomUrl(visit)}/demo/waitingroom`
  return {
    title: 'Waiting rooms',
    live: html`<section class="card">${table({
      caption: 'Waiting rooms, the live ones first',
      columns: [
        { head: 'Match', wide: true },
        { head: 'State' },
        { head: 'Waiting', numeric: true },
        { head: 'Open windows', numeric: true },
        { head: 'Rate', numeric: true },
        { head: 'Let in lately', numeric: true },
        { head: 'Newest number', numeric: true },
        { head: 'Wait', numeric: true },
        { head: 'Opened' },
      ],
      rows: list.map((room) => ({
        key: room.matchId,
        cells: cells(room, lengths?.get(room.matchId), demo),
      })),
      empty: 'No event has a waiting room.',
    })}</section>
${lengths === undefined && html`<p class="notice warn">Redis does not answer: how many wait is not known.</p>`}`,
    still: html`<p class="soft">Stand in line as a buyer does: <a href="${demo}">the waiting room’s page</a>. Rooms are opened, paused and given their rate by <code>POST /api/v1/queue/{match}/open</code>, <code>/pause</code>, <code>/resume</code>, <code>/rate</code> of the waiting room, with X-Internal-Auth.</p>`,
  }
}

/** Undefined: Redis, which knows, does not answer. */
async function lengthsOf(
  { lengths, log }: ConsoleParts,
  list: readonly RoomOverview[],
): Promise<Map<string, number> | undefined> {
  const places = new Map(list.map(({ matchId, places }) => [matchId, places]))
  if (lengths === undefined || list.length === 0) return places
  try {
    const found = await lengths(list.map(({ matchId }) => matchId))
    return new Map([...places].map(([id, own]) => [id, Math.max(own, found.get(id) ?? 0)]))
  } catch (error) {
    log.debug({ err: error }, 'the lengths of queues cannot be read')
    return undefined
  }
}

function stateOf({ phase, status }: RoomOverview): [string, Tone] {
  if (status === 'closed') return ['closed', 'calm']
  if (phase !== 'open') return [phase, 'calm']
  return status === 'paused' ? ['paused', 'warn'] : ['open', 'good']
}

function cells(room: RoomOverview, waiting: number | undefined, demo: string): Part[] {
  const [word, tone] = stateOf(room)
  const { matchId, ratePerMinute, pacePerMinute, status } = room
  const minutes =
    waiting === undefined || status === 'closed'
      ? null
      : estimateMinutes(waiting + 1, status === 'paused' ? 0 : ratePerMinute, pacePerMinute)
  return [
    html`<a href="${link(demo, { match: matchId })}">${room.name}</a> <code class="soft beneath">${matchId}</code>`,
    html`${badge(word, tone)}${room.reason && html` <span class="soft">${room.reason}</span>`}`,
    waiting === undefined ? '–' : count(waiting),
    `${count(room.openWindows)} of ${count(room.capacity)}`,
    `${count(ratePerMinute)}/min`,
    `${count(Math.round(pacePerMinute))}/min`,
    count(room.lastSeat),
    minutes === null ? '–' : `${count(minutes)} min`,
    moment(room.openedAt),
  ]
}
