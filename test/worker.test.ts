// The life of a worker: its command line, its loop, its passes over jobs, and a whole process from start to end.

import assert from 'node:assert/strict'
import { fork } from 'node:child_process'
import { once } from 'node:events'
import { createServer } from 'node:net'
import { join } from 'node:path'
import { after, before, beforeEach, describe, test } from 'node:test'
import { sql } from 'kysely'
import { type Jobs, openJobs } from '../db/jobs.ts'
import { openDatabase } from '../db/open.ts'
import { cancelJob } from '../db/operate.ts'
import {
  batchPass,
  jobPass,
  Postpone,
  RetryAfter,
  recoverLoop,
  Unrecoverable,
} from '../workers/jobs.ts'
import { createBudget, describeLimits, parseLimits, UsageError } from '../workers/limits.ts'
import { createLog } from '../workers/log.ts'
import { backoffDelayMs, createLoopState, type Loop, type Pass, runLoop } from '../workers/loop.ts'
import { cancelledCommand } from '../workers/problem.ts'
import { type TestDatabase, testDatabase } from './database.ts'
import { emptyJobs, everyJob, loseLife } from './jobRows.ts'
import { openCable } from './servers/cable.ts'
import { exited, startWorker, until } from './worker.ts'

const all = Number.POSITIVE_INFINITY
const silent = createLog('test', 'silent')

describe('the limits', () => {
  test('are read from the command line', () => {
    assert.deepEqual(parseLimits([]), { once: false, graceSeconds: 25 })
    const argv =
      '--limit 5 --time-limit=55 --memory-limit 128M --failure-limit 3 --once --concurrency 4 --grace 0'
    assert.deepEqual(parseLimits(argv.split(' ')), {
      limit: 5,
      timeLimitSeconds: 55,
      memoryLimitBytes: 134_217_728,
      failureLimit: 3,
      once: true,
      concurrency: 4,
      graceSeconds: 0,
    })
  })

  test('are refused when they are none, with what is right', () => {
    const wrong: [string[], RegExp][] = [
      [['--limit', '0'], /--limit must be a whole number above 0 \(it is "0"\)/],
      [['--memory-limit', 'much'], /a size such as 128M or 1G/],
      [['--limits', '5'], /Unknown option '--limits'/],
      [['fast'], /fast/],
    ]
    for (const [argv, message] of wrong) {
      assert.throws(
        () => parseLimits(argv),
        (error) => error instanceof UsageError && message.test(error.message),
      )
    }
  })

  test('say what will stop the worker', () => {
    assert.equal(describeLimits(parseLimits([])), 'runs until it is told to stop')
    assert.equal(
      describeLimits(parseLimits(['--limit=5', '--memory-limit=1G'])),
      'stops by itself when it has handled 5 messages, or more than 1024 MB are resident',
    )
  })

  test('are reached by messages, failures, time and memory', () => {
    let [now, resident] = [0, 100]
    const budget = (argv: string[]) =>
      createBudget(parseLimits(argv), { nowMs: () => now, residentBytes: () => resident })
    const some = budget(['--limit=5', '--failure-limit=2'])
    some.handled(3)
    assert.deepEqual([some.handledMax, some.reached()], [2, undefined])
    some.failed(2)
    assert.match(some.reached() ?? '', /2 failures/)
    some.handled(2)
    assert.match(some.reached() ?? '', /5 messages/)
    const bounded = budget(['--time-limit=1', '--memory-limit=1K'])
    assert.equal(bounded.reached(), undefined)
    now = 1000
    assert.match(bounded.reached() ?? '', /time limit of 1 s/)
    ;[now, resident] = [0, 2000]
    assert.match(bounded.reached() ?? '', /memory limit/)
  })
})

