// The job table as an operator reads and changes it: jobs of any state by id or by queue, and their cancellation. Jobs
// that wait are in pg-boss's table, those in hand in claims, those that are done in finished_jobs. What lies in the dead
// letter queues is shown here and retried or removed by db/redrive.ts. Every id that a person may have seen is
// understood: the one in the queue, the one in its dead letter queue, and the beginning of either.

import { type SqlBool, sql } from 'kysely'
import type { StoredResponse } from '../domain/idempotency.ts'
import { allQueueNames, deadLetterOf, type QueueName, queues } from '../domain/queues.ts'
import { type Audit, readAudits } from './attempts.ts'
import { closeCommandOf } from './commands.ts'
import { pgbossSchemaVersion } from './jobTable.ts'
import type { Db, Tx } from './schema.ts'
import { transaction } from './transaction.ts'
import { heldWord, notifyQueues } from './wake.ts'

export const jobStates = ['ready', 'delayed', 'active', 'failed', 'finished'] as const
export type JobState = (typeof jobStates)[number]

/** A job; one that failed is in the dead letter queue, and shown as the job it was. */
export type JobRow = {
  id: string
  queue: QueueName
  /** Completed and cancelled ones are `finished`; so is one that failed and was removed from the dead letter queue. */
  state: JobState
  /** Where pg-boss has it: created, retry, active, completed, cancelled, failed. */
  raw_state: string
  /** Its id in the dead letter queue. */
  dead_id: string | null
  type: string | null
  template: string | null
  attempts: number
  attempts_max: number
  priority: number
  created_at: Date
  due_at: Date
  started_at: Date | null
  finished_at: Date | null
  /** Of the last attempt that failed. */
  error: string | null
}

export type JobDetail = JobRow & {
  data: unknown
  heartbeat_at: Date | null
  last_stack: string | null
}

const deadNames = queues.map(({ name }) => deadLetterOf(name))
const allNames = [...allQueueNames]

const noSource = sql`null::text as source_name, null::uuid as source_id,
  null::timestamptz as source_created_on, null::int as source_retry_count,
  null::jsonb as source_output, null::jsonb as output`

/** A row of either queue as the job it is; `d`: it lies in a dead letter queue. */
const columns = sql`
  case when d.dead then coalesce(j.source_id, j.id) else j.id end as id,
  case when d.dead then coalesce(j.source_name, left(j.name, -length('.dead'))) else j.name end
    as queue,
  case when d.dead then 'failed' when j.state >= 'completed' then 'finished'
    when j.state = 'active' then 'active'
    when j.start_after > clock_timestamp() then 'delayed' else 'ready' end as state,
  case when d.dead then 'failed' else j.state::text end as raw_state,
  case when d.dead then j.id end as dead_id,
  j.data->>'type' as type, j.data->>'template' as template,
  case when d.dead then coalesce(j.source_retry_count, 0) + 1
    else j.retry_count + (j.started_on is not null)::int end as attempts,
  case when d.dead then coalesce(j.source_retry_count, 0) else j.retry_limit end + 1
    as attempts_max,
  j.priority,
  case when d.dead then coalesce(j.source_created_on, j.created_on) else j.created_on end
    as created_at,
  j.start_after as due_at, j.started_on as started_at,
  case when d.dead then j.created_on else j.completed_on end as finished_at,
  ${messageOf(sql`o.output`)} as error`

/** Jobs in hand and finished ones as rows of pg-boss's table. */
const sources = {
  queued: sql`pgboss.job`,
  inHand: sql`(
    select h.queue as name, (case when h.done then 'completed' else 'active' end)::pgboss.job_state
      as state, h.created_on as start_after, case when h.done then h.heartbeat_on end as completed_on,
      h.*, ${noSource} from jobs_in_hand(${allNames}) h)`,
  finished: sql`(
    select f.queue as name, 'completed'::pgboss.job_state as state, f.id, f.data,
      f.attempts - 1 as retry_count, f.attempts_max - 1 as retry_limit, f.priority,
      f.created_at as created_on, f.created_at as start_after, f.started_at as started_on,
      f.finished_at as completed_on, null::timestamptz as heartbeat_on, ${noSource}
    from finished_jobs f)`,
}
type Source = keyof typeof sources

const from = (source: Source) => sql`
  ${sources[source]} j
  cross join lateral (select j.name = any(${deadNames}) as dead) d
  cross join lateral (
    select case when d.dead then coalesce(j.source_output, j.output)
      when j.state <> 'completed' then j.output end as output) o`

/** pg-boss keeps what is no object as {value}. */
function messageOf(output: ReturnType<typeof sql>) {
  return sql<string | null>`coalesce(${output}->>'message', ${output}->>'value', ${output}#>>'{}')`
}

