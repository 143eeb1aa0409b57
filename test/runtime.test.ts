// The job runtime as whole processes: killed, told to stop, poisoned, limited and woken, while every run of a job is
// written down, and counted at the end.

import assert from 'node:assert/strict'
import { hostname } from 'node:os'
import { after, afterEach, before, beforeEach, describe, test } from 'node:test'
import { sql } from 'kysely'
import { readAudit } from '../db/attempts.ts'
import { type Jobs, openJobs } from '../db/jobs.ts'
import { cancelJob } from '../db/operate.ts'
import { countFailed, retryFailed } from '../db/redrive.ts'
import { readWorkers, requestStop } from '../db/registry.ts'
import { notifyQueues, stopWord } from '../db/wake.ts'
import { cancelledCommand } from '../workers/problem.ts'
import { type TestDatabase, testDatabase } from './database.ts'
import { bury } from './failedJobs.ts'
import { emptyJobs, everyJob, loseLife } from './jobRows.ts'
import {
  areDone,
  countRuns,
  createRuns,
  type Run,
  readRuns,
  readStates,
  sendNumbered,
} from './runs.ts'
import { endWorkers, exited, startJobWorker, until, type WorkerProcess } from './worker.ts'

describe('the job runtime', () => {
  let fresh: TestDatabase
  let jobs: Jobs

  before(async () => {
    fresh = await testDatabase()
    jobs = openJobs(fresh.database)
    await createRuns(fresh.db)
  })
  after(() => jobs.close())
  beforeEach(async () => {
    await emptyJobs(fresh.db)
    await sql`truncate runs, job_errors, job_audits, workers, stop_requests`.execute(fresh.db)
  })
  afterEach(endWorkers)

  const start = (args: string[] = [], env: Record<string, string> = {}) =>
    startJobWorker(fresh.url, args, env)
  const send = (count: number, dataOf?: Parameters<typeof sendNumbered>[3]) =>
    sendNumbered(fresh.db, jobs, count, dataOf)
  const done = (count: number) => until(() => areDone(fresh.db, count))
  const begun = (count: number) => until(async () => (await countRuns(fresh.db)) >= count)
  const stop = async (...workers: WorkerProcess[]) => {
    for (const { process } of workers) process.kill('SIGTERM')
    for (const worker of workers) assert.equal(await exited(worker), 0, worker.output())
  }
  const runsOf = (runs: readonly Run[]) => Map.groupBy(runs, ({ job_id }) => job_id)
  const said = (worker: WorkerProcess, message: string) =>
    worker.lines().some(({ msg }) => msg === message)

  test('loses no job to a kill -9, and runs again only what the dead one had in hand', async (t) => {
    const count = 3000
    await send(count, () => ({ ms: 2 }))
    const [victim, heir] = [start(), start()]
    await until(async () => new Set((await readRuns(fresh.db)).map(({ pid }) => pid)).size === 2)
    await begun(count / 4)
    victim.process.kill('SIGKILL')
    const killedAt = performance.now()
    await exited(victim)
    await done(count)
    const backSeconds = (performance.now() - killedAt) / 1000
    const runs = runsOf(await readRuns(fresh.db))
    const states = await readStates(fresh.db)
    let again = 0
    for (const { id, n, attempts } of states) {
      const own = runs.get(id) ?? []
      // One death explains one more attempt, and none of those the heir had begun.
      assert.ok(attempts <= 1, `${n}: ${attempts + 1} attempts`)
      assert.deepEqual(own.at(-1)?.attempt, attempts + 1, `${n}: ${JSON.stringify(own)}`)
      if (attempts === 0) assert.equal(own.length, 1, `${n}: ${JSON.stringify(own)}`)
      else assert.ok(own.slice(0, -1).every(({ pid }) => pid === victim.process.pid) && ++again)
    }
    assert.ok(again > 0, 'the dead one had something in hand')
    t.diagnostic(
      `${again} jobs ran again, all were done ${backSeconds.toFixed(1)} s after the kill`,
    )
    assert.ok(backSeconds < 60, `${backSeconds} s`)
    await stop(heir)
  })

  test('gives back at a SIGTERM what it did not begin and what it drops, no attempt spent', async () => {
    const count = 400
    await send(count, (n) => (n === 0 ? { firstMs: 600_000 } : { ms: 10 }))
    const first = start(['--grace=3', '--concurrency=4'])
    await begun(20)
    await stop(first)
    const ran = new Set((await readRuns(fresh.db)).map(({ n }) => n))
    assert.ok(ran.has(0) && ran.size < count, `${ran.size} ran`)
    assert.deepEqual(
      await readStates(fresh.db),
      (await readStates(fresh.db)).map(({ id, n }) => {
        const isDone = n > 0 && ran.has(n)
        return { id, n, state: isDone ? 'completed' : 'created', attempts: 0, begun: isDone }
      }),
    )
    const second = start()
    await done(count)
    await stop(second)
    const runs = await readRuns(fresh.db)
    assert.equal(runs.length, count + 1, 'each once, and the dropped one twice')
    assert.ok(runs.every(({ attempt }) => attempt === 1))
  })

  test('tells the handler of a job that is cancelled, well before the next sign of life would', async () => {
    await send(1, () => ({ ms: 600_000 }))
    const worker = start(['--concurrency=1'], { JOB_POLL_MS: '600000' })
    const listens = () => listenersOf(fresh)
    await until(async () => (await listens()).length === 1)
    await begun(1)
    const [row] = await readStates(fresh.db)
    await cancelJob(fresh.db, { queue: 'commands', id: row!.id }, cancelledCommand)
    await until(() => said(worker, 'a job was cancelled: it is dropped'))
    // The one lane is free again.
    await send(1)
    await begun(2)
    await stop(worker)
    assert.deepEqual((await readStates(fresh.db)).map(({ state }) => state).sort(), [
      'cancelled',
      'completed',
    ])
    const { rows } = await sql`select from job_errors`.execute(fresh.db)
    assert.equal(rows.length, 0)
    assert.ok(
      worker.lines().every(({ level }) => level === 'info'),
      worker.output(),
    )
  })

  test('buries a job that kills three processes, and spends no attempt of its neighbours', async () => {
    await send(12, (n) => (n === 5 ? { does: 'kill' } : { ms: 20 }))
    const lives: WorkerProcess[] = []
    while (lives.length < 3) {
      const worker = start(['--concurrency=12'])
      lives.push(worker)
      assert.equal(await exited(worker), 'SIGKILL', worker.output())
      await loseLife(fresh.db)
    }
    const survivor = start()
    await done(11)
    await stop(survivor)
    const states = await readStates(fresh.db)
    assert.deepEqual(
      states.map(({ state }) => state),
      states.map(({ n }) => (n === 5 ? 'failed' : 'completed')),
    )
    const { rows: errors } = await sql<{ job_id: string; kind: string; count: number }>`
      select job_id, kind, count(*)::int from job_errors group by 1, 2`.execute(fresh.db)
    assert.ok(errors.every(({ kind }) => kind === 'died'))
    const pill = states.find(({ n }) => n === 5)!
    const dead = await sql<{ id: string }>`
      select id from pgboss.job where name = 'commands.dead'`.execute(fresh.db)
    assert.equal(dead.rows.length, 1)
    const audit = await readAudit(fresh.db, dead.rows[0]!.id)
    assert.deepEqual([audit?.code, audit?.jobId, audit?.attempts], ['SASO-INFRA-9100', pill.id, 3])
    assert.match(audit?.errors[2]?.message ?? '', /its worker died .* \(3 of 3 times\)/)
    // After the first death those that were in hand run alone: the pill takes nobody along any more.
    for (const { job_id, count } of errors) if (job_id !== pill.id) assert.equal(count, 1)
    const { rows: left } = await sql<{ left: number }>`
      select retry_limit - retry_count as left from ${everyJob}
      where name = 'commands' and state = 'completed'`.execute(fresh.db)
    assert.deepEqual(new Set(left.map((row) => row.left)), new Set([3]))
    const line = survivor.lines().find(({ code }) => code === 'SASO-INFRA-9100')
    assert.equal(line?.job_id, pill.id)
  })

  test('buries what cannot be read, and goes on with the rest', async () => {
    await send(10, (n) => (n === 3 ? ({ n: 'three' } as object) : {}))
    const worker = start(['--once'])
    assert.equal(await exited(worker), 0, worker.output())
    const { rows } = await sql<{ state: string; count: number }>`
      select state::text, count(*)::int from ${everyJob} where name = 'commands' group by 1 order by 1`.execute(
      fresh.db,
    )
    assert.deepEqual(rows, [
      { state: 'completed', count: 9 },
      { state: 'failed', count: 1 },
    ])
    const line = worker.lines().find(({ code }) => code === 'SASO-INFRA-9100')
    assert.deepEqual(line?.attempts, 1)
    assert.match(
      JSON.stringify(line?.errors),
      /the payload cannot be read: n must be a whole number/,
    )
  })

  test('runs each of 10,000 retried jobs once, beside two workers and two who retry', async () => {
    const count = 10_000
    await bury(fresh.db, 'commands', count, { data: { n: 1 } })
    const workers = [start(['--concurrency=32']), start(['--concurrency=32'])]
    const { before } = await countFailed(fresh.db)
    const retryAll = async () => {
      for (let retried = 0; ; ) {
        const chosen = { queues: ['commands' as const], before, batchMax: 500 }
        const moved = (await retryFailed(fresh.db, chosen)).length
        if (moved === 0) return retried
        retried += moved
      }
    }
    const [one = 0, two = 0] = await Promise.all([retryAll(), retryAll()])
    assert.equal(one + two, count)
    await done(count)
    await stop(...workers)
    const { rows } = await sql<{ runs: number; jobs: number }>`
      select count(*)::int as runs, count(distinct job_id)::int as jobs from runs`.execute(fresh.db)
    assert.deepEqual(rows, [{ runs: count, jobs: count }])
  })

  test('is in the registry with what it does, and shown as dead when it was killed', async () => {
    await send(3, () => ({ ms: 600_000 }))
    const worker = start(['--grace=0'])
    const find = async () => (await readWorkers(fresh.db)).find(({ name }) => name === 'test-jobs')
    await begun(3)
    await until(async () => {
      // It writes its row on a beat, and when it looks for a request to stop.
      await notifyQueues(fresh.db, [stopWord])
      return (await find())?.doing.queues?.commands?.active === 3
    })
    const row = await find()
    assert.deepEqual([row?.host, row?.pid, row?.alive], [hostname(), worker.process.pid, true])
    assert.ok(row && row.startedAt < row.seenAt)
    worker.process.kill('SIGKILL')
    await exited(worker)
    await sql`update workers set seen_at = seen_at - interval '16 s'`.execute(fresh.db)
    assert.equal((await find())?.alive, false)
  })

  test('ends with exit 0 and what it has in hand done when all workers are asked to stop', async () => {
    const env = { JOB_BATCH: '10' }
    const workers = [start([], env), start(['--concurrency=2'], env)]
    await until(async () => (await readWorkers(fresh.db)).length === 2)
    await send(400, () => ({ ms: 50 }))
    await until(async () => new Set((await readRuns(fresh.db)).map(({ pid }) => pid)).size === 2)
    await requestStop(fresh.db)
    for (const worker of workers) {
      assert.equal(await exited(worker), 0, worker.output())
      assert.ok(worker.lines().some(({ reason }) => reason === 'all workers were asked to'))
    }
    const ran = new Set((await readRuns(fresh.db)).map(({ n }) => n))
    for (const { n, state, attempts } of await readStates(fresh.db)) {
      assert.deepEqual([state, attempts], [ran.has(n) ? 'completed' : 'created', 0])
    }
    assert.deepEqual(await readWorkers(fresh.db), [])
  })

  test('begins a job at once, also after its listening connection was cut', async () => {
    const worker = start([], { JOB_POLL_MS: '600000' })
    const listening = () => listenersOf(fresh)
    await until(async () => (await listening()).length === 1)
    await send(1)
    await done(1)
    const [before] = await listening()
    await sql`select pg_terminate_backend(${before})`.execute(fresh.db)
    await until(async () => (await listening()).some((pid) => pid !== before))
    await send(1)
    await done(2)
    await stop(worker)
  })

  test('finds jobs at its own pace when nobody can wake it, and says so', async () => {
    const worker = start([], {
      JOB_POLL_MS: '100',
      DATABASE_DIRECT_URL: 'postgres://nobody@127.0.0.1:1/none',
    })
    await until(() => said(worker, 'is not woken by new jobs, and looks for them at its own pace'))
    await send(5)
    await done(5)
    await stop(worker)
  })
})