describe('the loop', () => {
  const run = async (loop: Loop, argv: string[] = []) => {
    const stopping = new AbortController()
    const limits = parseLimits(argv)
    const seen = { handled: 0, failed: 0, reason: '' }
    const state = createLoopState(loop)
    await runLoop(loop, state, {
      signal: stopping.signal,
      budget: createBudget(limits),
      once: limits.once,
      log: silent,
      observer: {
        passed(_loop, count) {
          seen.handled += count
        },
        failed() {
          seen.failed++
        },
      },
      stop(reason) {
        seen.reason = reason
        stopping.abort()
      },
    })
    return { ...seen, state }
  }

  test('passes on at once while there is something, until there is nothing', async () => {
    const outcomes = [3, 2, 0, 9]
    const pass = async () => outcomes.shift() as number
    const { handled } = await run({ name: 'test', pass, idleMs: 1e6 }, ['--once'])
    assert.equal(handled, 5)
    assert.deepEqual(outcomes, [9])
  })

  test('stops between passes at the limit, and asks for no more than is left', async () => {
    const asked: number[] = []
    const pass = async (_signal: AbortSignal, handledMax: number) => {
      asked.push(handledMax)
      return Math.min(4, handledMax)
    }
    const { handled, reason } = await run({ name: 'test', pass, idleMs: 1 }, ['--limit=10'])
    assert.deepEqual([handled, asked], [10, [10, 6, 2]])
    assert.equal(reason, 'the limit of 10 messages')
  })

  test('outlives a pass that throws, and is well again after a good one', async () => {
    let calls = 0
    const pass = async () => {
      calls++
      if (calls === 1) throw new Error('the database is away')
      return 0
    }
    const { failed, state } = await run({ name: 'test', pass, idleMs: 1 }, ['--once'])
    assert.deepEqual([calls, failed], [2, 1])
    assert.deepEqual([state.good, state.failures, state.lastError], [true, 0, undefined])
  })

  test('ends after --failure-limit', async () => {
    const pass = () => Promise.reject(new Error('no'))
    const { failed, reason } = await run({ name: 'test', pass, idleMs: 1 }, ['--failure-limit=1'])
    assert.deepEqual([failed, reason], [1, 'the limit of 1 failures'])
  })

  test('waits as long as a pass says, and does not take that for the end', async () => {
    const outcomes = [{ waitMs: 1 }, 2, 0]
    const pass = async () => outcomes.shift() as number
    const { handled } = await run({ name: 'test', pass, idleMs: 1e6 }, ['--once'])
    assert.equal(handled, 2)
  })

  test('waits longer and longer after failures, up to 30 s, half of it random', () => {
    const delays = [1, 2, 3, 10].map((n) => [backoffDelayMs(n, 0), backoffDelayMs(n, 1)])
    assert.deepEqual(delays, [
      [250, 500],
      [500, 1000],
      [1000, 2000],
      [15_000, 30_000],
    ])
  })
})

