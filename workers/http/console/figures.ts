// How the fleet stands, asked of the database at most once in two seconds however many people look, and what it was at
// the last looks, for the small pictures: kept in memory while somebody looks, and nowhere else.

import { countAsides } from '../../../db/aside.ts'
import { type HourCount, readFailedHours } from '../../../db/failedPages.ts'
import { type QueueStats, readQueueLevels } from '../../../db/jobStats.ts'
import { type OutboxLag, readOutboxLag } from '../../../db/outbox.ts'
import { readWorkers, type WorkerRow } from '../../../db/registry.ts'
import type { Db } from '../../../db/schema.ts'
import type { QueueName } from '../../../domain/queues.ts'

export type QueueFigures = QueueStats & {
  /** Settled a minute, as the workers that are alive say. */
  perMinute: number
  /** The latest last. */
  lately: { waiting: number[]; perMinute: number[] }
}

export type Figures = {
  queues(): Promise<QueueFigures[]>
  workers(): Promise<WorkerRow[]>
  outbox(): Promise<OutboxLag & { aside: number }>
  /** As db/failedPages.ts counts them. */
  failedHours(queues: readonly QueueName[], hours: number): Promise<HourCount[]>
  /** Something was changed from here: the next look is a fresh one. */
  forget(): void
}

const freshMs = 2000
/** At a look every four seconds: eight minutes. */
const samplesMax = 120

export function createFigures(db: Db): Figures {
  let readAt = Number.NEGATIVE_INFINITY
  const answers = new Map<string, Promise<unknown>>()

  /** All are forgotten together. */
  function seldom<T>(name: string, read: () => Promise<T>): () => Promise<T> {
    return () => {
      if (performance.now() - readAt > freshMs) {
        answers.clear()
        readAt = performance.now()
      }
      const answer = (answers.get(name) as Promise<T> | undefined) ?? read()
      answers.set(name, answer)
      return answer
    }
  }

  const workers = seldom('workers', () => readWorkers(db))
  const samples = new Map<string, { waiting: number[]; perMinute: number[] }>()

  async function read(): Promise<QueueFigures[]> {
    const [levels, alive] = await Promise.all([readQueueLevels(db), workers()])
    const rates = ratesOf(alive)
    return levels.map((level) => {
      const perMinute = rates.get(level.queue) ?? 0
      const lately = samples.get(level.queue) ?? { waiting: [], perMinute: [] }
      samples.set(level.queue, lately)
      keep(lately.waiting, level.ready + level.delayed)
      keep(lately.perMinute, perMinute)
      return { ...level, perMinute, lately }
    })
  }

  return {
    queues: seldom('queues', read),
    workers,
    outbox: seldom('outbox', async () => {
      const [lag, aside] = await Promise.all([readOutboxLag(db), countAsides(db)])
      return { ...lag, aside }
    }),
    failedHours: (queues, hours) =>
      seldom(`failed ${hours} ${queues}`, () => readFailedHours(db, queues, hours))(),
    forget: () => answers.clear(),
  }
}

function keep(values: number[], value: number): void {
  values.push(value)
  if (values.length > samplesMax) values.shift()
}

function ratesOf(workers: readonly WorkerRow[]): Map<string, number> {
  const rates = new Map<string, number>()
  for (const { alive, doing } of workers) {
    if (!alive) continue
    for (const [queue, { perSecond = 0 }] of Object.entries(doing.queues ?? {})) {
      rates.set(queue, (rates.get(queue) ?? 0) + perSecond * 60)
    }
  }
  return rates
}