/** At most `max` jobs of a queue: waiting ones in the order they will run, others the latest first. */
export async function listJobs(
  db: Db,
  queue: QueueName,
  state: JobState | undefined,
  max: number,
): Promise<JobRow[]> {
  if (state === undefined) {
    const lists = await Promise.all(jobStates.map((one) => listJobs(db, queue, one, max)))
    return lists.flat().slice(0, max)
  }
  const lists = await Promise.all(
    sourcesOf[state].map((source) => list(db, source, queue, state, max)),
  )
  return lists.flat().sort(byOrder[state]).slice(0, max)
}

const sourcesOf: Record<JobState, Source[]> = {
  ready: ['queued'],
  delayed: ['queued'],
  active: ['queued', 'inHand'],
  failed: ['queued'],
  finished: ['queued', 'inHand', 'finished'],
}

async function list(db: Db, source: Source, queue: QueueName, state: JobState, max: number) {
  const { rows } = await sql<JobRow>`
    select ${columns} from ${from(source)}
    where j.name = ${state === 'failed' ? deadLetterOf(queue) : queue} and ${inState[state]}
    order by ${orders[state]}, j.id limit ${max}`.execute(db)
  return rows
}

const asTheyCome = () => 0

/** What several sources list, as `orders` has it. */
const byOrder: Record<JobState, (a: JobRow, b: JobRow) => number> = {
  ready: asTheyCome,
  delayed: asTheyCome,
  active: (a, b) => Number(a.started_at) - Number(b.started_at),
  failed: asTheyCome,
  finished: (a, b) => Number(b.finished_at) - Number(a.finished_at),
}

/** At most `max` jobs of the dead letter queues, the latest first. By the index job_i15 (name, created_on). */
export async function listFailed(
  db: Db,
  names: readonly QueueName[],
  max: number,
): Promise<JobRow[]> {
  const { rows } = await sql<JobRow>`
    select ${columns} from ${from('queued')}
    where j.name = any(${names.map(deadLetterOf)}) and ${inState.failed}
    order by ${orders.failed}, j.id limit ${max}`.execute(db)
  return rows
}

/** Those of the dead letter queues with these ids there, the latest first. By the primary key. */
export async function readFailed(db: Db, deadIds: readonly string[]): Promise<JobRow[]> {
  const { rows } = await sql<JobRow>`
    select ${columns} from ${from('queued')}
    where j.name = any(${deadNames}) and j.id = any(${[...deadIds]}::uuid[]) and ${inState.failed}
    order by ${orders.failed}, j.id desc`.execute(db)
  return rows
}

const inState: Record<JobState, ReturnType<typeof sql<SqlBool>>> = {
  ready: sql`j.state < 'active' and j.start_after <= clock_timestamp()`,
  delayed: sql`j.state < 'active' and j.start_after > clock_timestamp()`,
  active: sql`j.state = 'active'`,
  failed: sql`j.state < 'active'`,
  finished: sql`j.state >= 'completed' and not (j.state = 'failed' and exists (
    select from pgboss.job dead where dead.name = j.name || '.dead' and dead.source_id = j.id))`,
}

const orders: Record<JobState, ReturnType<typeof sql>> = {
  ready: sql`j.priority desc, j.created_on`,
  delayed: sql`j.start_after`,
  active: sql`j.started_on`,
  failed: sql`j.created_on desc`,
  finished: sql`j.completed_on desc`,
}

export type IdRange = { first: string; last: string }

/** A whole UUID, or its first 8 characters and more, as the first and the last id it may mean; undefined: neither. */
export function idRange(text: string): IdRange | undefined {
  const digits = text.toLowerCase().replaceAll('-', '')
  if (!/^[0-9a-f]{8,32}$/.test(digits)) return undefined
  return { first: toUuid(digits.padEnd(32, '0')), last: toUuid(digits.padEnd(32, 'f')) }
}

const toUuid = (digits: string): string =>
  digits.replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, '$1-$2-$3-$4-$5')

/** The major version of the server. */
export async function serverVersion(db: Db): Promise<number> {
  const { rows } = await sql<{ major: number }>`
    select current_setting('server_version_num')::int / 10000 as major`.execute(db)
  return rows[0]?.major ?? 0
}

