// Jobs that were given up, by the hundred: as rows, where failing each through a worker would take long.

import { randomUUID } from 'node:crypto'
import { sql } from 'kysely'
import type { Moved } from '../db/redrive.ts'
import type { Db } from '../db/schema.ts'
import type { QueueName } from '../domain/queues.ts'

/** Each in its queue as failed, in the dead letter queue, and with an open audit row. */
export async function bury(
  db: Db,
  queue: QueueName,
  count: number,
  {
    ids = Array.from({ length: count }, () => randomUUID()),
    data = {} as object,
    error = 'no',
  } = {},
): Promise<Moved[]> {
  const dead = ids.map((id) => ({ id, queue, dead_id: randomUUID() }))
  const all = dead.map(({ id }) => id)
  const deadIds = dead.map(({ dead_id }) => dead_id)
  const output = JSON.stringify({ message: error, stack: `Error: ${error}\n    at somewhere` })
  await sql`
    with made as (
      insert into pgboss.job (id, name, data, state, retry_limit, retry_count, started_on,
        completed_on, dead_letter, output, expire_seconds, deletion_seconds, heartbeat_seconds)
      select l.id, q.name, ${JSON.stringify(data)}::jsonb, 'failed', q.retry_limit, q.retry_limit, now(), now(),
        q.dead_letter, ${output}::jsonb, q.expire_seconds, q.deletion_seconds, q.heartbeat_seconds
      from unnest(${all}::uuid[]) as l (id) join pgboss.queue q on q.name = ${queue}
      returning id, name, data, retry_count, created_on, output),
    dead as (
      insert into pgboss.job (id, name, data, source_name, source_id, source_created_on,
        source_retry_count, source_output, source_root_id)
      select l.dead_id, m.name || '.dead', m.data, m.name, m.id, m.created_on, m.retry_count,
        m.output, m.id
      from unnest(${all}::uuid[], ${deadIds}::uuid[]) as l (id, dead_id) join made m on m.id = l.id)
    insert into job_audits (id, job_id, dead_job_id, queue, type, attempts, errors, stack)
    select gen_random_uuid(), l.id, l.dead_id, ${queue}, null, 3,
      ${JSON.stringify([{ attempt: 3, failed_at: new Date().toISOString(), message: error }])}::jsonb,
      ${`Error: ${error}\n    at somewhere`}
    from unnest(${all}::uuid[], ${deadIds}::uuid[]) as l (id, dead_id)`.execute(db)
  return dead
}
