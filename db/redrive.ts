// What lies in the dead letter queues, retried or removed by an operator: some hundred a transaction, safe beside workers
// and beside another operator, for a row is locked before it is moved and gone for whoever comes second. A retried job
// is the job it was, with its id, and begins a fresh count of attempts; its audit row tells what went before.

import { type SqlBool, sql } from 'kysely'
import { v7 as uuidv7 } from 'uuid'
import type { StoredResponse } from '../domain/idempotency.ts'
import { deadLetterOf, type QueueName, queues } from '../domain/queues.ts'
import { resolveAudits } from './attempts.ts'
import { closeDeadCommands } from './commands.ts'
import { type IdRange, idRange } from './operate.ts'
import type { Db, Tx } from './schema.ts'
import { transaction } from './transaction.ts'
import { notifyQueues } from './wake.ts'

/** Which of them: those, or the oldest that died before `before`. Either at most `batchMax` at once. */
export type Chosen =
  | { deadIds: readonly string[] }
  | { queues: readonly QueueName[]; before: Date; batchMax: number }

export type Moved = { id: string; queue: QueueName; dead_id: string }

export type FailedCount = {
  queue: QueueName
  failed: number
  oldest_at: Date | null
  types: Record<string, number>
}

const deadNames = (names: readonly QueueName[]) => names.map(deadLetterOf)
const allQueues = queues.map(({ name }) => name)
const readCommitted = { isolation: 'read committed' } as const

/** How many wait in the dead letter queues, and the moment of asking: what fails later is not meant. */
export async function countFailed(
  db: Db,
  names: readonly QueueName[] = allQueues,
): Promise<{ failed: number; before: Date }> {
  const { rows } = await sql<{ failed: number; before: Date }>`
    select count(*)::int as failed, clock_timestamp() as before from pgboss.job
    where name = any(${deadNames(names)}) and state < 'active'`.execute(db)
  return rows[0] as { failed: number; before: Date }
}

/** One row a queue, in their order: how many failed, since when, and of which types. */
export async function readFailedCounts(
  db: Db,
  names: readonly QueueName[] = allQueues,
): Promise<FailedCount[]> {
  const { rows } = await sql<{ name: string; type: string; failed: number; oldest_at: Date }>`
    select name, coalesce(data->>'template', data->>'type', '-') as type, count(*)::int as failed,
      min(created_on) as oldest_at
    from pgboss.job where name = any(${deadNames(names)}) and state < 'active'
    group by 1, 2 order by 1, 3 desc, 2`.execute(db)
  return names.map((queue) => {
    const own = rows.filter(({ name }) => name === deadLetterOf(queue))
    const times = own.map(({ oldest_at }) => oldest_at.getTime())
    return {
      queue,
      failed: own.reduce((sum, { failed }) => sum + failed, 0),
      oldest_at: times.length === 0 ? null : new Date(Math.min(...times)),
      types: Object.fromEntries(own.map(({ type, failed }) => [type, failed])),
    }
  })
}

export type FoundFailed = {
  found: Moved[]
  /** Not among the failed. */
  unknown: string[]
  /** What several are meant by; of several under one id, their ids in the dead letter queues. */
  ambiguous: { given: string; ids: string[] }[]
}