/** How the job table stands to this code; changes nothing. */
export async function readJobTable(
  db: Db,
): Promise<{ version: number | null; wants: number; missing: string[] }> {
  const wants = pgbossSchemaVersion
  const { rows } = await sql<{ found: boolean }>`
    select to_regclass('pgboss.version') is not null as found`.execute(db)
  if (!rows[0]?.found) return { version: null, wants, missing: allNames }
  const versions = await sql<{ version: number }>`select version from pgboss.version`.execute(db)
  const made = await sql<{ name: string; dead_letter: string | null }>`
    select name, dead_letter from pgboss.queue`.execute(db)
  const deadOf = new Map(made.rows.map((row) => [row.name, row.dead_letter]))
  const missing = queues.flatMap(({ name }) => {
    const dead = deadLetterOf(name)
    const isWired = deadOf.get(name) === dead
    return [...(isWired ? [] : [name]), ...(deadOf.has(dead) ? [] : [dead])]
  })
  return { version: versions.rows[0]?.version ?? null, wants, missing }
}

const matchesMax = 10

/** The jobs that an id or the beginning of one means, the latest first, 10 at most. By the primary key (name, id). */
export async function findJobs(db: Db, text: string): Promise<JobDetail[]> {
  const range = idRange(text)
  if (range === undefined) return []
  const found = await Promise.all(
    (['queued', 'inHand', 'finished'] as const).map((source) => findIn(db, source, range)),
  )
  const latest = (a: JobDetail, b: JobDetail) => Number(b.created_at) - Number(a.created_at)
  return found.flat().sort(latest).slice(0, matchesMax)
}

async function findIn(db: Db, source: Source, { first, last }: IdRange): Promise<JobDetail[]> {
  const { rows } = await sql<JobDetail>`
    select ${columns}, j.data, j.heartbeat_on as heartbeat_at, o.output->>'stack' as last_stack
    from ${from(source)}
    where (j.name = any(${allNames}) and j.id between ${first} and ${last}
      or j.name = any(${deadNames}) and j.source_id between ${first} and ${last})
      -- A job that failed is there twice: as what it was, and in the dead letter queue.
      and not (not d.dead and j.state = 'failed' and exists (
        select from pgboss.job dead where dead.name = j.name || '.dead' and dead.source_id = j.id))
    order by j.created_on desc limit ${matchesMax}`.execute(db)
  return rows
}

/** What a job went through in the dead letter queue, the first time first: also when the job is gone. */
export async function readAuditsOf(db: Db, text: string): Promise<Audit[]> {
  const range = idRange(text)
  if (range === undefined) return []
  const { first, last } = range
  const rows = await db
    .selectFrom('job_audits')
    .select('dead_job_id')
    .where((eb) =>
      eb.or([eb.between('job_id', first, last), eb.between('dead_job_id', first, last)]),
    )
    .limit(100)
    .execute()
  const audits = await readAudits(
    db,
    rows.map((row) => row.dead_job_id),
  )
  return [...audits.values()]
}

export type Cancelled = 'cancelled' | 'lost'

/**
 * Takes a job out of its queue for good, in whatever state it waits or runs. The worker that has it in hand drops it
 * when it hears of it, within a second as a rule, and settles nothing any more. What had asked for a command gets
 * `answer`; the command then cannot be carried out any more, and one that was answered keeps its answer.
 * @returns `lost`: it has finished or failed for good meanwhile
 */
export async function cancelJob(
  db: Db,
  { queue, id }: Pick<JobRow, 'queue' | 'id'>,
  answer: StoredResponse,
): Promise<Cancelled> {
  const cancelled = await transaction(
    db,
    async (tx) => {
      const data = await cancelRow(tx, queue, id)
      if (data && queue === 'commands') await closeCommandOf(tx, data.data, answer)
      return data !== undefined
    },
    { isolation: 'read committed' },
  )
  if (!cancelled) return 'lost'
  // A worker that does not hear of it finds out at its next sign of life.
  await notifyQueues(db, [heldWord(queue)]).catch(() => {})
  return 'cancelled'
}

/** A worker puts back what it has in hand, or takes what waits, between one look and the next. */
const looksMax = 3

/** In the queue, or in hand. @returns undefined when it is neither */
async function cancelRow(
  tx: Tx,
  queue: QueueName,
  id: string,
): Promise<{ data: unknown } | undefined> {
  for (let look = 0; look < looksMax; look++) {
    const { rows } = await sql<{ data: unknown }>`
      update pgboss.job set state = 'cancelled', completed_on = clock_timestamp()
      where name = ${queue} and id = ${id} and state < 'completed' returning data`.execute(tx)
    if (rows[0]) return rows[0]
    const held = await sql<{ cancelled: number }>`
      select cancel_in_hand(${queue}, ${id}) as cancelled`.execute(tx)
    if (held.rows[0]?.cancelled !== 1) continue
    const found = await sql<{ data: unknown }>`
      select data from pgboss.job where name = ${queue} and id = ${id}`.execute(tx)
    return found.rows[0]
  }
  return undefined
}