async function listenersOf({ db }: TestDatabase): Promise<number[]> {
  const { rows } = await sql<{ pid: number }>`
    select pid from pg_stat_activity where datname = current_database()
      and application_name = 'flotilla:test-jobs:listen' and query = 'listen flotilla_jobs'
      and state = 'idle'`.execute(db)
  return rows.map(({ pid }) => pid)
}

type Seen = { done: number; failed: number; most: number }

describe('a limit', () => {
  for (const { args, says, reason, check } of [
    {
      args: ['--limit=7'],
      says: 'it has handled 7 messages',
      reason: 'the limit of 7 messages',
      check: ({ done, failed }: Seen) => assert.equal(done + failed, 7),
    },
    {
      args: ['--failure-limit=3', '--concurrency=1'],
      says: '3 failures have happened',
      reason: 'the limit of 3 failures',
      check: ({ failed }: Seen) => assert.equal(failed, 3),
    },
    {
      args: ['--memory-limit=10M'],
      says: 'more than 10 MB are resident',
      reason: /^the memory limit, with \d+ MB resident$/,
      check: () => {},
    },
    {
      args: ['--once', '--concurrency=3'],
      says: 'there is nothing to do',
      reason: 'there is nothing left to do',
      check: ({ done, most }: Seen) => {
        assert.equal(done, 15)
        assert.equal(most, 3)
      },
    },
  ]) {
    test(`${args.join(' ')} is told at the start, and ends a worker with exit 0`, async (t) => {
      const own = await testDatabase()
      const jobs = openJobs(own.database)
      t.after(() => jobs.close())
      await createRuns(own.db)
      await sendNumbered(own.db, jobs, 20, (n) => (n % 4 === 0 ? { does: 'fail' } : { ms: 5 }))
      const worker = startJobWorker(own.url, [...args, '--time-limit=600'])
      assert.equal(await exited(worker), 0, worker.output())
      const first = worker.lines()[0]?.msg
      assert.match(String(first), new RegExp(`^stops by itself when .*${says}`))
      const told = worker.lines().find(({ msg }) => msg === 'stopping')?.reason
      if (typeof reason === 'string') assert.equal(told, reason)
      else assert.match(String(told), reason)
      const { rows } = await sql<Seen>`
        select count(*) filter (where state = 'completed')::int as done,
          (select count(*)::int from job_errors) as failed, (select max(beside) from runs) as most
        from ${everyJob} where name = 'commands'`.execute(own.db)
      check(rows[0]!)
    })
  }
})
