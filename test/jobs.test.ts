// The job table on a real Postgres: sending, claiming, settling, and what becomes of a job whose worker is gone.

import assert from 'node:assert/strict'
import { randomBytes, randomUUID } from 'node:crypto'
import { after, before, describe, test } from 'node:test'
import { sql } from 'kysely'
import { v7 as uuidv7 } from 'uuid'
import { readAttempts, readAudit } from '../db/attempts.ts'
import { newIds } from '../db/ids.ts'
import { readQueueRates, readQueueStats } from '../db/jobStats.ts'
import { type Job, type Jobs, openJobs } from '../db/jobs.ts'
import { installJobs, pgbossSchemaVersion } from '../db/jobTable.ts'
import { pauseQueue, readPaused, resumeQueue } from '../db/pauses.ts'
import { retryFailed } from '../db/redrive.ts'
import { transaction } from '../db/transaction.ts'
import { deadLetterOf, type QueueName, queues } from '../domain/queues.ts'
import { type TestDatabase, testDatabase } from './database.ts'
import { claimEarlier, emptyJobs, everyJob, loseLife } from './jobRows.ts'

type Row = {
  id: string
  name: string
  state: string
  data: Record<string, unknown>
  retry_count: number
  dueInMs: number
  output: { message?: string } | null
  source_id: string | null
}

