// The hot path of the job table: claim, complete, give back, show a sign of life, each one statement, whatever the
// planner thinks of the table (0004_claims.sql). A claim is an attempt, and takes its jobs out of their queue: whatever
// settles one names the claim it is in, and a worker that lost its claim settles nothing. A job that runs alone stays in
// its queue as an active row (0003_jobs.sql).

import { sql } from 'kysely'
import { type QueueName, queueOf } from '../domain/queues.ts'
import type { Db, Tx } from './schema.ts'

export type Job<T = unknown> = {
  id: string
  queue: QueueName
  data: T
  /** From 1. */
  attempt: number
  attemptsMax: number
  createdAt: Date
  /** Which of a claim's jobs it is, from 0. Left out: it is a row of its own. */
  place?: number
  claim?: Claim
}

/** Jobs claimed together. */
export type Claim = { id: string; size: number }

type Row = {
  id: string
  data: unknown
  retry_count: number
  retry_limit: number
  priority: number
  created_ms: number
}

type BatchRow = Row & { claim: string; place: number }

/** The oldest that are due, in their order; none of a paused queue. */
export async function claimJobs(db: Db, queue: QueueName, batchMax: number): Promise<Job[]> {
  const { activeMax = null, keepFinished = true } = queueOf(queue) ?? {}
  const { rows } = await sql<BatchRow>`
    select * from claim_batch(${queue}, ${batchMax}::int, ${activeMax}::int, ${keepFinished})`.execute(
    db,
  )
  const [first] = rows
  if (first === undefined) return []
  const claim = { id: first.claim, size: rows.length }
  return rows.sort(byAge).map((row) => toJob(queue, row, claim, row.place - 1))
}

/** One job that was in hand when its worker died: to be run while nothing else is. */
export async function claimSuspect(db: Db, queue: QueueName): Promise<Job | undefined> {
  const { rows } = await sql<Row>`select * from claim_suspect(${queue})`.execute(db)
  return rows[0] && toJob(queue, rows[0])
}

/** Whether `claimSuspect` would find one. */
export async function hasSuspects(db: Db, queue: QueueName): Promise<boolean> {
  const { rows } = await sql<{ found: boolean }>`select has_suspects(${queue}) as found`.execute(db)
  return rows[0]?.found === true
}

const byAge = (a: Row, b: Row): number =>
  b.priority - a.priority || a.created_ms - b.created_ms || (a.id < b.id ? -1 : 1)

const toJob = (queue: QueueName, row: Row, claim?: Claim, place?: number): Job => ({
  id: row.id,
  queue,
  data: row.data,
  attempt: row.retry_count + 1,
  attemptsMax: row.retry_limit + 1,
  createdAt: new Date(row.created_ms),
  ...(claim && { claim, place }),
})

type Parts = { claims: { id: string; marks: string }[]; single: Job[] }

/** Jobs by their claims, in the order of those. */
function partsOf(jobs: readonly Job[]): Parts {
  const marks = new Map<Claim, Buffer>()
  const single: Job[] = []
  for (const job of jobs) {
    const { claim, place = 0 } = job
    if (claim === undefined) {
      single.push(job)
      continue
    }
    let bits = marks.get(claim)
    if (bits === undefined) {
      bits = Buffer.alloc(claim.size, '0')
      marks.set(claim, bits)
    }
    bits[place] = one
  }
  const claims = [...marks].map(([{ id }, bits]) => ({ id, marks: bits.toString('latin1') }))
  return { claims: claims.sort((a, b) => Number(BigInt(a.id) - BigInt(b.id))), single }
}

const one = '1'.charCodeAt(0)

const idsOf = (jobs: readonly Job[]) => sql`${jobs.map(({ id }) => id)}::uuid[]`
const countsOf = (jobs: readonly Job[]) => sql`${jobs.map(({ attempt }) => attempt - 1)}::int[]`
const claimsOf = ({ claims }: Parts) => sql`${claims.map(({ id }) => id)}::bigint[]`
const marksOf = ({ claims }: Parts) => sql`${claims.map(({ marks }) => marks)}::text[]`

