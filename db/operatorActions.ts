// What people changed from the console: one row a change, written before it is made and settled after it, so that none
// goes untold. A change that goes through thousands of jobs keeps its progress here, and may be taken up by another
// process. Pages are read by the primary key: ids are UUID v7, the latest last.

import { sql } from 'kysely'
import { v7 as uuidv7 } from 'uuid'
import type { Db } from './schema.ts'

export type ActionState = 'running' | 'done' | 'failed' | 'stopped'

/** Who asked: console, and from where. */
export type Operator = { who: string; address: string; session: string }

export type NewAction = Operator & {
  action: string
  subject: string
  detail?: object
  /** How many it will look at, where it is many. */
  total?: number
}

export type OperatorAction = Operator & {
  id: string
  at: Date
  action: string
  subject: string
  detail: Record<string, unknown>
  /** `stopped` also when its process is gone. */
  state: ActionState
  total: number | null
  looked: number
  done: number
  cursor: string | null
  outcome: string | null
  finishedAt: Date | null
}

/** Whose process shows no sign of life for so long is gone. */
export const actionAliveSeconds = 30

const isStale = sql<boolean>`(state = 'running'
  and seen_at < clock_timestamp() - ${sql.lit(actionAliveSeconds)} * interval '1 s')`

const columns = sql`id, at, who, address, session, action, subject, detail,
  case when ${isStale} then 'stopped' else state end as state,
  total, looked, done, cursor, outcome, finished_at as "finishedAt"`

/** @returns its id */
export async function beginAction(db: Db, action: NewAction): Promise<string> {
  const { who, address, session, subject, detail = {}, total = null } = action
  const id = uuidv7()
  await sql`
    insert into operator_actions (id, who, address, session, action, subject, detail, total)
    values (${id}, ${who}, ${address}, ${session}, ${action.action}, ${subject},
      ${JSON.stringify(detail)}, ${total})`.execute(db)
  return id
}

export type Progress = { looked: number; done: number; cursor: string | null }

/** Adds to what was looked at and done. @returns false when it is not running any more: somebody stopped it */
export async function noteProgress(
  db: Db,
  id: string,
  { looked, done, cursor }: Progress,
): Promise<boolean> {
  const { numAffectedRows } = await sql`
    update operator_actions set looked = looked + ${looked}, done = done + ${done},
      cursor = ${cursor}, seen_at = clock_timestamp()
    where id = ${id} and state = 'running'`.execute(db)
  return numAffectedRows === 1n
}

/** `done`: how many, when it was not noted on the way. */
export async function endAction(
  db: Db,
  id: string,
  state: Exclude<ActionState, 'running'>,
  outcome: string,
  done?: number,
): Promise<void> {
  await sql`
    update operator_actions set state = ${state}, outcome = ${outcome},
      done = coalesce(${done ?? null}::integer, done),
      finished_at = clock_timestamp(), seen_at = clock_timestamp()
    where id = ${id} and state = 'running'`.execute(db)
}

/** Makes a stopped one run again, for one caller only. @returns undefined: there is none that stands still */
export async function resumeAction(db: Db, id: string): Promise<OperatorAction | undefined> {
  const { rows } = await sql<OperatorAction>`
    update operator_actions set state = 'running', outcome = null, finished_at = null,
      seen_at = clock_timestamp()
    where id = ${id} and (state = 'stopped' or ${isStale})
    returning ${columns}`.execute(db)
  return rows[0]
}

export async function readAction(db: Db, id: string): Promise<OperatorAction | undefined> {
  const { rows } = await sql<OperatorAction>`
    select ${columns} from operator_actions where id = ${id}`.execute(db)
  return rows[0]
}

/** The latest first; `before`: an id, to go on from there. */
export async function listActions(
  db: Db,
  max: number,
  before: string | undefined,
): Promise<OperatorAction[]> {
  const { rows } = await sql<OperatorAction>`
    select ${columns} from operator_actions
    where id < ${before ?? 'ffffffff-ffff-ffff-ffff-ffffffffffff'}
    order by id desc limit ${max}`.execute(db)
  return rows
}

/** As long as audits of jobs are kept once they are resolved. */
const keptDays = 90

/** Forgets what was done long ago, and sessions that would be over anyway. @returns how many rows went */
export async function pruneActions(db: Db, batchMax = 1000): Promise<number> {
  const actions = await sql`
    delete from operator_actions where ctid = any(array(
      select ctid from operator_actions
      where at < (select clock_timestamp() - ${keptDays} * interval '1 day')
      limit ${batchMax}))`.execute(db)
  const sessions = await sql`
    delete from ended_sessions where expires_at < clock_timestamp()`.execute(db)
  return Number(actions.numAffectedRows ?? 0) + Number(sessions.numAffectedRows ?? 0)
}

export async function endSession(db: Db, id: string, expiresAt: Date): Promise<void> {
  await sql`
    insert into ended_sessions (id, expires_at) values (${id}, ${expiresAt})
    on conflict do nothing`.execute(db)
}

export async function isSessionEnded(db: Db, id: string): Promise<boolean> {
  const { rows } = await sql`select from ended_sessions where id = ${id}`.execute(db)
  return rows.length > 0
}
