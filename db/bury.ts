// The end of what never was a job: an event that its broker refused, a message that nobody can read. It comes to lie in
// the dead letter queue of `queue` as a failed job would, with its history and its audit row, where `jobs failed:*`
// shows, retries and removes it.

import { sql } from 'kysely'
import { v7 as uuidv7 } from 'uuid'
import { deadLetterOf, type QueueName } from '../domain/queues.ts'
import {
  type AttemptKey,
  type Audit,
  describeFailure,
  writeAttempt,
  writeAudit,
} from './attempts.ts'
import { typeOf } from './failures.ts'
import type { Tx } from './schema.ts'

export type Burial = Omit<AttemptKey, 'queue'> & { queue: QueueName; data: object }

/**
 * In the transaction that lets go of it. @returns undefined when it lies there already: once is enough
 */
export async function buryNew(
  tx: Tx,
  { jobId, queue, attempt, data }: Burial,
  error: Error,
): Promise<Audit | undefined> {
  // The same at the same time waits here, and finds it below.
  await sql`select pg_advisory_xact_lock(hashtext('bury'), hashtext(${jobId}))`.execute(tx)
  // By job_i12 (source_root_id).
  const { rows } = await sql<{ id: string }>`
    insert into pgboss.job (id, name, data, retry_limit, keep_until, deletion_seconds, policy,
      source_id, source_root_id, source_name, source_created_on, source_retry_count, source_output)
    select ${uuidv7()}, q.name, ${JSON.stringify(data)}::jsonb, 0,
      clock_timestamp() + q.retention_seconds * interval '1 s', q.deletion_seconds, q.policy,
      ${jobId}, ${jobId}, ${queue}, clock_timestamp(), ${attempt - 1},
      ${JSON.stringify(describeFailure(error))}::jsonb
    from pgboss.queue q where q.name = ${deadLetterOf(queue)} and not exists (
      select from pgboss.job d where d.name = q.name and d.source_root_id = ${jobId} and d.state < 'active')
    returning id`.execute(tx)
  const [dead] = rows
  if (dead === undefined) return undefined
  await writeAttempt(tx, { jobId, queue, attempt }, 'hopeless', error)
  return await writeAudit(tx, { jobId, queue, attempt }, dead.id, typeOf(data))
}