describe('a pass over jobs', () => {
  let fresh: TestDatabase
  let jobs: Jobs
  let failures: number
  let stopping: AbortController
  let dying: AbortController

  before(async () => {
    fresh = await testDatabase()
    jobs = openJobs(fresh.database)
  })
  after(() => jobs.close())
  beforeEach(async () => {
    await emptyJobs(fresh.db)
    failures = 0
    stopping = new AbortController()
    dying = new AbortController()
  })

  const worker = () => ({
    log: silent,
    failed(count: number) {
      failures += count
    },
    dying: dying.signal,
    database: fresh.database,
  })
  const shared = () => ({ jobs, db: fresh.db, queue: 'commands', worker: worker() }) as const
  const number = (data: unknown) => {
    const { n } = data as { n: number }
    if (typeof n !== 'number') throw new Error('n must be a number')
    return n
  }
  const send = (...data: object[]) =>
    jobs.send(
      fresh.db,
      'commands',
      data.map((one) => ({ data: one })),
    )
  const rows = async (queue = 'commands') => {
    const { rows } = await sql<{ n: number; state: string; attempts: number; dueMs: number }>`
      select (data->>'n')::int as n, state, retry_count as attempts,
        (extract(epoch from start_after) * 1000)::float8 as "dueMs"
      from ${everyJob} where name = ${queue} order by data->>'n'`.execute(fresh.db)
    return rows
  }
  const databaseMs = async () => {
    const { rows } = await sql<{ ms: number }>`
      select (extract(epoch from clock_timestamp()) * 1000)::float8 as ms`.execute(fresh.db)
    return rows[0]!.ms
  }
  const untilDropped = (signal: AbortSignal) =>
    new Promise<never>((_resolve, reject) =>
      signal.addEventListener('abort', () => reject(signal.reason)),
    )
  /** On a slow machine a pass may come back before it has settled all that it has in hand. */
  const handledBy = async (pass: Pass, count: number) => {
    let handled = 0
    while (handled < count) {
      const outcome = await pass(stopping.signal, all)
      assert.notEqual(outcome, 0, `${handled} of ${count} jobs were handled`)
      if (typeof outcome === 'number') handled += outcome
    }
    assert.equal(handled, count)
  }
  const numbers = (count: number) => Array.from({ length: count }, (_, n) => ({ n }))

  test('completes what its handler did, so many at once and no more', async () => {
    await send(...numbers(20))
    let [running, most] = [0, 0]
    const pass = jobPass({
      ...shared(),
      batchMax: 20,
      concurrency: 4,
      decode: number,
      async handle() {
        most = Math.max(most, ++running)
        await new Promise((resolve) => setImmediate(resolve))
        running--
      },
    })
    await handledBy(pass, 20)
    assert.equal(await pass(stopping.signal, all), 0)
    assert.equal(most, 4)
    assert.deepEqual(new Set((await rows()).map((row) => row.state)), new Set(['completed']))
  })

  test('settles each failure as its kind asks', async () => {
    await send(...numbers(5), { n: 'five' })
    const pass = jobPass({
      ...shared(),
      batchMax: 20,
      concurrency: 2,
      decode: number,
      async handle({ data: n }) {
        if (n === 0) throw new Error('no')
        if (n === 1) throw new RetryAfter(20_000, 'busy')
        if (n === 2) throw new Postpone(60_000, 'not now')
        if (n === 3) throw new Unrecoverable('never')
      },
    })
    const found = await sql`update pgboss.job set data = '{"n": null}' where data->>'n' = 'five'`
    await found.execute(fresh.db)
    const began = await databaseMs()
    await handledBy(pass, 6)
    const ended = await databaseMs()
    const settled = await rows()
    assert.deepEqual(
      settled.map(({ n, state }) => [n, state]),
      [
        [0, 'retry'],
        [1, 'retry'],
        [2, 'created'],
        [3, 'failed'],
        [4, 'completed'],
        [null, 'failed'],
      ],
    )
    // Counted from when the pass settled it, however long the pass took.
    for (const [n, delayMs] of [1000, 20_000, 60_000].entries()) {
      const settledAt = settled[n]!.dueMs - delayMs
      assert.ok(began <= settledAt && settledAt <= ended, `${n}: ${settledAt - began} ms`)
    }
    assert.deepEqual(
      (await rows('commands.dead')).map((row) => row.n),
      [3, null],
    )
    // A postponed job did not fail.
    assert.equal(failures, 4)
  })

  test('gives back what it did not begin when it is told to stop', async () => {
    await send(...numbers(10))
    const pass = jobPass({
      ...shared(),
      batchMax: 10,
      concurrency: 1,
      decode: number,
      async handle({ data: n }) {
        if (n === 2) stopping.abort()
      },
    })
    await handledBy(pass, 3)
    assert.deepEqual(
      (await rows()).map(({ state, attempts }) => [state, attempts]),
      [...Array(3).fill(['completed', 0]), ...Array(7).fill(['created', 0])],
    )
  })

  test('begins no job that has waited in its hands for half of its time', async (t) => {
    await send(...numbers(4))
    let aheadMs = 0
    const now = performance.now.bind(performance)
    t.mock.method(performance, 'now', () => now() + aheadMs)
    const told: string[] = []
    const pass = jobPass({
      ...shared(),
      jobs: {
        ...jobs,
        async release(queue, given) {
          for (const { data } of given) told.push(`back ${number(data)}`)
          await jobs.release(queue, given)
        },
      },
      batchMax: 4,
      concurrency: 1,
      decode: number,
      async handle({ data: n }) {
        told.push(`begun ${n}`)
        if (n === 1) aheadMs = 30_000
      },
    })
    await handledBy(pass, 4)
    const back = ['back 2', 'back 3']
    assert.deepEqual(told, ['begun 0', 'begun 1', ...back, 'begun 2', 'begun 3'])
    assert.deepEqual(
      (await rows()).map(({ state, attempts }) => [state, attempts]),
      Array(4).fill(['completed', 0]),
    )
  })

  test('gives back what it had to drop when the grace is over', async () => {
    await send(...numbers(1))
    const pass = jobPass({
      ...shared(),
      batchMax: 1,
      concurrency: 1,
      decode: number,
      async handle(_job, signal) {
        dying.abort()
        signal.throwIfAborted()
      },
    })
    await pass(stopping.signal, all)
    assert.deepEqual(
      (await rows()).map(({ state, attempts }) => [state, attempts]),
      [['created', 0]],
    )
    assert.equal(failures, 0)
  })

  test('drops what is cancelled: who runs is told, what waits is not begun, and nothing failed', async () => {
    await send(...numbers(6))
    const told: string[] = []
    const begun: number[] = []
    const log = createLog('test', 'silent')
    log.info = (fields: object, message?: string) => {
      if (message?.includes('cancelled')) told.push((fields as { job_id: string }).job_id)
    }
    const cancelled: string[] = []
    const pass = jobPass({
      ...shared(),
      worker: { ...worker(), log },
      batchMax: 6,
      concurrency: 2,
      decode: number,
      async handle({ data: n }, signal) {
        begun.push(n)
        if (n > 1) return
        if (n === 1) return void (await once(signal, 'abort'))
        const { rows } = await sql<{ id: string }>`
          select id from ${everyJob} where (data->>'n')::int in (0, 1, 2)`.execute(fresh.db)
        for (const { id } of rows) {
          cancelled.push(id)
          await cancelJob(fresh.db, { queue: 'commands', id }, cancelledCommand)
        }
        pass.touch?.()
        await untilDropped(signal)
      },
    })
    let handled = 0
    while (handled < 5) handled += Number(await pass(stopping.signal, all))
    assert.equal(await pass(stopping.signal, all), 0)
    assert.deepEqual(
      (await rows()).map(({ n, state, attempts }) => [n, state, attempts]),
      numbers(6).map(({ n }) => [n, n < 3 ? 'cancelled' : 'completed', 0]),
    )
    assert.deepEqual(begun.sort(), [0, 1, 3, 4, 5])
    assert.deepEqual(told.sort(), cancelled.sort())
    assert.equal(failures, 0)
    const { rows: attempts } = await sql`
      select from job_errors where job_id = any(${cancelled}::uuid[])`.execute(fresh.db)
    assert.equal(attempts.length, 0)
  })

  test('tells who runs a job that another worker has by now', async () => {
    await send(...numbers(1))
    const pass = jobPass({
      ...shared(),
      batchMax: 1,
      concurrency: 1,
      decode: number,
      async handle(_job, signal) {
        await loseLife(fresh.db)
        await jobs.recover('commands')
        assert.equal((await jobs.fetchSuspect('commands'))?.attempt, 2)
        pass.touch?.()
        await untilDropped(signal)
      },
    })
    await pass(stopping.signal, all)
    assert.deepEqual(
      (await rows()).map(({ state, attempts }) => [state, attempts]),
      [['active', 1]],
    )
    assert.equal(failures, 0)
  })

  test('commits nothing of a job that was cancelled beneath its batch', async () => {
    await sql`create table written (n int primary key)`.execute(fresh.db)
    await send(...numbers(4))
    let first = true
    const pass = batchPass({
      ...shared(),
      batchMax: 4,
      decode: number,
      async handle(tx, batch) {
        for (const { data: n } of batch) await sql`insert into written values (${n})`.execute(tx)
        const bad = batch.find(({ data }) => data === 2)
        if (first && bad) await cancelJob(fresh.db, bad, cancelledCommand)
        first = false
        return () => {}
      },
    })
    await handledBy(pass, 4)
    const { rows: written } = await sql<{ n: number }>`
      select n from written order by n`.execute(fresh.db)
    assert.deepEqual(
      written.map(({ n }) => n),
      [0, 1, 3],
    )
    assert.deepEqual(
      (await rows()).map(({ state }) => state),
      ['completed', 'completed', 'cancelled', 'completed'],
    )
    assert.equal(failures, 0)
  })

  test('notes what it did, and gives back what it did not, when the database is away meanwhile', async () => {
    await send(...numbers(4))
    const cable = await openCable(fresh.url)
    const far = openDatabase({ url: cable.url, name: 'far' })
    const farJobs = openJobs(far)
    let runs = 0
    const pass = jobPass({
      ...shared(),
      jobs: farJobs,
      db: far.db,
      batchMax: 10,
      concurrency: 1,
      decode: number,
      async handle({ data: n }) {
        runs++
        if (n === 0) cable.pull()
        if (n === 1) {
          cable.pull()
          stopping.abort()
          throw new Error('no')
        }
      },
    })
    const plugging = setInterval(() => cable.plug(), 300)
    try {
      // A look at the queue may be cut off too, which the pass throws and the loop around it takes.
      let handled = 0
      while (handled < 2) handled += Number(await pass(stopping.signal, all).catch(() => 0))
      assert.equal(handled, 2)
    } finally {
      clearInterval(plugging)
      await farJobs.close()
      await far.close()
      cable.pull()
    }
    assert.deepEqual(
      (await rows()).map(({ n, state }) => [n, state]),
      [
        [0, 'completed'],
        [1, 'retry'],
        [2, 'created'],
        [3, 'created'],
      ],
    )
    assert.equal(runs, 2)
  })

  test('notes what it did, however long the database takes to hear of it', async (t) => {
    await send(...numbers(4))
    let aheadMs = 0
    const now = performance.now.bind(performance)
    t.mock.method(performance, 'now', () => now() + aheadMs)
    const [asked, answered] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()]
    const slow: Jobs = {
      ...jobs,
      async complete(...completion) {
        asked.resolve()
        await answered.promise
        return await jobs.complete(...completion)
      },
    }
    const pass = jobPass({
      ...shared(),
      jobs: slow,
      batchMax: 4,
      concurrency: 4,
      decode: number,
      async handle({ data: n }) {
        if (n > 0) await asked.promise
      },
    })
    const passed = pass(stopping.signal, all)
    await asked.promise
    // The others wait in line by now, behind the one that is not answered.
    await new Promise((resolve) => setImmediate(resolve))
    aheadMs = 30_000
    answered.resolve()
    await passed
    await pass.finish?.()
    assert.deepEqual(new Set((await rows()).map((row) => row.state)), new Set(['completed']))
  })

  test('commits a batch with its effect, and lets one bad job fail alone', async () => {
    await sql`create table effects (n int primary key)`.execute(fresh.db)
    await send(...numbers(8))
    const committed: number[] = []
    const pass = batchPass({
      ...shared(),
      batchMax: 10,
      decode: number,
      async handle(tx, batch) {
        for (const { data: n } of batch) {
          await sql`insert into effects values (${n})`.execute(tx)
          if (n === 5) throw new Error('bad')
        }
        return () => committed.push(...batch.map((job) => job.data))
      },
    })
    await handledBy(pass, 8)
    const effects = await sql<{ n: number }>`select n from effects order by n`.execute(fresh.db)
    assert.deepEqual(
      effects.rows.map((row) => row.n),
      [0, 1, 2, 3, 4, 6, 7],
    )
    assert.deepEqual(committed.sort(), [0, 1, 2, 3, 4, 6, 7])
    assert.deepEqual(
      (await rows()).filter(({ state }) => state !== 'completed').map(({ n, state }) => [n, state]),
      [[5, 'retry']],
    )
  })

  test('runs the jobs of a dead worker again', async () => {
    await send(...numbers(2))
    await jobs.fetch('commands', 2)
    const { pass } = recoverLoop({ jobs, queue: 'commands', worker: worker() })
    assert.equal(await pass(stopping.signal, all), 0)
    await loseLife(fresh.db)
    await handledBy(pass, 2)
    const heir = jobPass({
      ...shared(),
      batchMax: 9,
      concurrency: 4,
      decode: number,
      async handle() {},
    })
    assert.equal(await heir(stopping.signal, all), 2)
    assert.deepEqual(
      (await rows()).map(({ state, attempts }) => [state, attempts]),
      [
        ['completed', 1],
        ['completed', 1],
      ],
    )
  })

  test('runs alone what was in hand when its worker died, and buries what kills three', async () => {
    const { pass: recover } = recoverLoop({ jobs, queue: 'commands', worker: worker() })
    const die = async () => {
      await loseLife(fresh.db)
      await recover(stopping.signal, all)
    }
    await send(...numbers(6))
    assert.equal((await jobs.fetch('commands', 6)).length, 6)
    await die()
    await send({ n: 6 }, { n: 7 })
    const together: number[][] = []
    // Three processes, each of which the job 4 kills while it runs: nothing it had in hand is settled.
    for (let life = 1; life <= 3; life++) {
      const running = new Set<number>()
      const killed = Promise.withResolvers<never>()
      killed.promise.catch(() => {})
      const mortal: Jobs = {
        ...jobs,
        complete: (...args) => (running.has(4) ? new Promise(() => {}) : jobs.complete(...args)),
        touch: () => new Promise(() => {}),
      }
      const pass = jobPass({
        ...shared(),
        jobs: mortal,
        batchMax: 9,
        concurrency: 4,
        decode: number,
        async handle({ data: n }) {
          running.add(n)
          together.push([...running])
          if (n === 4) {
            killed.reject(new Error('killed'))
            await new Promise(() => {})
          }
          await new Promise((resolve) => setImmediate(resolve))
          running.delete(n)
        },
      })
      await Promise.race([pass(stopping.signal, all), killed.promise]).catch(() => {})
      await die()
    }
    assert.deepEqual(
      (await rows()).map(({ n, state }) => [n, state]),
      [0, 1, 2, 3, 4, 5, 6, 7].map((n) => [n, n === 4 ? 'failed' : 'completed']),
    )
    assert.deepEqual(
      together.filter((ns) => ns.includes(4)),
      [[4], [4]],
    )
    assert.deepEqual(
      (await rows('commands.dead')).map(({ n }) => n),
      [4],
    )
  })

  test('begins the next job while the last batch still runs', async () => {
    const first = Promise.withResolvers<void>()
    await send(...numbers(30))
    const begun: number[] = []
    const pass = jobPass({
      ...shared(),
      batchMax: 5,
      concurrency: 2,
      decode: number,
      async handle({ data: n }) {
        begun.push(n)
        if (begun.length === 30) first.resolve()
        if (n === 0) await first.promise
      },
    })
    let handled = 0
    while (handled < 30) handled += Number(await pass(stopping.signal, all))
    assert.equal(new Set(begun).size, 30)
  })

  test('begins no more in a second than the queue may', async () => {
    await send(...numbers(9))
    const rate = { name: 'slow', perSecond: 0.001, burst: 4 }
    const pass = jobPass({
      ...shared(),
      rate,
      batchMax: 9,
      concurrency: 9,
      decode: number,
      async handle() {},
    })
    await handledBy(pass, 4)
    const outcome = (await pass(stopping.signal, all)) as { waitMs: number }
    assert.ok(outcome.waitMs > 900_000, JSON.stringify(outcome))
    assert.equal((await rows()).filter(({ state }) => state === 'created').length, 5)
  })

  test('takes nobody for dead who had no database to show a sign of life to', async () => {
    await send(...numbers(1))
    await jobs.fetch('commands', 1)
    const cable = await openCable(fresh.url)
    const far = openDatabase({ url: cable.url, name: 'far' })
    const farJobs = openJobs(far)
    const { pass } = recoverLoop({
      jobs: farJobs,
      queue: 'commands',
      worker: { ...worker(), database: far },
    })
    try {
      assert.equal(await pass(stopping.signal, all), 0)
      cable.pull()
      await assert.rejects(Promise.resolve(pass(stopping.signal, all)))
      await assert.rejects(Promise.resolve(pass(stopping.signal, all)))
      await loseLife(fresh.db)
      await cable.plug()
      assert.equal(await pass(stopping.signal, all), 0)
      assert.equal(await pass(stopping.signal, all), 0)
      assert.equal((await rows())[0]?.state, 'active')
    } finally {
      await farJobs.close()
      await far.close()
      cable.pull()
    }
  })

  test('takes nobody for dead whose database, or machine, stood still for a while', async (t) => {
    await send(...numbers(1))
    await jobs.fetch('commands', 1)
    const [startMs, now] = [Date.now(), performance.now.bind(performance)]
    let passedMs = 0
    t.mock.method(performance, 'now', () => now() + passedMs)
    const query = async () => ({ rows: [{ ms: startMs + passedMs }] })
    const database = { ...fresh.database, pool: { query } as never }
    const { pass } = recoverLoop({ jobs, queue: 'commands', worker: { ...worker(), database } })
    const lookAfter = async (ms: number) => {
      passedMs += ms
      return await pass(stopping.signal, all)
    }
    assert.equal(await lookAfter(0), 0)
    await loseLife(fresh.db)
    assert.equal(await lookAfter(12_000), 0)
    assert.equal(await lookAfter(5000), 0)
    assert.equal((await rows())[0]?.state, 'active')
    // Late again, it does not wait again.
    assert.equal(await lookAfter(8000), 1)
  })
})