/** Failed jobs by their id in the queue, their id in its dead letter queue, or the beginning of either. */
export async function findFailed(
  db: Db,
  given: readonly string[],
  names: readonly QueueName[] = allQueues,
): Promise<FoundFailed> {
  const ranges = new Map(given.map((text) => [text, idRange(text)]))
  const all = [...ranges.values()].filter((range) => range !== undefined)
  const whole = all.filter(({ first, last }) => first === last).map(({ first }) => first)
  const begun = all.filter(({ first, last }) => first !== last)
  // Of whole ids there may be thousands: Postgres hashes such a list. Beginnings are compared one by one.
  const { rows } = await sql<Moved>`
    select d.id as dead_id, coalesce(d.source_id, d.id) as id,
      coalesce(d.source_name, left(d.name, -length('.dead'))) as queue
    from pgboss.job d
    where d.name = any(${deadNames(names)}) and d.state < 'active' and (
      d.id = any(${whole}::uuid[]) or d.source_id = any(${whole}::uuid[]) or exists (
        select from unnest(${begun.map(({ first }) => first)}::uuid[],
          ${begun.map(({ last }) => last)}::uuid[]) as b (first, last)
        where d.id between b.first and b.last or d.source_id between b.first and b.last))`.execute(
    db,
  )
  const byId = new Map<string, Set<Moved>>()
  for (const row of rows) {
    for (const id of [row.id, row.dead_id]) byId.set(id, (byId.get(id) ?? new Set()).add(row))
  }
  const outcome: FoundFailed = { found: [], unknown: [], ambiguous: [] }
  const found = new Set<Moved>()
  for (const [text, range] of ranges) {
    const matches = range ? matching(byId, range) : []
    if (matches.length > 1) {
      const ids = matches.map(({ id }) => id)
      const isOne = new Set(ids).size < ids.length
      outcome.ambiguous.push({ given: text, ids: isOne ? matches.map((one) => one.dead_id) : ids })
    } else if (matches[0]) found.add(matches[0])
    else outcome.unknown.push(text)
  }
  outcome.found = [...found]
  return outcome
}

function matching(byId: ReadonlyMap<string, Set<Moved>>, { first, last }: IdRange): Moved[] {
  if (first === last) return [...(byId.get(first) ?? [])]
  const within = [...byId].filter(([id]) => id >= first && id <= last)
  return [...new Set(within.flatMap(([, rows]) => [...rows]))]
}

/** Gives failed jobs back to their queues, due now. @returns those that were still there; `id` is the one they run under */
export async function retryFailed(db: Db, chosen: Chosen): Promise<Moved[]> {
  const moved = await transaction(
    db,
    async (tx) => {
      const dead = await lockDead(tx, chosen)
      if (dead.length === 0) return []
      const revived = await reviveInPlace(tx, dead)
      const again = await insertAgain(
        tx,
        dead.filter(({ dead_id }) => !revived.has(dead_id)),
      )
      await forgetDead(tx, dead)
      await resolveAudits(
        tx,
        dead.map(({ dead_id }) => dead_id),
        'retried',
      )
      return dead.map((job) => ({ ...job, id: again.get(job.dead_id) ?? job.id }))
    },
    readCommitted,
  )
  // Lost, it costs the wait of one poll: what is committed is not undone for it.
  await notifyQueues(db, [...new Set(moved.map(({ queue }) => queue))]).catch(() => {})
  return moved
}

/**
 * Deletes failed jobs for good; their audit rows stay. What had asked for a command that nobody has answered yet gets
 * `answer`. @returns those that were still there
 */
export async function removeFailed(
  db: Db,
  chosen: Chosen,
  answer: StoredResponse,
): Promise<Moved[]> {
  return await transaction(
    db,
    async (tx) => {
      const dead = await lockDead(tx, chosen)
      if (dead.length === 0) return []
      const deadIds = dead.map(({ dead_id }) => dead_id)
      if (dead.some(({ queue }) => queue === 'commands')) {
        await closeDeadCommands(tx, answer, deadIds)
      }
      await forgetDead(tx, dead)
      await sql`
        delete from pgboss.job j using ${listOf(dead)}
        where j.name = l.queue and j.id = l.id and j.state = 'failed'`.execute(tx)
      await resolveAudits(tx, deadIds, 'removed')
      return dead
    },
    readCommitted,
  )
}

/**
 * Locks in the order of the ids. Named ones are waited for, so that each is told what became of it; of the rest, what
 * another operator has in hand is left to him. By the primary key, or by the index job_i15 (name, created_on).
 */
async function lockDead(tx: Tx, chosen: Chosen): Promise<Moved[]> {
  const columns = sql`id as dead_id, coalesce(source_id, id) as id,
    coalesce(source_name, left(name, -length('.dead'))) as queue`
  const { rows } =
    'deadIds' in chosen
      ? await sql<Moved>`
          select ${columns} from pgboss.job
          where name = any(${deadNames(allQueues)}) and id = any(${[...chosen.deadIds]}::uuid[])
            and ${waiting}
          order by pgboss.job.id for update`.execute(tx)
      : await sql<Moved>`
          select ${columns} from pgboss.job
          where name = any(${deadNames(chosen.queues)}) and created_on <= ${chosen.before}
            and ${waiting}
          order by created_on limit ${chosen.batchMax} for update skip locked`.execute(tx)
  return rows
}

