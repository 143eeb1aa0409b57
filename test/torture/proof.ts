// Proves from the tables what must be true when the torture is over: the ledger balances, what the buyers were told is
// what happened, nothing happened that nobody asked for, and everything that happened was told on exactly once.

import { readdirSync } from 'node:fs'
import { join } from 'node:path'
import pg from 'pg'
import { auditLedger } from '../../db/ledger.ts'
import { openDatabase } from '../../db/open.ts'
import { checks, tables } from './checks.ts'
import type { Write } from './client.ts'
import type { Rabbit } from './rabbit.ts'

export type Check = { name: string; faults: string[] }

export type Evidence = {
  url: string
  /** Where the events went; undefined: inside the database. */
  rabbit?: Rabbit | undefined
  writes: readonly Write[]
  /** What no client may see, and some client saw. */
  seen: readonly string[]
  /** Folders of the provider `log`. */
  mailDirs: readonly string[]
  /** How often each mail was sent, by its job, as the workers logged it. */
  sent: ReadonlyMap<string, number>
}

const rowsMax = 5

/** The inbox keeps no finished job: what was made of them is written down. One that runs again keeps its created_on. */
export async function keepInbox(url: string): Promise<void> {
  const client = new pg.Client({ connectionString: url })
  await client.connect()
  try {
    await client.query(`
      create table torture_inbox (id uuid, created_on timestamptz, primary key (id, created_on));
      create function torture_keep() returns trigger language plpgsql as $$ begin
        insert into torture_inbox values (new.id, new.created_on) on conflict do nothing;
        return null;
      end $$;
      create trigger torture_keep after insert on pgboss.job
        for each row when (new.name = 'inbox') execute function torture_keep()`)
  } finally {
    await client.end()
  }
}

export async function prove(evidence: Evidence): Promise<Check[]> {
  const { url, writes, seen, rabbit } = evidence
  // An hour leaves much to read.
  const { db, close } = openDatabase({ url, name: 'proof', statementMaxMs: 0 })
  const client = new pg.Client({ connectionString: url })
  await client.connect()
  try {
    await client.query(tables)
    await loadTold(client, writes)
    await client.query('analyze')
    const proven: Check[] = [
      { name: 'the ledger balances', faults: await auditLedger(db) },
      {
        name: 'nobody got an answer that may not be, and a repeated one is the same',
        faults: [...seen],
      },
    ]
    for (const { name, query, inside } of checks) {
      if (inside && rabbit) continue
      const { rows } = await client.query<{ row: string }>(query)
      proven.push({ name, faults: rows.map(({ row }) => row) })
    }
    const arrived = (await rabbit?.prove(client)) ?? []
    return [...proven, ...arrived, ...(await checkMails(client, evidence))]
  } finally {
    await client.end()
    await close()
  }
}

async function loadTold(client: pg.Client, writes: readonly Write[]): Promise<void> {
  for (let from = 0; from < writes.length; from += 2000) {
    const rows = writes.slice(from, from + 2000).map(toRow)
    await client.query(
      `insert into told select * from json_populate_recordset(null::told, $1::json)`,
      [JSON.stringify(rows)],
    )
  }
  await client.query('create index on told (reservation_id); analyze told')
}

const toRow = ({ key, what, userId, reservationId, body, later, answer, outcome }: Write) => ({
  key,
  what,
  later,
  user_id: userId,
  reservation_id: reservationId,
  quantity: askedFor(body),
  status: answer?.status,
  body: answer?.body,
  outcome_status: outcome?.status,
  outcome_body: outcome?.body,
})

const askedFor = (body: { quantity?: number; seats?: string[] } | undefined) =>
  body?.quantity ?? body?.seats?.length

/**
 * A mail on disk is named by its job. One whose worker died between the provider's yes and its own note of it goes out
 * again, which no provider can tell from the first; but only in a new attempt.
 */
async function checkMails(client: pg.Client, { mailDirs, sent }: Evidence): Promise<Check[]> {
  const { rows } = await client.query<{ id: string; attempts: number }>(
    `select data ->> 'job_id' as id, attempts from finished_jobs where queue = 'email'`,
  )
  const jobs = new Map(rows.map(({ id, attempts }) => [id, attempts]))
  const mails = new Set(mailDirs.flatMap(mailsIn))
  return [
    {
      name: 'every mail was written, and none that nobody asked for',
      faults: [
        ...[...jobs.keys()].filter((id) => !mails.has(id)).map((id) => `${id} is missing`),
        ...[...mails].filter((id) => !jobs.has(id)).map((id) => `${id} has no job`),
      ],
    },
    {
      name: 'no mail was sent twice in one attempt',
      faults: [...sent]
        .filter(([id, times]) => times > (jobs.get(id) ?? 0))
        .map(([id, times]) => `${id}: sent ${times} times in ${jobs.get(id) ?? 0} attempts`),
    },
  ]
}

function mailsIn(dir: string): string[] {
  try {
    return readdirSync(dir)
      .filter((name) => name.endsWith('.eml'))
      .map((name) => name.slice(0, -'.eml'.length))
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return []
    throw error
  }
}

/** For people: each check on its line, under a broken one some of the rows that break it. */
export const describeChecks = (checks: readonly Check[]): string[] =>
  checks.flatMap(({ name, faults }) => [
    `  ${faults.length === 0 ? 'yes' : 'NO '}  ${name}${faults.length > 0 ? `: ${faults.length}` : ''}`,
    ...faults.slice(0, rowsMax).map((fault) => `         ${fault}`),
    ...(faults.length > rowsMax ? [`         and ${faults.length - rowsMax} more`] : []),
  ])

export const mailDirOf = (dataDir: string): string => join(dataDir, 'mail')
