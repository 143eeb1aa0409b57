// The history of failed attempts (job_errors) and the record of jobs that were given up (job_audits). Both are written
// in the transaction that fails the job, so there is no failure without its record. Texts are redacted and cut here:
// no personal data, no secrets.

import { sql } from 'kysely'
import { v7 as uuidv7 } from 'uuid'
import { redact } from '../domain/redact.ts'
import type { Db, FailureKind, Tx } from './schema.ts'

export const deadLetterCode = 'SASO-INFRA-9100'
/** Bytes kept of a stack, and of a message. */
const stackMax = 4096
const messageMax = 1024
const causesMax = 4

/** Which attempt of which job. */
export type AttemptKey = { jobId: string; queue: string; attempt: number }

export type Attempt = {
  attempt: number
  kind: FailureKind
  failedAt: Date
  message: string
  stack: string | null
}

/** A job in a dead letter queue: what it was, and all that went wrong. */
export type Audit = {
  id: string
  code: string
  jobId: string
  deadJobId: string
  queue: string
  type: string | null
  transport: string
  attempts: number
  /** The attempts that failed, the first first; failed_at in ISO 8601. */
  errors: { attempt: number; failed_at: string; message: string }[]
  /** Of the last error. */
  stack: string | null
  createdAt: Date
  resolvedAt: Date | null
  resolvedAs: 'retried' | 'removed' | null
}

/** What is kept of an error. */
export function describeFailure(error: unknown): { message: string; stack: string | null } {
  if (!(error instanceof Error))
    return { message: cut(redact(String(error)), messageMax), stack: null }
  const messages: string[] = []
  for (
    let at: unknown = error;
    at instanceof Error && messages.length <= causesMax;
    at = at.cause
  ) {
    if (!messages.some((said) => said.includes((at as Error).message))) messages.push(at.message)
  }
  const message = messages.join(': ') || error.name
  const stack = error.stack ? cut(redact(error.stack), stackMax) : null
  return { message: cut(redact(message), messageMax), stack }
}

/** To `max` bytes of UTF-8, between two characters; without NUL, which Postgres does not take. */
function cut(text: string, max: number): string {
  const bytes = Buffer.from(text.replaceAll('\0', '').toWellFormed())
  if (bytes.length <= max) return bytes.toString()
  let end = max
  while (((bytes[end] as number) & 0xc0) === 0x80) end--
  return bytes.toString('utf8', 0, end)
}

/** In the transaction that fails the attempt. A job that is run again under its id begins a history of its own. */
export async function writeAttempt(
  tx: Tx,
  { jobId, queue, attempt }: AttemptKey,
  kind: FailureKind,
  error: unknown,
): Promise<void> {
  const { message, stack } = describeFailure(error)
  if (attempt === 1) {
    await tx
      .deleteFrom('job_errors')
      .where('job_id', '=', jobId)
      .where('queue', '=', queue)
      .execute()
  }
  await sql`
    insert into job_errors (job_id, queue, attempt, kind, message, stack)
    values (${jobId}, ${queue}, ${attempt}, ${kind}, ${message}, ${stack})
    on conflict (job_id, queue, attempt) do update
      set kind = excluded.kind, failed_at = clock_timestamp(), message = excluded.message,
        stack = excluded.stack`.execute(tx)
}

/** How often a worker died with the job in hand, before this attempt: what came before a retry by hand is past. */
export async function countDeaths(tx: Tx, { jobId, queue, attempt }: AttemptKey): Promise<number> {
  const { rows } = await sql<{ deaths: number }>`
    select count(*)::int as deaths from job_errors
    where job_id = ${jobId} and queue = ${queue} and kind = 'died' and attempt < ${attempt}`.execute(
    tx,
  )
  return rows[0]?.deaths ?? 0
}

