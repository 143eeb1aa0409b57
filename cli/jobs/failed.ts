// What failed:retry and failed:remove share: which jobs are meant, the work in batches with its progress, and the words
// and the exit code at the end.

import { idRange } from '../../db/operate.ts'
import { readPaused } from '../../db/pauses.ts'
import { type Chosen, countFailed, findFailed, type Moved } from '../../db/redrive.ts'
import type { Db } from '../../db/schema.ts'
import { type QueueName, queues } from '../../domain/queues.ts'
import { type Context, Exit, givenOnce } from '../program.ts'
import { checkIds, queueNamed } from './options.ts'

/** Rows a transaction: its locks are short, and progress is seen. */
export const batchMax = 500

export type Given = { id: string[]; queue?: string; all: boolean; force: boolean; json: boolean }

export type Asked = { ids: string[]; queue: QueueName | undefined; names: QueueName[] }

/** @throws Exit 2 */
export function checkGiven(given: Given): Asked {
  const ids = given.id.map(String)
  checkIds(ids, (text) => idRange(text) !== undefined)
  if (ids.length > 0 && given.all) {
    throw new Exit('usage', 'ids and --all do not go together: leave one out')
  }
  const queue = given.queue === undefined ? undefined : queueNamed(givenOnce('queue', given.queue))
  return { ids, queue, names: queue ? [queue] : queues.map(({ name }) => name) }
}

export type Outcome = { moved: Moved[]; unknown: string[] }
type Move = (db: Db, chosen: Chosen) => Promise<Moved[]>

/** Those that are named, whatever else is unknown. @throws Exit 2 when an id is that of several */
export async function moveNamed(
  context: Context,
  db: Db,
  { ids, names }: Asked,
  doing: string,
  move: Move,
): Promise<Outcome> {
  const { found, unknown, ambiguous } = await findFailed(db, ids, names)
  const [first] = ambiguous
  if (first) {
    throw new Exit('usage', `${first.given} may mean ${first.ids.join(', ')}: give one of these`)
  }
  const moved: Moved[] = []
  for (let at = 0; at < found.length; at += batchMax) {
    const deadIds = found.slice(at, at + batchMax).map(({ dead_id }) => dead_id)
    moved.push(...(await move(db, { deadIds })))
    progress(context, doing, moved.length, found.length)
  }
  const there = new Set(moved.map(({ dead_id }) => dead_id))
  // Somebody else was faster.
  const lost = found.filter(({ dead_id }) => !there.has(dead_id)).map(({ id }) => id)
  return { moved, unknown: [...unknown, ...lost] }
}

/** All that had failed when it began: one that fails again meanwhile is not taken twice. */
export async function moveAll(
  context: Context,
  db: Db,
  { names }: Asked,
  doing: string,
  move: Move,
): Promise<Outcome> {
  const { failed, before } = await countFailed(db, names)
  const moved: Moved[] = []
  for (;;) {
    const batch = await move(db, { queues: names, before, batchMax })
    if (batch.length === 0) return { moved, unknown: [] }
    moved.push(...batch)
    progress(context, doing, moved.length, failed)
  }
}

function progress({ terminal }: Context, doing: string, done: number, all: number): void {
  terminal?.show(all > batchMax ? `${doing} ${done} of ${Math.max(done, all)}` : '')
}

/** Says what was done. @throws Exit 3 when something was not there */
export async function tellOutcome(
  { say, warn, terminal }: Context,
  db: Db,
  did: 'retried' | 'removed',
  { moved, unknown }: Outcome,
  json: boolean,
): Promise<void> {
  terminal?.show('')
  const paused = did === 'retried' ? await pausedAmong(db, moved) : []
  if (json) {
    const document = {
      [did]: moved.length,
      jobs: moved,
      unknown,
      ...(did === 'retried' && { paused }),
    }
    say(JSON.stringify(document, null, 2))
  } else if (moved.length > 0) {
    const counts = [...Map.groupBy(moved, ({ queue }) => queue)]
    const where = counts.map(([queue, jobs]) => `${jobs.length} in ${queue}`).join(', ')
    const [only] = moved
    say(
      moved.length === 1 && only
        ? `${did} ${only.id} in ${only.queue}`
        : `${did} ${moved.length} jobs: ${where}`,
    )
    for (const queue of paused) warn(`${queue} is paused: they wait until it is resumed`)
  }
  if (unknown.length > 0) {
    const some = unknown.slice(0, 20).join(', ')
    const more = unknown.length > 20 ? ` and ${unknown.length - 20} more` : ''
    throw new Exit('nothing', `not among the failed jobs: ${some}${more}`)
  }
  if (moved.length === 0) throw new Exit('nothing', 'no failed job')
}

async function pausedAmong(db: Db, moved: readonly Moved[]): Promise<string[]> {
  const paused = await readPaused(db)
  return [...new Set(moved.map(({ queue }) => queue))].filter((queue) => paused.has(queue))
}