describe('the job table', () => {
  let test1: TestDatabase
  let jobs: Jobs

  before(async () => {
    test1 = await testDatabase()
    await installJobs(test1.database.pool)
    jobs = openJobs(test1.database)
  })
  after(() => jobs.close())

  const rows = async (queue: string): Promise<Row[]> =>
    (
      await sql<Row>`
        select id, name, state, data, retry_count, output, source_id,
          (extract(epoch from start_after - clock_timestamp()) * 1000)::float8 as "dueInMs"
        from ${everyJob} where name = ${queue} order by created_on`.execute(test1.db)
    ).rows
  const empty = () => emptyJobs(test1.db)
  const dueNow = () => sql`update pgboss.job set start_after = clock_timestamp()`.execute(test1.db)
  const fetchOne = async (queue: QueueName): Promise<Job> => {
    const [job] = await jobs.fetch(queue, 1)
    assert.ok(job, `a job is due in ${queue}`)
    return job
  }
  /** Sends them, numbered from 0, and claims them. */
  const fetchMany = async (queue: QueueName, count: number): Promise<Job[]> => {
    const sent = Array.from({ length: count }, (_, n) => ({ data: { n } }))
    await jobs.send(test1.db, queue, sent)
    return await jobs.fetch(queue, count)
  }

  test('is installed twice, and by several at once, without harm', async () => {
    const others = [test1.open(), test1.open()]
    await Promise.all(others.map(({ pool }) => installJobs(pool)))
    const { rows } = await sql<{ name: string }>`
      select name from pgboss.queue order by name`.execute(test1.db)
    assert.deepEqual(
      rows.map(({ name }) => name),
      queues.flatMap(({ name }) => [name, deadLetterOf(name)]).sort(),
    )
  })

  test('gives each job to one of two workers', async () => {
    await empty()
    const sent = Array.from({ length: 40 }, (_, n) => ({ id: randomUUID(), data: { n } }))
    await jobs.send(test1.db, 'inbox', sent)
    const other = openJobs(test1.open())
    const [mine, theirs] = await Promise.all([jobs.fetch('inbox', 20), other.fetch('inbox', 20)])
    await other.close()
    const ids = [...mine, ...theirs].map((job) => job.id)
    assert.equal(mine.length, 20)
    assert.deepEqual(new Set(ids), new Set(sent.map((job) => job.id)))
    assert.equal(await jobs.complete(test1.db, 'inbox', [...mine, ...theirs]), 40)
  })

  test('sends with the commit of the caller, or not at all', async () => {
    await empty()
    const undone = transaction(test1.db, async (tx) => {
      await jobs.send(tx, 'email', [{ data: { n: 1 } }])
      throw new Error('changed my mind')
    })
    await assert.rejects(undone, /changed my mind/)
    assert.equal((await rows('email')).length, 0)
    await transaction(test1.db, (tx) => jobs.send(tx, 'email', [{ data: { n: 2 } }]))
    assert.deepEqual((await fetchOne('email')).data, { n: 2 })
  })

  test('makes one job of two sent under one id', async () => {
    await empty()
    const id = randomUUID()
    await jobs.send(test1.db, 'inbox', [{ id, data: { n: 1 } }])
    await jobs.send(test1.db, 'inbox', [{ id, data: { n: 2 } }, { data: { n: 3 } }])
    assert.deepEqual(
      (await rows('inbox')).map((row) => row.data.n),
      [1, 3],
    )
  })

  test('keeps a delayed job until it is due', async () => {
    await empty()
    await jobs.send(test1.db, 'inbox', [{ data: {}, delayMs: 5000 }])
    assert.deepEqual(await jobs.fetch('inbox', 1), [])
    await dueNow()
    assert.equal((await fetchOne('inbox')).attempt, 1)
  })

  test('runs a failed job again exactly as late as asked, as the next attempt', async () => {
    await empty()
    await jobs.send(test1.db, 'email', [{ data: { n: 1 } }])
    const error = new Error('smtp://me:secret@host said no to anna@example.org')
    const failed = await jobs.fail(await fetchOne('email'), error, { delayMs: 30_000 })
    assert.equal(failed.became, 'retry')
    const [row] = await rows('email')
    assert.ok(row && row.dueInMs > 28_000 && row.dueInMs <= 30_000, `due in ${row?.dueInMs} ms`)
    assert.equal(row.output?.message, 'smtp://***@host said no to ***@***')
    await dueNow()
    const again = await fetchOne('email')
    assert.equal(again.attempt, 2)
    assert.equal(again.id, row.id)
  })

  test('moves a job to the dead letter queue after its last attempt', async () => {
    await empty()
    await jobs.send(test1.db, 'email', [{ data: { n: 1 } }])
    for (const became of ['retry', 'retry', 'dead']) {
      await dueNow()
      const failed = await jobs.fail(await fetchOne('email'), 'no', { delayMs: 0 })
      assert.equal(failed.became, became)
    }
    const [dead] = await rows('email.dead')
    assert.equal(dead?.source_id, (await rows('email'))[0]?.id)
    assert.deepEqual(dead?.data, { n: 1 })
  })

  test('moves a job to the dead letter queue at once when asked', async () => {
    await empty()
    await jobs.send(test1.db, 'inbox', [{ data: { n: 1 } }])
    const failed = await jobs.fail(await fetchOne('inbox'), 'hopeless', 'dead')
    assert.equal(failed.became, 'dead')
    assert.equal((await rows('inbox.dead')).length, 1)
    assert.deepEqual(await jobs.fetch('inbox', 1), [])
  })

  test('takes jobs back without spending an attempt', async () => {
    await empty()
    await jobs.send(test1.db, 'inbox', [{ data: {} }])
    await jobs.fail(await fetchOne('inbox'), 'no', { delayMs: 0 })
    const second = await fetchOne('inbox')
    await jobs.release('inbox', [second])
    assert.equal((await fetchOne('inbox')).attempt, 2)
    await jobs.release('inbox', [second], 60_000)
    assert.deepEqual(await jobs.fetch('inbox', 1), [])
  })

  test('recovers the job of a worker that died, as its next attempt', async () => {
    await empty()
    await jobs.send(test1.db, 'inbox', [{ data: {} }])
    const lost = await fetchOne('inbox')
    assert.deepEqual(await jobs.recover('inbox'), [])
    await loseLife(test1.db)
    const [recovered] = await jobs.recover('inbox')
    assert.equal(recovered?.failed.became, 'retry')
    assert.equal((await jobs.fetchSuspect('inbox'))?.attempt, 2)
    // The first worker was only slow: it has no say any more.
    assert.equal(await jobs.complete(test1.db, 'inbox', [lost]), 0)
    assert.equal((await jobs.fail(lost, 'late', 'dead')).became, 'lost')
    assert.deepEqual(await jobs.touch('inbox', [lost]), [{ job: lost, cancelled: false }])
  })

  test('shows a sign of life without waiting for what is being settled, and hears of what is not its own', async () => {
    await empty()
    const all = await fetchMany('inbox', 5)
    const [locked, kept, gone, cancelled, retried] = all as [Job, Job, Job, Job, Job]
    await sql`update claims set seen_at = seen_at - interval '8 s'`.execute(test1.db)
    await jobs.complete(test1.db, 'inbox', [gone])
    await sql`select cancel_in_hand('inbox', ${cancelled.id})`.execute(test1.db)
    await jobs.release('inbox', [retried])
    const settling = await test1.open().db.startTransaction().execute()
    assert.equal(await jobs.complete(settling, 'inbox', [locked]), 1)
    assert.deepEqual(await jobs.touch('inbox', all), [
      { job: gone, cancelled: false },
      { job: cancelled, cancelled: true },
      { job: retried, cancelled: false },
    ])
    await settling.rollback().execute()
    // What was locked is left alone: the next sign of life shows it.
    assert.equal((await jobs.touch('inbox', [locked, kept])).length, 0)
    const { rows: shown } = await sql`
      select from claims where seen_at > clock_timestamp() - interval '7 s'`.execute(test1.db)
    assert.equal(shown.length, 1)
  })

  test('recovers a job that takes longer than its queue allows', async () => {
    await empty()
    await jobs.send(test1.db, 'email', [{ data: {} }])
    const job = await fetchOne('email')
    await claimEarlier(test1.db, 121)
    assert.deepEqual(await jobs.touch('email', [job]), [])
    const [recovered] = await jobs.recover('email')
    assert.match(recovered?.why ?? '', /longer than its queue allows/)
  })

  test('says how the queues stand, idle ones too', async () => {
    await empty()
    const data = {}
    const sent = Array.from({ length: 6 }, () => ({ data }))
    await jobs.send(test1.db, 'email', [...sent, { data, delayMs: 60_000 }])
    const [done, buried, active, ...due] = await jobs.fetch('email', 5)
    assert.ok(done && buried && active && due.length === 2)
    await jobs.complete(test1.db, 'email', [done])
    await jobs.fail(buried, new Error('no'), 'dead')
    await jobs.release('email', due)
    await sql`update pgboss.job set start_after = clock_timestamp() - interval '90 seconds'
      where id = ${due[0]!.id}`.execute(test1.db)

    const stats = await readQueueStats(test1.db)
    const { oldest_seconds, ...email } = stats.find(({ queue }) => queue === 'email')!
    const counts = { ready: 3, delayed: 1, active: 1, failed: 1 }
    assert.deepEqual(email, { queue: 'email', ...counts, paused: false })
    assert.ok(oldest_seconds && oldest_seconds >= 90 && oldest_seconds < 150, `${oldest_seconds}`)
    const none = { ready: 0, delayed: 0, active: 0, failed: 0 }
    const idle = { ...none, oldest_seconds: null, paused: false }
    assert.deepEqual(stats[0], { queue: 'commands', ...idle })

    // What ended more than a minute ago is no rate of now.
    assert.equal((await readQueueRates(test1.db)).get('email'), 1 / 60)
    await jobs.complete(test1.db, 'email', [active])
    assert.equal((await readQueueRates(test1.db)).get('email'), 2 / 60)
    await sql`update finished_jobs set finished_at = finished_at - interval '61 seconds'`.execute(
      test1.db,
    )
    assert.equal((await readQueueRates(test1.db)).get('email'), 0)
  })

  const die = async (queue: QueueName) => {
    await loseLife(test1.db)
    return (await jobs.recover(queue)).map(({ failed }) => failed.became)
  }

  test('buries a job that was in hand when its worker died, three times', async () => {
    await empty()
    await jobs.send(test1.db, 'inbox', [{ data: { type: 'order.completed' } }])
    const id = (await fetchOne('inbox')).id
    assert.deepEqual(await die('inbox'), ['retry'])
    for (const became of ['retry', 'dead']) {
      // It is kept from those who would run it beside others.
      assert.deepEqual(await jobs.fetch('inbox', 9), [])
      assert.equal(await jobs.suspects('inbox'), true)
      assert.equal((await jobs.fetchSuspect('inbox'))?.id, id)
      assert.deepEqual(await die('inbox'), [became])
    }
    assert.equal(await jobs.suspects('inbox'), false)
    const [dead] = await rows('inbox.dead')
    const audit = await readAudit(test1.db, dead!.id)
    assert.deepEqual(
      [audit?.code, audit?.jobId, audit?.queue, audit?.type, audit?.transport, audit?.attempts],
      ['SASO-INFRA-9100', id, 'inbox', 'order.completed', 'pg-boss', 3],
    )
    assert.match(audit!.errors[2]!.message, /its worker died .* \(3 of 3 times\)/)
    // What an operator gives back has its deaths before it as well.
    await retryFailed(test1.db, { deadIds: [dead!.id] })
    assert.equal((await fetchOne('inbox')).id, id)
    assert.deepEqual(await die('inbox'), ['retry'])
  })

  test('a death that is found late is one all the same: it spends no attempt', async () => {
    await empty()
    await jobs.send(test1.db, 'email', [{ data: {} }])
    await fetchOne('email')
    await claimEarlier(test1.db, 121)
    await loseLife(test1.db)
    const [recovered] = await jobs.recover('email')
    assert.match(recovered?.why ?? '', /its worker died/)
    const suspect = await jobs.fetchSuspect('email')
    assert.deepEqual([suspect?.attempt, suspect?.attemptsMax], [2, 4])
  })

  test('a death spends no attempt: who only shared it has them all, and is free after one run', async () => {
    await empty()
    await jobs.send(test1.db, 'email', [{ data: {} }])
    await fetchOne('email')
    await die('email')
    const suspect = await jobs.fetchSuspect('email')
    assert.deepEqual([suspect?.attempt, suspect?.attemptsMax], [2, 4])
    assert.equal((await jobs.fail(suspect!, 'no', { delayMs: 0 })).became, 'retry')
    assert.equal((await fetchOne('email')).attempt, 3)
    assert.deepEqual(
      (await readAttempts(test1.db, [suspect!.id])).get(suspect!.id)?.map(({ kind }) => kind),
      ['died', 'failed'],
    )
  })

  test('keeps every error of a job, redacted, and writes them down when it is given up', async () => {
    await empty()
    await jobs.send(test1.db, 'email', [{ data: { type: 'a letter to anna@example.org' } }])
    const error = new Error('smtp://me:secret@host refused anna@example.org', {
      cause: new Error('token Bearer abcdefgh12345678'),
    })
    error.stack = `Error: anna@example.org\n${'    at somewhere é\n'.repeat(500)}`
    for (const became of ['retry', 'retry', 'dead']) {
      await dueNow()
      const failed = await jobs.fail(await fetchOne('email'), error, { delayMs: 0 })
      assert.equal(failed.became, became)
    }
    const [dead] = await rows('email.dead')
    const audit = await readAudit(test1.db, dead!.id)
    assert.deepEqual(
      audit?.errors.map(({ attempt, message }) => [attempt, message]),
      [1, 2, 3].map((n) => [n, 'smtp://***@host refused ***@***: token Bearer ***']),
    )
    assert.equal(audit?.type, null)
    const bytes = Buffer.byteLength(audit?.stack ?? '')
    assert.ok(bytes > 4000 && bytes <= 4096, `${bytes} bytes`)
    const all = await sql<{ text: string }>`
      select (select string_agg(e::text, '') from job_errors e) ||
        (select string_agg(a::text, '') from job_audits a) as text`.execute(test1.db)
    assert.doesNotMatch(all.rows[0]!.text, /anna|secret|abcdefgh/)
  })

  test('leaves no record of a failure that did not happen', async () => {
    await empty()
    await sql`delete from job_errors`.execute(test1.db)
    await jobs.send(test1.db, 'email', [{ data: {} }])
    const job = await fetchOne('email')
    assert.equal(await jobs.complete(test1.db, 'email', [job]), 1)
    assert.equal((await jobs.fail(job, 'late', 'dead')).became, 'lost')
    assert.equal((await readAttempts(test1.db, [job.id])).size, 0)
  })

  test('claims nothing from a paused queue, and what was claimed can finish', async () => {
    await empty()
    await jobs.send(test1.db, 'email', [{ data: {} }, { data: {} }])
    const job = await fetchOne('email')
    assert.equal(await pauseQueue(test1.db, 'email'), true)
    assert.equal(await pauseQueue(test1.db, 'email'), false)
    assert.deepEqual(await jobs.fetch('email', 9), [])
    assert.deepEqual([...(await readPaused(test1.db)).keys()], ['email'])
    assert.equal(await jobs.complete(test1.db, 'email', [job]), 1)
    assert.equal(await resumeQueue(test1.db, 'email'), true)
    assert.equal(await resumeQueue(test1.db, 'email'), false)
    assert.equal((await jobs.fetch('email', 9)).length, 1)
  })

  test('keeps finished jobs where the queue says so, and none elsewhere', async () => {
    await empty()
    for (const queue of ['email', 'inbox'] as const) {
      await jobs.send(test1.db, queue, [{ data: {} }])
      assert.equal(await jobs.complete(test1.db, queue, [await fetchOne(queue)]), 1)
    }
    assert.deepEqual(
      [(await rows('email')).map(({ state }) => state), await rows('inbox')],
      [['completed'], []],
    )
  })

  test('claims no more bytes than fit, but one job at least, and one without a payload too', async () => {
    await empty()
    // Dice, as what repeats itself is small where it is kept.
    const big = () => ({ data: { big: randomBytes(3_000_000).toString('base64') } })
    await jobs.send(test1.db, 'inbox', [big(), big(), big(), big(), big(), big()])
    await sql`insert into pgboss.job (name) values ('inbox')`.execute(test1.db)
    const sizes: number[] = []
    for (let claimed = await jobs.fetch('inbox', 9); claimed.length > 0; ) {
      sizes.push(claimed.length)
      assert.equal(await jobs.complete(test1.db, 'inbox', claimed), claimed.length)
      claimed = await jobs.fetch('inbox', 9)
    }
    assert.deepEqual(
      sizes.reduce((a, b) => a + b),
      7,
    )
    assert.ok(sizes.length > 1, `${sizes}`)
  })

  test('what is sent again under its id while it is in hand, or done, does not run again', async () => {
    await empty()
    const sent = [{ id: uuidv7(), data: { n: 1 } }]
    await jobs.send(test1.db, 'email', sent)
    const job = await fetchOne('email')
    await jobs.send(test1.db, 'email', sent)
    assert.deepEqual(await jobs.fetch('email', 9), [])
    assert.equal(await jobs.complete(test1.db, 'email', [job]), 1)
    await jobs.send(test1.db, 'email', sent)
    assert.deepEqual(await jobs.fetch('email', 9), [])
    assert.deepEqual(
      (await rows('email')).map(({ state }) => state),
      ['completed'],
    )
  })

  test('a job that fails while its like waits is that one', async () => {
    await empty()
    const sent = [{ id: uuidv7(), data: { n: 1 } }]
    await jobs.send(test1.db, 'email', sent)
    const job = await fetchOne('email')
    await jobs.send(test1.db, 'email', sent)
    assert.equal((await jobs.fail(job, 'no', { delayMs: 0 })).became, 'retry')
    assert.equal((await fetchOne('email')).attempt, 2)
    assert.deepEqual(await jobs.fetch('email', 9), [])
  })

  test('settles some jobs of a claim and leaves the others in hand', async () => {
    await empty()
    const [a, b, c, d, e, f] = (await fetchMany('email', 6)) as [Job, Job, Job, Job, Job, Job]
    assert.equal(await jobs.complete(test1.db, 'email', [a, c]), 2)
    assert.equal(await jobs.complete(test1.db, 'email', [a, b]), 1)
    await jobs.release('email', [d])
    assert.equal((await jobs.fail(e, 'no', { delayMs: 0 })).became, 'retry')
    const states = (await rows('email')).map(({ data, state }) => [
      (data as { n: number }).n,
      state,
    ])
    assert.deepEqual(states.sort(), [
      [0, 'completed'],
      [1, 'completed'],
      [2, 'completed'],
      [3, 'created'],
      [4, 'retry'],
      [5, 'active'],
    ])
    assert.deepEqual(await jobs.touch('email', [f]), [])
    await loseLife(test1.db)
    assert.equal((await jobs.recover('email')).length, 1)
    const { rows: kept } = await sql<{ n: number }>`
      select (data->>'n')::int as n from finished_jobs order by 1`.execute(test1.db)
    assert.deepEqual(
      kept.map(({ n }) => n),
      [0, 1, 2],
    )
  })

  test('what pg-boss keeps of few jobs outlives a claim', async () => {
    await empty()
    await sql`insert into pgboss.job (name, data, singleton_key, group_id, source_name, source_id, trace_context)
      values ('email', '{}', 'a key', 'a group', 'elsewhere', gen_random_uuid(), '{"a": 1}')`.execute(
      test1.db,
    )
    const read = async () =>
      (
        await sql`select id, singleton_key, group_id, source_name, source_id, trace_context,
          (extract(epoch from created_on) * 1e6)::bigint as at, retry_limit, dead_letter
          from pgboss.job`.execute(test1.db)
      ).rows[0] as Record<string, unknown>
    const { dead_letter: _, retry_limit: _limit, ...before } = await read()
    const job = await fetchOne('email')
    await jobs.release('email', [job])
    const { dead_letter, retry_limit, ...after } = await read()
    assert.deepEqual(after, before)
    assert.equal(dead_letter, 'email.dead')
    assert.equal(retry_limit, 2)
  })

  test('holds a queue to so many active jobs over all workers', async () => {
    await empty()
    await jobs.send(
      test1.db,
      'email',
      Array.from({ length: 9 }, () => ({ data: {} })),
    )
    const claim = async (pool = test1.database.pool) =>
      (await pool.query("select id from claim_batch('email', 5, 3, true)")).rowCount
    const claimed = await Promise.all([claim(), claim(test1.open().pool), claim(test1.open().pool)])
    assert.deepEqual(claimed.sort(), [0, 0, 3])
  })

  test('tidies away finished jobs of more than a day, histories of what is gone, and no others', async () => {
    await empty()
    await jobs.send(test1.db, 'email', [{ data: {} }, { data: {} }, { data: {} }])
    const [old, young, broken] = await jobs.fetch('email', 3)
    await jobs.complete(test1.db, 'email', [old!, young!])
    await jobs.fail(broken!, 'no', { delayMs: 60_000 })
    await sql`update finished_jobs set finished_at = now() - interval '25 hours'
      where id = ${old!.id}`.execute(test1.db)
    await sql`update job_errors set failed_at = now() - interval '25 hours'`.execute(test1.db)
    await jobs.tidy()
    assert.deepEqual(
      new Set((await rows('email')).map(({ id }) => id)),
      new Set([young!.id, broken!.id]),
    )
    assert.equal((await readAttempts(test1.db, [broken!.id])).size, 1)
    await empty()
    await jobs.tidy()
    assert.equal((await readAttempts(test1.db, [broken!.id])).size, 0)
  })

  test('gives ids in ascending order, whatever the clock does, none twice', (t) => {
    const made: string[] = []
    for (const now of [5000, 5000, 4000, 6000]) {
      t.mock.method(Date, 'now', () => now + 4e12)
      made.push(...newIds(1000))
    }
    assert.deepEqual(made, [...new Set(made)].sort())
    assert.ok(made.every((id) => /^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab]/.test(id)))
  })

  test('knows the tables of the pg-boss it was written for', async () => {
    const { rows: found } = await sql<{ version: number }>`
      select version from pgboss.version`.execute(test1.db)
    assert.equal(found[0]?.version, pgbossSchemaVersion, 'compare 0003_jobs.sql with its plans.js')
  })
})