/** In the transaction that makes the job a dead one, after its last attempt is written. */
export async function writeAudit(
  tx: Tx,
  { jobId, queue, attempt }: AttemptKey,
  deadJobId: string,
  type: string | null,
): Promise<Audit> {
  const { rows } = await sql<Audit>`
    insert into job_audits (id, job_id, dead_job_id, queue, type, attempts, errors, stack)
    select ${uuidv7()}, ${jobId}, ${deadJobId}, ${queue}, ${type}, ${attempt},
      coalesce(jsonb_agg(jsonb_build_object('attempt', e.attempt, 'failed_at', e.failed_at,
        'message', e.message) order by e.attempt), '[]'),
      (array_agg(e.stack order by e.attempt desc))[1]
    from job_errors e where e.job_id = ${jobId} and e.queue = ${queue}
    returning ${auditColumns}`.execute(tx)
  return rows[0] as Audit
}

const auditColumns =
  sql.raw(`id, code, job_id as "jobId", dead_job_id as "deadJobId", queue, type, transport,
  attempts, errors, stack, created_at as "createdAt", resolved_at as "resolvedAt", resolved_as as "resolvedAs"`)

/** The failed attempts of each job that has some, the first first. */
export async function readAttempts(
  db: Db | Tx,
  jobIds: readonly string[],
): Promise<Map<string, Attempt[]>> {
  const { rows } = await sql<Attempt & { jobId: string }>`
    select job_id as "jobId", attempt, kind, failed_at as "failedAt", message, stack
    from job_errors where job_id = any(${[...jobIds]}::uuid[])
    order by job_id, queue, attempt`.execute(db)
  const found = new Map<string, Attempt[]>()
  for (const { jobId, ...attempt } of rows) {
    found.set(jobId, [...(found.get(jobId) ?? []), attempt])
  }
  return found
}

/** What became of the job that is `deadJobId` in its dead letter queue. */
export async function readAudit(db: Db | Tx, deadJobId: string): Promise<Audit | undefined> {
  return (await readAudits(db, [deadJobId])).get(deadJobId)
}

/** By the id in the dead letter queue. */
export async function readAudits(
  db: Db | Tx,
  deadJobIds: readonly string[],
): Promise<Map<string, Audit>> {
  const { rows } = await sql<Audit>`
    select ${auditColumns} from job_audits
    where dead_job_id = any(${[...deadJobIds]}::uuid[]) order by created_at`.execute(db)
  return new Map(rows.map((audit) => [audit.deadJobId, audit]))
}

/** Says what the operator did with dead jobs; the first word stands. @returns how many were open */
export async function resolveAudits(
  tx: Db | Tx,
  deadJobIds: readonly string[],
  as: 'retried' | 'removed',
): Promise<number> {
  const done = await sql`
    update job_audits set resolved_at = clock_timestamp(), resolved_as = ${as}
    where dead_job_id = any(${[...deadJobIds]}::uuid[]) and resolved_at is null`.execute(tx)
  return Number(done.numAffectedRows ?? 0)
}

/** How long a history is kept at least, and an audit after it was resolved. */
const attemptsKeptDays = 1
const auditsKeptDays = 90

/** Forgets histories of jobs that are gone, and audits resolved long ago, a batch at a time. @returns how many went */
export async function pruneAttempts(db: Db, batchMax = 1000): Promise<number> {
  const attempts = await sql`
    delete from job_errors where ctid = any(array(
      select e.ctid from job_errors e
      where e.failed_at < (select clock_timestamp() - ${attemptsKeptDays} * interval '1 day')
        and not exists (select from pgboss.job j where j.name = e.queue and j.id = e.job_id)
        and not exists (select from finished_jobs f where f.queue = e.queue and f.id = e.job_id)
        and not exists (select from claims c where c.queue = e.queue and e.job_id = any(c.ids))
      limit ${batchMax}))`.execute(db)
  const audits = await sql`
    delete from job_audits where ctid = any(array(
      select ctid from job_audits
      where resolved_at < clock_timestamp() - ${auditsKeptDays} * interval '1 day'
      limit ${batchMax}))`.execute(db)
  return Number(attempts.numAffectedRows ?? 0) + Number(audits.numAffectedRows ?? 0)
}
