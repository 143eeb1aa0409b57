// What several commands of `jobs` are asked with, and how a wrong word is answered: each says what would be right.

import { type QueueName, queues } from '../../domain/queues.ts'
import { Exit, known } from '../program.ts'

/** For the description of an argument. */
export const queueList = queues.map(({ name }) => name).join(', ')

export const jsonOption = {
  type: 'boolean',
  default: false,
  describe: 'one JSON document on stdout, and no questions',
} as const

export const queueOption = {
  type: 'string',
  requiresArg: true,
  describe: `only those of one queue (${queueList})`,
} as const

/** Text: yargs makes NaN of what is no number, and says nothing. */
export const maxOption = {
  type: 'string',
  default: '50',
  requiresArg: true,
  describe: 'how many at most',
} as const

/** @throws Exit 2 that lists the known */
export const queueNamed = (name: string | undefined): QueueName => known('queue', name, queues).name

/** @throws Exit 2 */
export function wholeNumber(option: string, given: string, least: number, most: number): number {
  const number = /^\d{1,9}$/.test(given) ? Number(given) : Number.NaN
  if (number >= least && number <= most) return number
  throw new Exit(
    'usage',
    `--${option} must be a whole number from ${least} to ${most} (it is ${JSON.stringify(given)})`,
  )
}

/** Above that a list is no list for people any more, nor one document for a program. */
export const maxMax = 10_000

/** @throws Exit 2 when one is no id, nor the beginning of one */
export function checkIds(ids: readonly string[], isId: (text: string) => boolean): void {
  const wrong = ids.filter((id) => !isId(id))
  if (wrong.length === 0) return
  const named = wrong.map((id) => JSON.stringify(id.slice(0, 80))).join(', ')
  throw new Exit(
    'usage',
    `${named} is no id of a job: it must be a UUID, or at least the first 8 characters of one`,
  )
}
