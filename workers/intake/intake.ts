// Moves what other systems push on Redis lists into the job table: a batch in one transaction (kind a), and off the list
// only after its commit. Whenever it is killed, nothing is lost and nothing is there twice. What cannot be read lies in
// the queue's dead letter queue with its bytes, and holds up nothing.

import type { Audit } from '../../db/attempts.ts'
import { buryNew } from '../../db/bury.ts'
import type { Jobs, NewJob } from '../../db/jobs.ts'
import type { Db } from '../../db/schema.ts'
import { CommitUnknown, isConnectionLost, transaction } from '../../db/transaction.ts'
import type { IntakeList } from '../../redis/lists.ts'
import type { Loop, Pass } from '../loop.ts'
import { keptOf } from '../unread.ts'
import type { Worker } from '../worker.ts'
import { idOfBytes, type ListQueue, readItem } from './items.ts'

export type IntakeOptions = {
  db: Db
  jobs: Jobs
  queue: ListQueue
  list: IntakeList
  batchMax: number
  worker: Pick<Worker, 'log' | 'failed'>
  onMoved?(queue: ListQueue, as: 'moved' | 'malformed', count: number): void
}

type Item = { bytes: Buffer; job: NewJob } | { bytes: Buffer; why: Error }

/** How long an idle pass listens. */
const listenMs = 1000
const readCommitted = { isolation: 'read committed' } as const

export function intakePass(options: IntakeOptions): Pass {
  const { db, jobs, queue, list, batchMax, worker, onMoved } = options

  async function store(items: readonly Item[]): Promise<void> {
    if (items.length === 0) return
    try {
      const audits = await transaction(db, (tx) => write(tx, items), readCommitted)
      const unread = items.filter((item) => 'why' in item).length
      onMoved?.(queue, 'moved', items.length - unread)
      onMoved?.(queue, 'malformed', unread)
      if (unread > 0) worker.failed(unread)
      audits.forEach(tellBuried)
    } catch (error) {
      // They stay where they are, and are taken again.
      if (isConnectionLost(error) || error instanceof CommitUnknown) throw error
      const [first] = items as [Item]
      if (items.length > 1) {
        const half = items.length >> 1
        await store(items.slice(0, half))
        return await store(items.slice(half))
      }
      if ('why' in first) throw error
      await store([
        { bytes: first.bytes, why: new Error('the job table refuses it', { cause: error }) },
      ])
    }
  }

  async function write(
    tx: Parameters<Parameters<typeof transaction>[1]>[0],
    items: readonly Item[],
  ): Promise<Audit[]> {
    await jobs.send(
      tx,
      queue,
      items.flatMap((item) => ('job' in item ? [item.job] : [])),
    )
    const audits: Audit[] = []
    for (const item of items) {
      if (!('why' in item)) continue
      const { bytes, why } = item
      const burial = { jobId: idOfBytes(bytes), queue, attempt: 1, data: keptOf(bytes) }
      const audit = await buryNew(tx, burial, why)
      if (audit) audits.push(audit)
    }
    return audits
  }

  function tellBuried({ code, jobId, queue, type, attempts, errors }: Audit): void {
    const told = { code, job_id: jobId, queue, type, attempts, error: errors.at(-1)?.message }
    worker.log.error(told, 'an item cannot be read: it lies in the dead letter queue')
  }

  return async (signal, handledMax) => {
    if (signal.aborted) return 0
    const taken = await list.take(Math.min(batchMax, handledMax), listenMs)
    await store(taken.map((bytes) => read(queue, bytes)))
    await list.done(taken.length)
    return taken.length
  }
}

function read(queue: ListQueue, bytes: Buffer): Item {
  try {
    return { bytes, job: readItem(queue, bytes) }
  } catch (cause) {
    return { bytes, why: new Error(`the item cannot be read: ${(cause as Error).message}`) }
  }
}

/** Three signs are missed before anybody takes this one for dead (`lifeMs` of redis/lists.ts). */
const aliveMs = 5000

/** Says that this instance lives, and gives back what silent ones have in hand. */
export function aliveLoop(lists: readonly IntakeList[], { log }: Pick<Worker, 'log'>): Loop {
  const pass: Pass = async () => {
    let found = 0
    for (const list of lists) {
      await list.showLife()
      found += await list.recover()
    }
    if (found > 0) log.warn({ items: found }, 'gave back what an instance that died had in hand')
    return 0
  }
  return { name: 'intake alive', pass, idleMs: aliveMs, upkeep: true }
}
