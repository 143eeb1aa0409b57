// Retries or removes all failures that a filter finds, the oldest first, in the background of this process: some hundred
// a transaction, by the same functions as `jobs failed:retry`, with its progress in its action's row. What fails after it
// began is not meant. A process that ends leaves it stopped where it was, for anybody to go on with.

import { setTimeout as sleep } from 'node:timers/promises'
import type { FastifyBaseLogger } from 'fastify'
import { type FailedPlace, lookFailed } from '../../../db/failedPages.ts'
import { endAction, noteProgress, type OperatorAction } from '../../../db/operatorActions.ts'
import { retryFailed } from '../../../db/redrive.ts'
import type { Db } from '../../../db/schema.ts'
import type { QueueName } from '../../../domain/queues.ts'
import { removeFailed } from '../../removeFailed.ts'

/** Rows a transaction: its locks are short, and progress is seen. */
export const batchMax = 500
/** A search for words looks at more to find as many. */
const searchMax = 2000
const triesMax = 6

/** What an action's `detail` says of it. */
export type BulkDetail = { queues: QueueName[]; text: string; until: string }

export type Bulk = {
  /** Goes on from the action's cursor. The action runs already. */
  start(action: Pick<OperatorAction, 'id' | 'action' | 'detail' | 'cursor'>): void
  /** Stops at the end of the batch in hand. */
  close(): Promise<void>
}

export const bulkActions = { 'jobs.retry': retryFailed, 'jobs.remove': removeFailed } as const

export function createBulk({ db, log }: { db: Db; log: FastifyBaseLogger }): Bulk {
  const ending = new AbortController()
  const running = new Set<Promise<void>>()

  type Work = Pick<OperatorAction, 'id' | 'action' | 'detail' | 'cursor'>

  /** Moves `work.cursor` on with each batch. */
  async function run(work: Work): Promise<void> {
    const { id } = work
    const move = bulkActions[work.action as keyof typeof bulkActions]
    const { queues, text, until } = work.detail as BulkDetail
    const lookMax = text ? searchMax : batchMax
    while (!ending.signal.aborted) {
      const look = { direction: 'newer', from: toPlace(work.cursor), until } as const
      const looked = await lookFailed(db, { queues, text }, { ...look, lookMax, max: lookMax })
      if (looked.last === undefined) return await endAction(db, id, 'done', 'all that matched')
      let done = 0
      for (let at = 0; at < looked.found.length; at += batchMax) {
        const deadIds = looked.found.slice(at, at + batchMax).map((place) => place.id)
        done += (await move(db, { deadIds })).length
      }
      work.cursor = `${looked.last.us} ${looked.last.id}`
      const progress = { looked: looked.looked, done, cursor: work.cursor }
      if (!(await noteProgress(db, id, progress))) return
    }
    await endAction(db, id, 'stopped', 'its process ended')
  }

  /** A database that comes back is gone on with: what was moved is not found again. */
  async function runOn(work: Work, tries = 1): Promise<void> {
    try {
      await run(work)
    } catch (error) {
      log.warn({ err: error, action: work.id }, 'a bulk change of the console met an error')
      if (tries >= triesMax || ending.signal.aborted) {
        const outcome = 'an error stopped it; the log of the http worker has it'
        return await endAction(db, work.id, 'stopped', outcome).catch(() => {})
      }
      await sleep(250 * 2 ** tries, undefined, { signal: ending.signal }).catch(() => {})
      await runOn(work, tries + 1)
    }
  }

  return {
    start(action) {
      const work = runOn({ ...action }).finally(() => running.delete(work))
      running.add(work)
    },
    async close() {
      ending.abort()
      await Promise.all(running)
    },
  }
}

function toPlace(cursor: string | null): FailedPlace | undefined {
  const [us, id] = cursor?.split(' ') ?? []
  return us && id ? { us, id } : undefined
}