/** @returns how many were still ours */
export async function completeJobs(
  on: Db | Tx,
  queue: QueueName,
  jobs: readonly Job[],
): Promise<number> {
  const keep = queueOf(queue)?.keepFinished ?? true
  const parts = partsOf(jobs)
  const { single } = parts
  let settled = 0
  if (parts.claims.length > 0) {
    settled += await settleClaims(on, queue, parts, keep ? 'completed' : null)
  }
  if (single.length > 0) {
    const { rows } = await sql<{ settled: number }>`
      select finish_jobs(${queue}, ${idsOf(single)}, ${countsOf(single)}, ${keep}) as settled`.execute(
      on,
    )
    settled += rows[0]?.settled ?? 0
  }
  return settled
}

async function settleClaims(
  on: Db | Tx,
  queue: QueueName,
  parts: Parts,
  as: 'created' | 'active' | 'completed' | null,
  delayMs = 0,
): Promise<number> {
  const { rows } = await sql<{ settled: number }>`
    select settle_claims(${queue}, ${claimsOf(parts)}, ${marksOf(parts)}, ${as}, ${delayMs}::float8)
      as settled`.execute(on)
  return rows[0]?.settled ?? 0
}

/** Makes a job that is in hand an active row of its own; one that is not ours any more is left as it is. */
export async function takeOut(tx: Tx, job: Job): Promise<void> {
  if (job.claim) await settleClaims(tx, job.queue, partsOf([job]), 'active')
}

/** A job that is not in this worker's hands any more: cancelled, or taken over, or settled meanwhile. */
export type Lost = { job: Job; cancelled: boolean }

/** Shows a sign of life. What is being settled at that moment counts as ours. @returns what is ours no more */
export async function touchJobs(db: Db, queue: QueueName, jobs: readonly Job[]): Promise<Lost[]> {
  const parts = partsOf(jobs)
  const lost: Lost[] = []
  if (parts.claims.length > 0) {
    const { rows } = await sql<{ claim: string; settled: string }>`
      select * from touch_claims(${queue}, ${claimsOf(parts)})`.execute(db)
    const settled = new Map(rows.map((row) => [row.claim, row.settled]))
    const gone = jobs.filter(
      ({ claim, place = 0 }) => claim && settled.get(claim.id)?.[place] !== '0',
    )
    const cancelled = await readCancelled(db, queue, gone)
    lost.push(...gone.map((job) => ({ job, cancelled: cancelled.has(job.id) })))
  }
  const { single } = parts
  if (single.length > 0) {
    const { rows } = await sql<{ place: string; cancelled: boolean }>`
      select place, cancelled from show_life(${queue}, ${idsOf(single)}, ${countsOf(single)})`.execute(
      db,
    )
    for (const { place, cancelled } of rows) {
      lost.push({ job: single[Number(place) - 1] as Job, cancelled })
    }
  }
  return lost
}

/** @returns the ids of those that somebody cancelled */
export async function readCancelled(
  on: Db | Tx,
  queue: QueueName,
  jobs: readonly Job[],
): Promise<Set<string>> {
  if (jobs.length === 0) return new Set()
  const { rows } = await sql<{ id: string }>`
    select id from pgboss.job
    where name = ${queue} and id = any(${idsOf(jobs)}) and state = 'cancelled'`.execute(on)
  return new Set(rows.map(({ id }) => id))
}

/** Gives jobs back without an attempt spent, due after `delayMs`. */
export async function releaseJobs(
  db: Db,
  queue: QueueName,
  jobs: readonly Job[],
  delayMs: number,
): Promise<void> {
  const parts = partsOf(jobs)
  const { single } = parts
  if (parts.claims.length > 0) await settleClaims(db, queue, parts, 'created', delayMs)
  if (single.length > 0) {
    await sql`
      select release_jobs(${queue}, ${idsOf(single)}, ${countsOf(single)}, ${delayMs}::float8)`.execute(
      db,
    )
  }
}

/** Claims of workers that died or took too long become active rows. */
export async function openStaleClaims(tx: Tx, queue: string): Promise<void> {
  await sql`select open_stale_claims(${queue})`.execute(tx)
}
