// Works out whom an item is like, and puts it into the lists of those (db/neighbours.ts): the others are read and compared
// with no lock held, the lists are written in one short transaction. And the codes by which the near ones are found are
// made anew when the items have become many more.

import { type CodesRebuild, dueSpaces, rebuildCodes } from '../../db/itemCodes.ts'
import type { Jobs } from '../../db/jobs.ts'
import { findNearest, readSubject, removeNeighbour, writeNeighbours } from '../../db/neighbours.ts'
import type { Db } from '../../db/schema.ts'
import { decodeItemJob } from '../../domain/items.ts'
import { jobPass } from '../jobs.ts'
import type { Loop, Pass } from '../loop.ts'
import { everyMinute, scheduledLoop } from '../schedule.ts'
import type { Worker } from '../worker.ts'

export type SimilarOptions = {
  db: Db
  jobs: Jobs
  concurrency: number
  worker: Pick<Worker, 'log' | 'failed' | 'dying'>
  /** Lists that an item came into or left, its own not counted. */
  onLists?(change: 'entered' | 'left', count: number): void
}

export function similarPass({ db, jobs, concurrency, worker, onLists }: SimilarOptions): Pass {
  async function recompute(itemId: string): Promise<void> {
    const subject = await readSubject(db, itemId)
    if (subject === undefined) {
      const left = await removeNeighbour(db, itemId)
      onLists?.('left', left)
      return
    }
    const nearest = await findNearest(db, itemId, subject)
    const written = await writeNeighbours(db, itemId, subject, nearest)
    // Another job is on its way for what it is by now.
    if (written === 'stale') return
    onLists?.('entered', written.entered)
    onLists?.('left', written.left)
  }

  return jobPass({
    db,
    jobs,
    queue: 'similar',
    batchMax: concurrency,
    concurrency,
    worker,
    decode: decodeItemJob('RecomputeSimilar'),
    handle: (job) => recompute(job.data.item_id),
  })
}

/** One pass at a time, to be seen alive. */
const pieceMs = 5000

export function codesLoop({ db, worker }: Pick<SimilarOptions, 'db' | 'worker'>): Loop {
  let rebuild: CodesRebuild | undefined
  return scheduledLoop({
    db,
    name: 'item codes',
    schedule: everyMinute,
    async pass(signal) {
      if (rebuild === undefined) {
        const [spaceId] = await dueSpaces(db, false)
        if (spaceId === undefined) return 0
        worker.log.info({ space: spaceId }, 'makes the codes of the items anew')
        rebuild = rebuildCodes(db, spaceId)
      }
      const until = performance.now() + pieceMs
      while (!signal.aborted && performance.now() < until) {
        if (await rebuild.more()) continue
        worker.log.info({ items: rebuild.done() }, 'the codes of the items are made anew')
        rebuild = undefined
        break
      }
      return 1
    },
  })
}
