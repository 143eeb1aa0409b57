// What lies on a list as a job of its queue: the same decoders as the workers' own, so that what would be dead there is
// refused here. An item's job has the id that the item gives, so that one that is moved twice is one job; an item that
// gives none is known by its bytes.

import { createHash } from 'node:crypto'
import { v5 as uuidv5 } from 'uuid'
import type { NewJob } from '../../db/jobs.ts'
import { decodeEmailJob } from '../../domain/emails.ts'
import { decodePushJob } from '../../domain/pushes.ts'
import type { QueueName } from '../../domain/queues.ts'

export type ListQueue = Extract<QueueName, 'email' | 'push' | 'push:priority'>
export const listQueues: readonly ListQueue[] = ['email', 'push', 'push:priority']
export const listOf = (queue: ListQueue): string => `notification:${queue}`

const decoders: Readonly<Record<ListQueue, (data: unknown) => object>> = {
  email: decodeEmailJob,
  push: decodePushJob,
  'push:priority': decodePushJob,
}

const namespace = '3c1f6d4e-70a5-4f0c-9d5b-2f5a1f6f0c1e'
const isUuid = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i

/** The id of what has none of its own. */
export const idOfBytes = (item: Buffer): string =>
  uuidv5(createHash('sha256').update(item).digest('hex'), namespace)

/** @throws Error that says what is wrong with it; values are not in the message */
export function readItem(queue: ListQueue, item: Buffer): NewJob {
  const given = parse(item)
  const named = given.job_id === undefined ? { ...given, job_id: idOfBytes(item) } : given
  const created_at = given.created_at ?? new Date().toISOString()
  const data = decoders[queue]({ ...named, created_at }) as { job_id: string }
  // Postgres's JSON takes neither NUL nor half a character.
  if (/\\u(0000|d[89a-f])/i.test(JSON.stringify(data))) {
    throw new Error('it has a character that cannot be stored: NUL, or half of one')
  }
  const { job_id } = data
  return { id: isUuid.test(job_id) ? job_id.toLowerCase() : uuidv5(job_id, namespace), data }
}

function parse(item: Buffer): Record<string, unknown> {
  let value: unknown
  try {
    value = JSON.parse(item.toString('utf8'))
  } catch {
    // The parser's own words quote the text.
    throw new Error('it is not JSON')
  }
  if (typeof value === 'object' && value !== null && !Array.isArray(value)) {
    return value as Record<string, unknown>
  }
  throw new Error('it must be an object')
}
