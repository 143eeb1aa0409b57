// The job table in the hands of an operator, on a real Postgres: what is shown, and what is retried, removed, cancelled,
// also beside workers, twice at once and again.

import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { after, before, beforeEach, describe, test } from 'node:test'
import { sql } from 'kysely'
import { readAudit, writeAttempt, writeAudit } from '../db/attempts.ts'
import { type Job, type Jobs, openJobs } from '../db/jobs.ts'
import {
  cancelJob,
  findJobs,
  idRange,
  type JobState,
  listFailed,
  listJobs,
  readAuditsOf,
} from '../db/operate.ts'
import { countFailed, findFailed, readFailedCounts, retryFailed } from '../db/redrive.ts'
import { transaction } from '../db/transaction.ts'
import { type QueueName, queues } from '../domain/queues.ts'
import { cancelledCommand } from '../workers/problem.ts'
import { removeFailed } from '../workers/removeFailed.ts'
import { type TestDatabase, testDatabase } from './database.ts'
import { bury } from './failedJobs.ts'
import { emptyJobs } from './jobRows.ts'
import { until } from './worker.ts'

describe('an operator', () => {
  let test1: TestDatabase
  let jobs: Jobs

  before(async () => {
    test1 = await testDatabase()
    jobs = openJobs(test1.database)
  })
  after(() => jobs.close())
  beforeEach(async () => {
    await emptyJobs(test1.db)
    await sql`truncate job_errors, job_audits`.execute(test1.db)
  })

  const fetchOne = async (queue: QueueName): Promise<Job> => {
    const [job] = await jobs.fetch(queue, 1)
    assert.ok(job, `a job is due in ${queue}`)
    return job
  }
  const stateOf = async (id: string): Promise<string> => {
    const [job, ...more] = await findJobs(test1.db, id)
    assert.deepEqual(more, [])
    return job?.state ?? 'gone'
  }
  const allFailed = async () => (await countFailed(test1.db)).failed

  test('finds a job in every state, and lists it in that one alone', async () => {
    const send = async (delayMs = 0) => {
      const id = randomUUID()
      await jobs.send(test1.db, 'inbox', [{ id, data: { type: 'x' }, delayMs }])
      return id
    }
    const ids: Partial<Record<JobState, string>> = {}
    ids.failed = await send()
    await jobs.fail(await fetchOne('inbox'), new Error('hopeless'), 'dead')
    ids.finished = await send()
    await cancelJob(test1.db, { queue: 'inbox', id: ids.finished }, cancelledCommand)
    ids.active = await send()
    await fetchOne('inbox')
    ids.ready = await send()
    ids.delayed = await send(60_000)
    for (const [state, id] of Object.entries(ids) as [JobState, string][]) {
      const rows = await listJobs(test1.db, 'inbox', state, 50)
      assert.deepEqual(
        rows.map((row) => [row.id, row.state]),
        [[id, state]],
      )
      assert.equal(await stateOf(id), state)
    }
    assert.equal((await listJobs(test1.db, 'inbox', undefined, 50)).length, 5)
    assert.equal((await listJobs(test1.db, 'email', undefined, 50)).length, 0)
  })

  test('sees attempts as people count them', async () => {
    await jobs.send(test1.db, 'email', [{ data: {} }])
    const attempts = async () => (await listJobs(test1.db, 'email', undefined, 1))[0]?.attempts
    assert.equal(await attempts(), 0)
    await jobs.fail(await fetchOne('email'), new Error('no'), { delayMs: 0 })
    assert.equal(await attempts(), 1)
    await jobs.fail(await fetchOne('email'), new Error('no'), 'dead')
    const [failed] = await listFailed(test1.db, ['email'], 1)
    assert.equal(failed?.attempts, 2)
    assert.equal(failed?.error, 'no')
  })

  test('is understood with either id of a failed job, and with the beginning of one', async () => {
    const [one, two] = await bury(test1.db, 'email', 2)
    assert.ok(one && two)
    for (const given of [one.id, one.dead_id, one.id.slice(0, 8), one.dead_id.slice(0, 13)]) {
      const { found, unknown, ambiguous } = await findFailed(test1.db, [given])
      assert.deepEqual({ found, unknown, ambiguous }, { found: [one], unknown: [], ambiguous: [] })
      assert.equal((await findJobs(test1.db, given))[0]?.dead_id, one.dead_id)
    }
    const both = await findFailed(test1.db, [one.id, one.dead_id, two.id, 'ffffffff'])
    assert.deepEqual(both.found, [one, two])
    assert.deepEqual(both.unknown, ['ffffffff'])
    assert.deepEqual((await findFailed(test1.db, [one.id], ['inbox'])).unknown, [one.id])
  })

  test('is told when the beginning of an id is that of several', async () => {
    const same = 'abcdef01-0000-4000-8000-00000000000'
    await bury(test1.db, 'email', 2, { ids: [`${same}1`, `${same}2`] })
    const { ambiguous, found } = await findFailed(test1.db, ['abcdef01'])
    assert.equal(found.length, 0)
    assert.deepEqual(new Set(ambiguous[0]?.ids), new Set([`${same}1`, `${same}2`]))
  })

  test('is told the ids in the dead letter queues when two of them have one job', async () => {
    const id = randomUUID()
    const dead = [
      ...(await bury(test1.db, 'outbox', 1, { ids: [id] })),
      ...(await bury(test1.db, 'inbox', 1, { ids: [id] })),
    ].map(({ dead_id }) => dead_id)
    const { ambiguous } = await findFailed(test1.db, [id])
    assert.deepEqual(new Set(ambiguous[0]?.ids), new Set(dead))
    const { found } = await findFailed(test1.db, dead)
    assert.equal(found.length, 2)
  })

  test('knows what may be an id', () => {
    assert.deepEqual(idRange('ABCDEF01'), {
      first: 'abcdef01-0000-0000-0000-000000000000',
      last: 'abcdef01-ffff-ffff-ffff-ffffffffffff',
    })
    const id = randomUUID()
    assert.deepEqual(idRange(id), { first: id, last: id })
    for (const text of ['', 'abcdef0', 'xyzxyzxy', `${id}0`, "' or true --"]) {
      assert.equal(idRange(text), undefined)
    }
  })

  test('retries a job under its own id, with a fresh count of attempts, and its audit says so', async () => {
    await jobs.send(test1.db, 'email', [{ data: { type: 'email', n: 1 }, priority: 7 }])
    const job = await fetchOne('email')
    await jobs.fail(job, new Error('no'), 'dead')
    const [failed] = await listFailed(test1.db, ['email'], 1)
    assert.ok(failed?.dead_id)
    await transaction(test1.db, async (tx) => {
      const key = { jobId: job.id, queue: 'email', attempt: 1 }
      await writeAttempt(tx, key, 'failed', new Error('no'))
      if (!(await readAudit(tx, failed.dead_id as string))) {
        await writeAudit(tx, key, failed.dead_id as string, 'email')
      }
    })

    const moved = await retryFailed(test1.db, { deadIds: [failed.dead_id] })
    assert.deepEqual(moved, [{ id: job.id, queue: 'email', dead_id: failed.dead_id }])
    const audit = await readAudit(test1.db, failed.dead_id)
    assert.equal(audit?.resolvedAs, 'retried')
    assert.deepEqual(
      audit?.errors.map(({ message }) => message),
      ['no'],
    )
    assert.equal((await readAuditsOf(test1.db, job.id)).length, 1)
    const again = await fetchOne('email')
    assert.equal(again.id, job.id)
    assert.equal(again.attempt, 1)
    assert.equal(again.attemptsMax, 3)
    assert.deepEqual(again.data, { type: 'email', n: 1 })
    assert.deepEqual(again.createdAt, job.createdAt)
    assert.equal(await allFailed(), 0)
  })

  test('retries a job whose own row is gone already, under the same id', async () => {
    const [one] = await bury(test1.db, 'email', 1)
    assert.ok(one)
    await sql`delete from pgboss.job where name = 'email'`.execute(test1.db)
    await retryFailed(test1.db, { deadIds: [one.dead_id] })
    const again = await fetchOne('email')
    assert.equal(again.id, one.id)
    assert.equal(again.attempt, 1)
    // It is a job like any other: it can die and be retried again.
    await jobs.fail(again, new Error('no'), 'dead')
    assert.equal(await allFailed(), 1)
  })

  test('retries a job under a new id when a later one has taken its own', async () => {
    const [one] = await bury(test1.db, 'email', 1)
    assert.ok(one)
    await sql`delete from pgboss.job where name = 'email'`.execute(test1.db)
    await jobs.send(test1.db, 'email', [{ id: one.id, data: { later: true } }])
    const [moved] = await retryFailed(test1.db, { deadIds: [one.dead_id] })
    assert.notEqual(moved?.id, one.id)
    const both = await jobs.fetch('email', 10)
    assert.deepEqual(new Set(both.map(({ id }) => id)), new Set([one.id, moved?.id]))
  })

  test('retries nothing twice: two at once, and again', async () => {
    const dead = await bury(test1.db, 'inbox', 60)
    const deadIds = dead.map(({ dead_id }) => dead_id)
    const others = [test1.open(), test1.open(), test1.open()]
    const moved = await Promise.all(
      others.map(({ db }, n) =>
        retryFailed(db, { deadIds: n % 2 === 0 ? deadIds : deadIds.toReversed() }),
      ),
    )
    assert.equal(moved.flat().length, 60)
    assert.deepEqual(await retryFailed(test1.db, { deadIds }), [])
    const fetched = await jobs.fetch('inbox', 100)
    assert.deepEqual(new Set(fetched.map(({ id }) => id)), new Set(dead.map(({ id }) => id)))
    assert.equal(fetched.length, 60)
  })

  test('retries all beside workers and another operator: each runs once, none is lost', async () => {
    const dead = await bury(test1.db, 'inbox', 300)
    const ran: string[] = []
    const { before } = await countFailed(test1.db)
    const operators = [test1.open(), test1.open()].map(async ({ db }) => {
      let count = 0
      for (;;) {
        const moved = await retryFailed(db, { queues: ['inbox'], before, batchMax: 50 })
        if (moved.length === 0) return count
        count += moved.length
      }
    })
    let isOver = false
    const workers = [test1.open(), test1.open()].map(async (database) => {
      const own = openJobs(database)
      for (;;) {
        const wasOver = isOver
        const batch = await own.fetch('inbox', 40)
        ran.push(...batch.map(({ id }) => id))
        // Every third fails again at once: it is not taken again by those who are at it.
        const [bad, good] = [0, 1].map((n) => batch.filter((_, at) => (at % 3 === 0) === (n === 0)))
        await own.complete(database.db, 'inbox', good ?? [])
        for (const job of bad ?? []) await own.fail(job, new Error('again'), 'dead')
        if (batch.length === 0 && wasOver) return await own.close()
      }
    })
    const counts = await Promise.all(operators)
    isOver = true
    await Promise.all(workers)
    assert.equal((counts[0] as number) + (counts[1] as number), 300)
    assert.equal(ran.length, 300)
    assert.deepEqual(new Set(ran), new Set(dead.map(({ id }) => id)))
  })

  test('meets those alone that had failed before, and the queues asked for', async () => {
    await bury(test1.db, 'inbox', 2)
    await bury(test1.db, 'email', 3)
    const { before, failed } = await countFailed(test1.db, ['email'])
    assert.equal(failed, 3)
    await bury(test1.db, 'email', 1)
    const chosen = { queues: ['email'] as QueueName[], before, batchMax: 10 }
    assert.equal((await retryFailed(test1.db, chosen)).length, 3)
    assert.equal((await retryFailed(test1.db, chosen)).length, 0)
    assert.deepEqual(
      (await readFailedCounts(test1.db)).map(({ queue, failed }) => [queue, failed]),
      queues.map(({ name }) => [name, { inbox: 2, email: 1 }[name as string] ?? 0]),
    )
  })

  test('removes failed jobs with all they carried; the audit stays and says so', async () => {
    const [one, two] = await bury(test1.db, 'email', 2)
    assert.ok(one && two)
    const moved = await removeFailed(test1.db, { deadIds: [one.dead_id] })
    assert.deepEqual(moved, [one])
    assert.deepEqual(await removeFailed(test1.db, { deadIds: [one.dead_id] }), [])
    const { rows } = await sql<{ id: string }>`select id from pgboss.job order by id`.execute(
      test1.db,
    )
    assert.deepEqual(new Set(rows.map(({ id }) => id)), new Set([two.id, two.dead_id]))
    assert.equal((await readAudit(test1.db, one.dead_id))?.resolvedAs, 'removed')
    assert.equal((await readAuditsOf(test1.db, one.id.slice(0, 8))).length, 1)
    assert.equal((await readAudit(test1.db, two.dead_id))?.resolvedAs, null)
  })

  test('leaves a failed job whose queue is no more where it is', async () => {
    const [one] = await bury(test1.db, 'email', 1)
    assert.ok(one)
    await sql`update pgboss.job set source_name = 'retired' where id = ${one.dead_id}`.execute(
      test1.db,
    )
    assert.deepEqual(await retryFailed(test1.db, { deadIds: [one.dead_id] }), [])
    assert.equal(await allFailed(), 1)
  })

  test('cancels what waits; it does not run, and is cancelled once', async () => {
    const id = randomUUID()
    await jobs.send(test1.db, 'email', [{ id, data: {} }])
    assert.equal(await cancelJob(test1.db, { queue: 'email', id }, cancelledCommand), 'cancelled')
    assert.equal(await cancelJob(test1.db, { queue: 'email', id }, cancelledCommand), 'lost')
    assert.deepEqual(await jobs.fetch('email', 1), [])
  })

  test('cancels what runs: its worker has no say any more, and it does not run again', async () => {
    await jobs.send(test1.db, 'email', [{ data: {} }])
    const job = await fetchOne('email')
    assert.equal(await cancelJob(test1.db, job, cancelledCommand), 'cancelled')
    assert.equal(await jobs.complete(test1.db, 'email', [job]), 0)
    const failed = await jobs.fail(job, new Error('no'), { delayMs: 0 })
    assert.equal(failed.became, 'cancelled')
    assert.deepEqual(await jobs.touch('email', [job]), [{ job, cancelled: true }])
    assert.equal(await stateOf(job.id), 'finished')
    assert.deepEqual(await jobs.fetch('email', 1), [])
  })

  test('cancels what its worker is just giving back: it does not run again', async () => {
    for (const inHand of [1, 2]) {
      await emptyJobs(test1.db)
      await jobs.send(test1.db, 'email', [{ data: {} }, { data: {} }].slice(0, inHand))
      const [job] = await jobs.fetch('email', inHand)
      assert.ok(job?.claim)
      const worker = await test1.db.startTransaction().execute()
      await sql`select settle_claims('email', array[${job.claim.id}]::bigint[],
        array[${'10'.slice(0, inHand)}], 'created')`.execute(worker)
      const cancelled = cancelJob(test1.db, job, cancelledCommand)
      await until(async () => (await waiting()) === 1)
      await worker.commit().execute()
      assert.equal(await cancelled, 'cancelled')
      assert.deepEqual(await jobs.fetch('email', 2), [])
    }
  })

  const waiting = async (): Promise<number> => {
    const { rows } = await sql`
      select from pg_stat_activity
      where datname = current_database() and wait_event_type = 'Lock'`.execute(test1.db)
    return rows.length
  }
})
