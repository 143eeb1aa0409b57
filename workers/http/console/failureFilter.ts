// Which failures are meant: those of a queue or of all, with some words in their error or whatever it says. As an address
// has it, as a form has it, and as the database is asked.

import type { FailedFilter } from '../../../db/failedPages.ts'
import { AppError } from '../../../domain/errors.ts'
import { type QueueName, queues } from '../../../domain/queues.ts'
import { link } from './html.ts'
import { queueNamed } from './queues.ts'

export const textMax = 200

export type Chosen = { queue: QueueName | undefined; text: string }

/** What is looked for, of an address or of a form. @throws AppError */
export function chosenIn(given: URLSearchParams): Chosen {
  const queue = given.get('queue') || undefined
  const text = (given.get('text') ?? '').trim()
  if (text.length > textMax || text.includes('\0')) {
    throw new AppError('BAD_REQUEST', `look for at most ${textMax} characters of an error`)
  }
  return { queue: queue ? queueNamed(queue) : undefined, text }
}

export const filterOf = ({ queue, text }: Chosen): FailedFilter => ({
  queues: queue ? [queue] : queues.map(({ name }) => name),
  ...(text && { text }),
})

export const pathOf = ({ queue, text }: Chosen, more: Record<string, string | undefined> = {}) =>
  link('/console/failures', { queue, text, ...more })