describe('a worker process', () => {
  let fresh: TestDatabase
  before(async () => {
    fresh = await testDatabase()
  })

  const freePort = async () => {
    const server = createServer().listen(0, '127.0.0.1')
    await once(server, 'listening')
    return { server, port: (server.address() as { port: number }).port }
  }
  const ask = async (port: number, path: string) => {
    const response = await fetch(`http://127.0.0.1:${port}${path}`)
    return { status: response.status, body: await response.text() }
  }
  const said = (message: string) => (line: Record<string, unknown>) => line.msg === message

  test('tells wrong usage with exit 2, and every bad setting with exit 78', async () => {
    const misused = startWorker('expiry', fresh.url, ['--limit', 'many'])
    assert.equal(await exited(misused), 2)
    assert.match(misused.output(), /--limit must be a whole number above 0 .*\nusage:/)
    const env = { EXPIRY_BATCH: 'lots', LOG_LEVEL: 'loud' }
    const misconfigured = startWorker('expiry', 'mysql://me:secret@host/db', [], env)
    assert.equal(await exited(misconfigured), 78)
    const lines = misconfigured.output().trim().split('\n')
    assert.equal(lines.length, 3)
    assert.match(lines.join(), /DATABASE_URL must be.*LOG_LEVEL must be.*EXPIRY_BATCH must be/)
    assert.ok(!misconfigured.output().includes('secret'))
  })

  test('stops by itself at --time-limit, and says so at the start', async () => {
    const worker = startWorker('expiry', fresh.url, ['--time-limit=1'])
    assert.equal(await exited(worker), 0, worker.output())
    assert.ok(worker.lines().some(said('stops by itself when 1 s have passed')))
    assert.ok(worker.lines().some((line) => line.reason === 'the time limit of 1 s'))
  })

  test('stops by itself at --time-limit also while there is no database', async () => {
    const worker = startWorker('expiry', 'postgres://nobody@127.0.0.1:1/none', ['--time-limit=1'])
    assert.equal(await exited(worker), 0)
    assert.match(
      worker.output(),
      /cannot be reached: tries again.*"reason":"the time limit of 1 s"/s,
    )
  })

  test('exits with 78 on a schema newer than its code', async () => {
    const newer = await testDatabase()
    await sql`insert into schema_migrations (name, timestamp) values ('9999_future', 'now')`.execute(
      newer.db,
    )
    const worker = startWorker('expiry', newer.url)
    assert.equal(await exited(worker), 78, worker.output())
    assert.match(worker.output(), /newer than this code \(9999_future\)/)
    await newer.close()
  })

  test('waits for a schema that is behind, and works once it is migrated', async () => {
    const behind = await testDatabase()
    await sql`update schema_migrations set name = name || '_'`.execute(behind.db)
    await sql`alter table schema_migrations rename to mislaid`.execute(behind.db)
    const { port, server } = await freePort()
    server.close()
    const worker = startWorker('expiry', behind.url, [], { METRICS_PORT: String(port) })
    await until(() => /waits for `fleet migrate`/.test(worker.output()))
    assert.deepEqual(await ask(port, '/readyz'), {
      status: 503,
      body: '{"status":"unavailable","reasons":["starting"]}\n',
    })
    await sql`alter table mislaid rename to schema_migrations`.execute(behind.db)
    await sql`update schema_migrations set name = rtrim(name, '_')`.execute(behind.db)
    await until(async () => (await ask(port, '/readyz')).status === 200)
    worker.process.kill('SIGTERM')
    assert.equal(await exited(worker), 0, worker.output())
    await behind.close()
  })

  test('shows its health and its metrics, and loses readiness with its database', async () => {
    const own = await testDatabase()
    const { port, server } = await freePort()
    server.close()
    const env = { METRICS_PORT: String(port), OUTBOX_POLL_MS: '20' }
    const worker = startWorker('outbox', own.url, [], env)
    await until(() => worker.lines().some(said('relays domain events')))
    await until(async () => (await ask(port, '/readyz')).status === 200)
    assert.equal((await ask(port, '/healthz')).status, 200)
    const metrics = await ask(port, '/metrics')
    assert.match(metrics.body, /^worker_passes_total\{loop="relay"\} [1-9]/m)
    assert.match(metrics.body, /^outbox_lag_rows 0$/m)
    assert.match(metrics.body, /^process_resident_memory_bytes \d/m)
    assert.equal((await ask(port, '/')).status, 404)
    // Every connection is cut, and none is let in: the worker is not ready, and lives.
    const name = new URL(own.url).pathname.slice(1)
    const admin = fresh.db
    await sql`alter database ${sql.id(name)} allow_connections false`.execute(admin)
    await sql`select pg_terminate_backend(pid) from pg_stat_activity
      where datname = ${name}`.execute(admin)
    await until(async () => (await ask(port, '/readyz')).status === 503)
    assert.equal((await ask(port, '/healthz')).status, 200)
    assert.equal((await ask(port, '/metrics')).status, 200)
    await sql`alter database ${sql.id(name)} allow_connections true`.execute(admin)
    await until(async () => (await ask(port, '/readyz')).status === 200)
    assert.equal(worker.process.exitCode, null)
    worker.process.kill('SIGTERM')
    assert.equal(await exited(worker), 0, worker.output())
    await own.close()
  })

  test('takes another metrics port than its own when that is taken, not than the one asked for', async () => {
    const { port, server } = await freePort()
    const asked = startWorker('expiry', fresh.url, [], { METRICS_PORT: String(port) })
    assert.equal(await exited(asked), 78)
    assert.match(asked.output(), /METRICS_PORT \d+ on 127\.0\.0\.1 cannot be listened on/)
    server.close()
    const [first, second] = [1, 2].map(() =>
      startWorker('expiry', fresh.url, [], { METRICS_PORT: '' }),
    )
    assert.ok(first && second)
    const shown = () => [first, second].map((w) => w.lines().some((line) => line.metrics))
    await until(() => shown().every(Boolean))
    for (const worker of [first, second]) {
      worker.process.kill('SIGTERM')
      assert.equal(await exited(worker), 0, worker.output())
    }
    const ports = [first, second].map((w) => w.lines().find((line) => line.metrics)?.metrics)
    assert.equal(new Set(ports).size, 2)
  })

  test('stops when its supervisor is gone', async () => {
    const main = join(import.meta.dirname, '..', 'workers', 'expiry', 'main.ts')
    const env = { PATH: process.env.PATH, DATABASE_URL: fresh.url, METRICS_PORT: '0' }
    const child = fork(main, { env, silent: true })
    let output = ''
    child.stdout?.on('data', (chunk) => {
      output += chunk
    })
    await until(() => output.includes('runs until it is told to stop'))
    child.disconnect()
    const [code] = await once(child, 'exit')
    assert.equal(code, 0, output)
    assert.match(output, /its supervisor is gone/)
  })

  const blocked = async (count: number) => {
    const { rows } = await sql<{ n: number }>`
      select count(*)::int as n from pg_stat_activity
      where datname = current_database() and wait_event_type = 'Lock'`.execute(fresh.db)
    return rows[0]?.n === count
  }

  test('finishes what it has in hand when told to stop, and does not when told twice', async () => {
    const holder = await fresh.open().db.startTransaction().execute()
    await sql`lock table reservations`.execute(holder)
    const [patient, hasty] = ['patient', 'hasty'].map(() => startWorker('expiry', fresh.url))
    assert.ok(patient && hasty)
    await until(() => blocked(2))
    patient.process.kill('SIGTERM')
    hasty.process.kill('SIGTERM')
    await until(() => hasty.lines().some(said('stopping')))
    // What comes within half a second is taken for the same signal.
    const again = setInterval(() => hasty.process.kill('SIGTERM'), 200)
    assert.equal(await exited(hasty), 1, hasty.output())
    clearInterval(again)
    assert.ok(hasty.lines().some(said('told twice: the worker ends now')))
    assert.equal(patient.process.exitCode, null)
    await holder.commit().execute()
    assert.equal(await exited(patient), 0, patient.output())
  })

  test('ends by force when what it has in hand outlasts the grace', async () => {
    const holder = await fresh.open().db.startTransaction().execute()
    await sql`lock table reservations`.execute(holder)
    const worker = startWorker('expiry', fresh.url, ['--grace=0'])
    await until(() => blocked(1))
    worker.process.kill('SIGTERM')
    assert.equal(await exited(worker), 1, worker.output())
    assert.ok(worker.lines().some(said('did not end in time: the worker ends now')))
    await holder.rollback().execute()
  })
})