/** Of a queue that is there: a job of one that was given up stays where it is. */
const waiting = sql<SqlBool>`state < 'active' and exists (
  select from pgboss.queue where queue.name = coalesce(source_name, left(job.name, -length('.dead'))))`

const listOf = (jobs: readonly Moved[]) => sql`
  unnest(${jobs.map((job) => job.dead_id)}::uuid[], ${jobs.map((job) => job.id)}::uuid[],
    ${jobs.map((job) => job.queue)}::text[]) as l (dead_id, id, queue)`

/** pg-boss keeps what failed in its queue for a day: that row is the job itself, and becomes due again. */
async function reviveInPlace(tx: Tx, dead: readonly Moved[]): Promise<Set<string>> {
  const { rows } = await sql<{ dead_id: string }>`
    update pgboss.job j set state = 'created', retry_count = 0, retry_limit = q.retry_limit,
      start_after = clock_timestamp(), started_on = null, completed_on = null, heartbeat_on = null,
      output = null, blocked = false, keep_until = clock_timestamp() + q.retention_seconds * interval '1 s'
    from ${listOf(dead)} join pgboss.queue q on q.name = l.queue
    where j.name = l.queue and j.id = l.id and j.state = 'failed'
    returning l.dead_id`.execute(tx)
  return new Set(rows.map(({ dead_id }) => dead_id))
}

/** Under its own id, or a new one when a later job has taken it. @returns the new ids by the dead ones' */
async function insertAgain(tx: Tx, dead: readonly Moved[]): Promise<Map<string, string>> {
  if (dead.length === 0) return new Map()
  const inserted = await insertAs(tx, dead)
  const others = dead
    .filter(({ dead_id }) => !inserted.has(dead_id))
    .map((job) => ({ ...job, id: uuidv7() }))
  if (others.length > 0) await insertAs(tx, others)
  return new Map(others.map(({ dead_id, id }) => [dead_id, id]))
}

async function insertAs(tx: Tx, jobs: readonly Moved[]): Promise<Set<string>> {
  const { rows } = await sql<{ id: string; name: string }>`
    insert into pgboss.job (id, name, data, priority, retry_limit, retry_backoff, retry_delay,
      retry_delay_max, expire_seconds, start_after, created_on, keep_until, deletion_seconds,
      policy, singleton_key, group_id, group_tier, heartbeat_seconds, dead_letter, source_root_id,
      trace_context)
    select l.id, l.queue, d.data, d.priority, q.retry_limit, q.retry_backoff, q.retry_delay,
      q.retry_delay_max, q.expire_seconds, clock_timestamp(),
      coalesce(d.source_created_on, d.created_on),
      clock_timestamp() + q.retention_seconds * interval '1 s', q.deletion_seconds,
      q.policy, d.singleton_key, d.group_id, d.group_tier, q.heartbeat_seconds, q.dead_letter,
      coalesce(d.source_root_id, d.source_id), d.trace_context
    from ${listOf(jobs)} join pgboss.queue q on q.name = l.queue
      join pgboss.job d on d.name = l.queue || '.dead' and d.id = l.dead_id
    where not exists (select from finished_jobs f where f.queue = l.queue and f.id = l.id)
      and not exists (select from claims c where c.queue = l.queue and l.id = any(c.ids))
    order by d.created_on
    on conflict do nothing returning id, name`.execute(tx)
  const made = new Set(rows.map(({ id, name }) => `${name} ${id}`))
  return new Set(
    jobs.filter(({ id, queue }) => made.has(`${queue} ${id}`)).map(({ dead_id }) => dead_id),
  )
}

async function forgetDead(tx: Tx, dead: readonly Moved[]): Promise<void> {
  await sql`
    delete from pgboss.job j using ${listOf(dead)}
    where j.name = l.queue || '.dead' and j.id = l.dead_id`.execute(tx)
}
