// Dead letters that people hear of: those of one queue together, the first at once and then a digest, no more often than
// asked for. Marked as noticed in the transaction that makes the alert, so each is told once, whoever looks.

import { sql } from 'kysely'
import { deadLetterOf } from '../domain/queues.ts'
import { sendAlerts } from './alerts.ts'
import type { Db, Tx } from './schema.ts'
import { transaction } from './transaction.ts'

export type Digest = {
  /** Between two alerts of one queue. */
  everySeconds: number
}

/**
 * Makes an alert for each queue that has dead letters nobody heard of and is not resting. @returns how many. By the index
 * job_audits_unnoticed: cheap while there are none.
 */
export async function noticeDeadLetters(db: Db, digest: Digest): Promise<number> {
  const { rows } = await sql<{ queue: string }>`
    select distinct queue from job_audits where noticed_at is null order by queue`.execute(db)
  let told = 0
  for (const { queue } of rows) {
    const isTold = await transaction(db, (tx) => notice(tx, queue, digest), {
      isolation: 'read committed',
    })
    if (isTold) told++
  }
  return told
}

async function notice(tx: Tx, queue: string, { everySeconds }: Digest): Promise<boolean> {
  // One at a time for a queue: the second finds that it was told just now.
  await sql`insert into dead_letter_notices (queue, told_at) values (${queue}, '-infinity')
    on conflict do nothing`.execute(tx)
  const { rows } = await sql<{ due: boolean }>`
    select told_at + ${everySeconds}::float8 * interval '1 s' <= clock_timestamp() as due
    from dead_letter_notices where queue = ${queue} for update`.execute(tx)
  if (!rows[0]?.due) return false
  const found = await takeUnnoticed(tx, queue)
  if (found.count === 0) return false
  await sql`update dead_letter_notices set told_at = clock_timestamp()
    where queue = ${queue}`.execute(tx)
  const at = found.at.toISOString()
  await sendAlerts(tx, [
    { type: 'NotifyDeadLetters', queue, count: found.count, error: found.error ?? '', at },
  ])
  return true
}

type Unnoticed = { count: number; error: string | null; at: Date }

/**
 * What a person has dealt with already is no news. A mail with an alert that could not be sent makes no further alert, which
 * would be sent as a mail; nor does an alert of alerts that Slack refused, which went to Slack.
 */
async function takeUnnoticed(tx: Tx, queue: string): Promise<Unnoticed> {
  const { rows } = await sql<Unnoticed>`
    with noticed as (
      update job_audits set noticed_at = clock_timestamp()
      where queue = ${queue} and noticed_at is null
      returning errors, created_at, resolved_at, dead_job_id
    ), news as (
      select n.errors, n.created_at from noticed n
      where n.resolved_at is null and not exists (
        select from pgboss.job d
        where d.name = ${deadLetterOf(queue)} and d.id = n.dead_job_id
          and (d.data->>'type' = 'email' and d.data->>'template' = 'alert'
            or d.data->>'type' = 'NotifyDeadLetters' and d.data->>'queue' = 'alert'))
    )
    select count(*)::int as count, max(created_at) as at,
      left((select errors from news order by created_at desc limit 1)->-1->>'message', 500) as error
    from news`.execute(tx)
  return rows[0] as Unnoticed
}
