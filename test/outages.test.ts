// Workers whose Postgres goes away under them, in every way: restarted, crashed, their backends ended, their connections
// pulled or silenced, one row locked for long. They go on by themselves, and no job is lost.

import assert from 'node:assert/strict'
import { chmodSync, mkdtempSync, realpathSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, before, test } from 'node:test'
import { sql } from 'kysely'
import { type Jobs, openJobs } from '../db/jobs.ts'
import { migrate } from '../db/migrate.ts'
import { type Database, openDatabase } from '../db/open.ts'
import { emptyJobs } from './jobRows.ts'
import { areDone, countRuns, createRuns, readRuns, readStates, sendNumbered } from './runs.ts'
import { openCable } from './servers/cable.ts'
import { type Postgres, startPostgres } from './torture/postgres.ts'
import { endWorkers, exited, startJobWorker, until } from './worker.ts'

let dataDir: string
let postgres: Postgres
let database: Database
let jobs: Jobs

before(async () => {
  dataDir = mkdtempSync(join(tmpdir(), 'flotilla-outages-'))
  // As root the server runs as another user, who has to get in.
  chmodSync(dataDir, 0o755)
  postgres = await startPostgres(dataDir)
  await migrate({ url: postgres.url })
  database = openDatabase({ url: postgres.url, name: 'test', onIdleError: () => {} })
  jobs = openJobs(database)
  await createRuns(database.db)
})
after(async () => {
  await endWorkers()
  await jobs.close()
  await database.close()
  await postgres.stop()
  rmSync(realpathSync(join(dataDir, 'postgres')), { recursive: true, force: true })
  rmSync(dataDir, { recursive: true, force: true })
})

/** Whoever watches is cut off as well, and looks again. */
const eventually = (isSo: () => Promise<boolean>) => until(() => isSo().catch(() => false))
const begun = (count: number) => eventually(async () => (await countRuns(database.db)) >= count)

test('workers outlive their Postgres and its connections, and every job is done', async (t) => {
  const { db } = database
  const cable = await openCable(postgres.url)
  const workers = [startJobWorker(postgres.url), startJobWorker(cable.url)]
  await eventually(async () => (await sql`select from workers`.execute(db)).rows.length === 2)
  const count = 2000
  await sendNumbered(db, jobs, count, () => ({ ms: 40 }))
  const endBackends = () =>
    postgres.ask(`select pg_terminate_backend(pid) from pg_stat_activity
      where application_name like 'flotilla:test-jobs%'`)
  const outages: [string, () => Promise<unknown>][] = [
    ['all backends ended', endBackends],
    ['the cable pulled', async () => cable.pull()],
    ['Postgres stopped', () => postgres.restart('stopped')],
    ['the cable plugged in', () => cable.plug()],
    ['all backends ended again', endBackends],
    ['the cable silenced', async () => cable.silence()],
    ['Postgres crashed', () => postgres.restart('crashed')],
    ['the cable pulled again', async () => cable.pull()],
    ['the cable plugged in again', () => cable.plug()],
  ]
  for (const [i, [what, strike]] of outages.entries()) {
    await begun(((i + 1) * count) / (outages.length + 2))
    await strike()
    t.diagnostic(`${what}, ${await countRuns(db).catch(() => '?')} begun`)
  }
  await eventually(() => areDone(db, count))
  for (const { process } of workers) process.kill('SIGTERM')
  for (const worker of workers) assert.equal(await exited(worker), 0, worker.output())
  const ran = new Set((await readRuns(db)).map(({ n }) => n))
  assert.equal(ran.size, count)
  cable.pull()
})

test('a job that somebody has locked waits, and nobody waits for it', async () => {
  const { db } = database
  await sql`truncate runs`.execute(db)
  await emptyJobs(db)
  await sendNumbered(db, jobs, 50)
  const other = openDatabase({ url: postgres.url, name: 'other' })
  // Its snapshot holds back the horizon as well.
  const holder = await other.db.startTransaction().setIsolationLevel('repeatable read').execute()
  await sql`select from pgboss.job where data->>'n' = '0' for update`.execute(holder)
  const worker = startJobWorker(postgres.url)
  await eventually(async () => (await countRuns(db)) === 49)
  await sendNumbered(db, jobs, 50, (n) => ({ n: 50 + n }))
  const unfinished = async () => (await readStates(db)).filter((job) => job.state !== 'completed')
  await eventually(async () => (await unfinished()).length === 1)
  const waiting = await unfinished()
  assert.deepEqual(
    waiting.map(({ n, state, attempts }) => [n, state, attempts]),
    [[0, 'created', 0]],
  )
  await holder.rollback().execute()
  await other.close()
  await eventually(() => areDone(db, 100))
  worker.process.kill('SIGTERM')
  assert.equal(await exited(worker), 0, worker.output())
  assert.equal(await countRuns(db), 100)
})
