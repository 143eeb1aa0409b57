// The record of what was handed to a mail provider (email_sends): written before a mail is sent, so that whoever runs its
// job once more, after a crash too, knows that it may be there already and asks first. Who is suppressed is found by the
// same statement. Calls that come together go together: at a hundred mails a second a commit each would be the dearest part.

import { sql } from 'kysely'
import { createGroup } from './group.ts'
import type { Db, Tx } from './schema.ts'

export type Handing = {
  jobId: string
  provider: string
  /** As domain/emails.ts normalises it. */
  address: string
}

/** An earlier hand-over of the same mail. */
export type Earlier = {
  provider: string
  state: 'handed' | 'sent'
  /** How often it was handed over; whoever hands it over again names this number. */
  hands: number
  ageMs: number
}

export type Handed =
  /** Ours to send. */
  | { is: 'fresh'; hands: number }
  | { is: 'suppressed' }
  | ({ is: 'earlier' } & Earlier)
  /** Another job with the same mail is being handed over at this very moment. */
  | { is: 'taken' }

export type EmailSends = {
  begin(handing: Handing): Promise<Handed>
  /** Of the hand-over with that number; but that it is there is true whoever says it. */
  settle(settlement: Settlement): Promise<void>
  /** Once more, or to another provider. @returns undefined when somebody else did */
  again(jobId: string, provider: string, seenHands: number): Promise<number | undefined>
}

export type Settlement = {
  jobId: string
  hands: number
  /** `withdrawn`: it is certain that it is not there. `given_up`: nobody can say. */
  as: 'sent' | 'withdrawn' | 'given_up'
}

/** Nobody's data is at fault where a group fails: all of it is tried again with its jobs. */
const divides = () => false

export function openEmailSends(db: Db): EmailSends {
  const begins = createGroup({ commit: (all: Handing[]) => beginAll(db, all), divides })
  const ends = createGroup({
    commit: (all: Settlement[]) => settleAll(db, all),
    divides,
    // What is known is not thrown away because the database is slow: a job's own time is shorter.
    waitMaxMs: 600_000,
  })
  return {
    begin: (handing) => begins.run(handing),
    settle: (settlement) => ends.run(settlement),
    async again(jobId, provider, seenHands) {
      const { rows } = await sql<{ hands: number }>`
        update email_sends set provider = ${provider}, state = 'handed', hands = hands + 1,
          handed_at = clock_timestamp()
        where job_id = ${jobId} and hands = ${seenHands} and state = 'handed'
        returning hands`.execute(db)
      return rows[0]?.hands
    },
  }
}

type Row = {
  place: string
  suppressed: boolean
  fresh_hands: number | null
  provider: string | null
  state: string | null
  hands: number | null
  age_ms: number | null
}

/** Rows are made and locked in the order of their keys; by primary keys only. */
async function beginAll(db: Db, all: readonly Handing[]): Promise<Handed[]> {
  const { rows } = await sql<Row>`
    with asked as materialized (
      select * from unnest(
        ${all.map(({ jobId }) => jobId)}::text[],
        ${all.map(({ provider }) => provider)}::text[],
        ${all.map(({ address }) => address)}::text[]
      ) with ordinality as a (job_id, provider, address, place)
    ), suppressed as materialized (
      select a.place from asked a join email_suppressions s on s.address = a.address
    ), fresh as (
      insert into email_sends as e (job_id, provider)
      select distinct on (a.job_id) a.job_id, a.provider from asked a
      where not exists (select from suppressed s where s.place = a.place)
      order by a.job_id, a.place
      on conflict (job_id) do update set provider = excluded.provider, state = 'handed',
        hands = 1, handed_at = clock_timestamp()
        where e.state in ('withdrawn', 'given_up')
      returning job_id, hands
    )
    select a.place, s.place is not null as suppressed, f.hands as fresh_hands, e.provider, e.state,
      e.hands, extract(epoch from clock_timestamp() - e.handed_at)::float8 * 1000 as age_ms
    from asked a
    left join suppressed s on s.place = a.place
    left join fresh f on f.job_id = a.job_id
    left join email_sends e on e.job_id = a.job_id
    order by a.place`.execute(db)
  const begun = new Set<string>()
  return rows.map((row, i) => {
    const { jobId } = all[i] as Handing
    const isFirst = !begun.has(jobId)
    if (!row.suppressed) begun.add(jobId)
    return toHanded(row, isFirst)
  })
}

function toHanded(row: Row, isFirst: boolean): Handed {
  if (row.suppressed) return { is: 'suppressed' }
  if (row.fresh_hands !== null) {
    return isFirst ? { is: 'fresh', hands: row.fresh_hands } : { is: 'taken' }
  }
  const { provider, state, hands, age_ms: ageMs } = row
  // Made since our snapshot by another worker.
  if (provider === null || hands === null || ageMs === null) return { is: 'taken' }
  return state === 'sent' || state === 'handed'
    ? { is: 'earlier', provider, state, hands, ageMs }
    : { is: 'taken' }
}

async function settleAll(db: Db, all: readonly Settlement[]): Promise<undefined[]> {
  await sql`
    update email_sends e set state = s.state
    from unnest(${all.map(({ jobId }) => jobId)}::text[], ${all.map(({ as }) => as)}::text[],
      ${all.map(({ hands }) => hands)}::int[]) as s (job_id, state, hands)
    where e.job_id = s.job_id
      and (s.state = 'sent' or (e.state = 'handed' and e.hands = s.hands))`.execute(db)
  return all.map(() => undefined)
}

/** A provider's own word, such as a webhook, that it has the mail. */
export async function confirmEmailSent(on: Db | Tx, jobId: string): Promise<void> {
  await sql`
    update email_sends set state = 'sent' where job_id = ${jobId} and state <> 'sent'`.execute(on)
}

/** Longer than anything sends a job once more (`inbox_processed`). */
const keptDays = 8

/** Forgets old ones, a batch at a time. @returns how many went */
export async function pruneEmailSends(db: Db, batchMax = 2000): Promise<number> {
  const { numAffectedRows } = await sql`
    delete from email_sends where job_id = any(array(
      select job_id from email_sends
      where handed_at < clock_timestamp() - ${keptDays} * interval '1 day'
      order by handed_at limit ${batchMax} for update skip locked))`.execute(db)
  return Number(numAffectedRows ?? 0)
}
