// Pushes: what a job must bring, that each device ends by its own rule, that nothing is sent twice that was answered, who
// is served first, and what becomes of them while nobody takes them.

import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { readdir, readFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, before, beforeEach, describe, test } from 'node:test'
import { sql } from 'kysely'
import { type Jobs, openJobs } from '../db/jobs.ts'
import { climbRamp } from '../db/ramps.ts'
import { findFailed, retryFailed } from '../db/redrive.ts'
import { transaction } from '../db/transaction.ts'
import { putUser, readDevices } from '../db/users.ts'
import { decodePushJob, type PushJob, pushTemplates, type Target } from '../domain/pushes.ts'
import { pushLanguages, pushText } from '../domain/pushTexts.ts'
import { createLog } from '../workers/log.ts'
import { createCircuit } from '../workers/push/circuit.ts'
import { readCredentials } from '../workers/push/credentials.ts'
import { createFcmProvider } from '../workers/push/fcm.ts'
import { createPace } from '../workers/push/pace.ts'
import type { Push, PushOutcome, PushProvider } from '../workers/push/provider.ts'
import { pushPass } from '../workers/push/push.ts'
import { rampedTake, slotsOf } from '../workers/push/ramp.ts'
import { createTurns, type Take } from '../workers/push/turns.ts'
import { type TestDatabase, testDatabase } from './database.ts'
import { emptyJobs, everyJob, loseLife } from './jobRows.ts'
import { type Fcm, launchFcm, type Reply } from './servers/fcm.ts'
import { endWorkers, exited, startWorker, until } from './worker.ts'

const signal = new AbortController().signal
const all = Number.POSITIVE_INFINITY
const silent = createLog('test', 'silent')
const worker = { log: silent, failed() {}, dying: signal }

const pushJob = (targets: Target[], changed: Partial<PushJob> = {}): PushJob => ({
  job_id: randomUUID(),
  type: 'push',
  template: 'ticket_ready',
  user_id: 'anna',
  fcm_tokens: targets,
  payload: { title: 'Your tickets are here', body: 'Opening night', data: { order_id: '1' } },
  created_at: '2026-12-01T10:00:00.000Z',
  ...changed,
})
const many = (count: number, prefix = 'phone'): string[] =>
  Array.from({ length: count }, (_, i) => `${prefix}-${i}`)

describe('a push job', () => {
  test('is taken with tokens and fids, each once', () => {
    const job = pushJob(['a', { token: 'b' }, { fid: 'c' }, 'a', { fid: 'a' }], {
      priority: 'high',
    })
    assert.deepEqual(decodePushJob(job), {
      ...job,
      fcm_tokens: ['a', 'b', { fid: 'c' }, { fid: 'a' }],
    })
  })

  test('is refused with what is wrong and what is right', () => {
    const good = pushJob(['a'])
    const payload = (changed: object) => ({ ...good, payload: { ...good.payload, ...changed } })
    const wrong: [object, RegExp][] = [
      [{ ...good, type: 'email' }, /type must be "push"/],
      [{ ...good, template: 'spam' }, /template must be one of ticket_ready, quota_invitation/],
      [{ ...good, job_id: '../x' }, /job_id must be an id of letters/],
      [{ ...good, user_id: undefined }, /user_id must be a text/],
      [{ ...good, fcm_tokens: [] }, /fcm_tokens must be a list of 1 to 500 devices/],
      [{ ...good, fcm_tokens: many(501) }, /fcm_tokens must be a list of 1 to 500 devices/],
      [{ ...good, fcm_tokens: ['a', 'b c'] }, /fcm_tokens\[1\] must be a text of 1 to 4096/],
      [{ ...good, fcm_tokens: [{ token: 'a', fid: 'b' }] }, /exactly one of token and fid/],
      [{ ...good, fcm_tokens: [{}] }, /exactly one of token and fid/],
      [{ ...good, priority: 'urgent' }, /priority must be "normal" or "high"/],
      [{ ...good, expires_at: 'soon' }, /expires_at must be a time/],
      [{ ...good, collapse_key: 'x'.repeat(65) }, /collapse_key must be a text of 1 to 64/],
      [payload({ title: 5 }), /payload\.title must be a text/],
      [payload({ data: { n: 5 } }), /the values in payload\.data must be texts/],
      [payload({ data: { from: 'x' } }), /must not use the names from/],
      [payload({ data: { 'google.x': 'x' } }), /must not use the names from/],
      [payload({ body: 'é'.repeat(2050) }), /payload has 41\d\d bytes, and FCM takes 4096/],
    ]
    for (const [data, message] of wrong) assert.throws(() => decodePushJob(data), message)
  })

  test('has its text in the reader’s language, or in English', () => {
    assert.deepEqual(pushLanguages, ['en', 'de', 'hr', 'ja'])
    const values = { event_name: 'Opening\nnight', minutes: 20, position: 7 }
    for (const language of pushLanguages) {
      for (const template of pushTemplates) {
        for (const given of [values, {}]) {
          const { title, body } = pushText(template, language, given)
          assert.ok(title.length > 0 && body.length > 0)
          assert.ok(given !== values || !/[{}\n]/.test(title + body), `${language} ${template}`)
        }
      }
    }
    assert.deepEqual(pushText('queue_your_turn', 'de-AT', values), {
      title: 'Du bist an der Reihe',
      body: 'Du kannst jetzt 20 Minuten lang Tickets kaufen.',
    })
    assert.equal(pushText('queue_your_turn', 'fr').body, 'You can buy your tickets now.')
    assert.match(pushText('ticket_ready', 'constructor', values).body, /^Opening night: open/)
  })
})

describe('turns', () => {
  const takeAll: Take = async (want) => ({ granted: want, waitMs: 0 })

  test('go first to the line of priority, and of ten one to the others', async () => {
    const order: boolean[] = []
    let tokens = 0
    const turns = createTurns({
      log: silent,
      take: async (want) => ({ granted: Math.min(tokens, want), waitMs: 1 }),
    })
    const wait = (isFirst: boolean) => turns.next(isFirst, signal).then(() => order.push(isFirst))
    const waiting = [...Array.from({ length: 30 }, () => wait(false))]
    for (let i = 0; i < 30; i++) waiting.push(wait(true))
    tokens = 60
    await Promise.all(waiting)
    assert.deepEqual(order.slice(0, 30).filter((isFirst) => !isFirst).length, 3)
    assert.deepEqual(order.slice(33).filter((isFirst) => isFirst).length, 0)
  })

  test('that are for later are given at their moment, to whoever is first then', async () => {
    const order: string[] = []
    let next = performance.now() + 20
    const turns = createTurns({
      log: silent,
      async take(want) {
        const waitMs = next - performance.now()
        next += 20 * want
        return { granted: want, waitMs, everyMs: 20 }
      },
    })
    const wait = (name: string, isFirst: boolean) =>
      turns.next(isFirst, signal).then(() => order.push(name))
    const begunAt = performance.now()
    const waiting = ['a', 'b', 'c'].map((name) => wait(name, false))
    await waiting[0]
    waiting.push(wait('urgent', true))
    await Promise.all(waiting)
    assert.deepEqual(order, ['a', 'urgent', 'b', 'c'])
    assert.ok(performance.now() - begunAt >= 75, 'evenly spaced')
  })

  test('of those who leave go to others', async () => {
    const turns = createTurns({ log: silent, take: takeAll })
    const leaving = new AbortController()
    const left = turns.next(true, leaving.signal)
    const stays = turns.next(false, signal)
    leaving.abort(new Error('gone'))
    await assert.rejects(left, /gone/)
    await stays
    await assert.rejects(turns.next(true, leaving.signal), /gone/)
  })

  test('that nobody waits for are the next comer’s, until it is too late for them', async () => {
    let [at, asked] = [1000, 0]
    const turns = createTurns({
      log: silent,
      now: () => at,
      async take() {
        asked++
        return { granted: 3, waitMs: 0, everyMs: 10 }
      },
    })
    await turns.next(true, signal)
    at += 15
    await turns.next(true, signal)
    assert.equal(asked, 1)
    at += 100
    await turns.next(true, signal)
    assert.equal(asked, 2)
  })

  test('wait while the tokens cannot be asked for', async () => {
    let asked = 0
    const turns = createTurns({
      log: silent,
      async take(want) {
        if (asked++ === 0) throw new Error('the database is away')
        return { granted: want, waitMs: 0 }
      },
    })
    await turns.next(false, signal)
    assert.equal(asked, 2)
  })
})

describe('the rate', () => {
  test('is of evenly spaced slots, and rises while it is pressed', async () => {
    const reserved: object[] = []
    const slots = slotsOf('push', {
      async reserve(rate, want) {
        reserved.push({ ...rate, want })
        return { granted: want, waitMs: 3 }
      },
    })
    assert.deepEqual(await slots(1000, 5), { granted: 5, waitMs: 3, everyMs: 1000 / 980 })
    assert.deepEqual(reserved, [{ name: 'push', perSecond: 980, want: 5 }])
    const asked: number[] = []
    const take = rampedTake({
      perSecond: 1000,
      async take(perSecond, want) {
        asked.push(perSecond)
        return { granted: want - 1, waitMs: 1 }
      },
      climb: async (pressed) => (pressed ? 0.5 : 0),
    })
    await take(2)
    assert.deepEqual(asked, [10])
  })

  test('climbs over all instances while somebody is pressed, and falls while nobody is', async (t) => {
    const own = await testDatabase()
    t.after(own.close)
    const ramp = { name: 'push', rampSeconds: 10 }
    /** As if nobody had asked for so long: in one breath with the question, however slow the machine is. */
    const climb = (pressed: boolean, seconds: number, db = own.db) =>
      transaction(db, async (tx) => {
        await sql`update rate_ramps set
          changed_at = clock_timestamp() - ${seconds} * interval '1 s'`.execute(tx)
        return await climbRamp(tx, ramp, pressed)
      })
    const near = (is: number, should: number) =>
      assert.ok(Math.abs(is - should) < 0.08, `${is} is not near ${should}`)
    assert.equal(await climb(false, 0), 0)
    const other = own.open().db
    let level = 0
    for (let i = 1; i <= 3; i++) {
      const next = await climb(true, 0.2, other)
      assert.ok(next > level && next < level + 0.1, `from ${level} to ${next}`)
      level = next
    }
    await sql`update rate_ramps set level = 0.5, pressed_at = clock_timestamp() + interval '1 h'`.execute(
      own.db,
    )
    // Another instance that has all it wants does not make it fall.
    assert.ok((await climb(false, 0.2)) > 0.51)
    await sql`update rate_ramps set level = 0.5, pressed_at = clock_timestamp() - interval '2 s'`.execute(
      own.db,
    )
    assert.ok((await climb(false, 0.2)) < 0.49)
    // Silence is a fall, whoever breaks it.
    await sql`update rate_ramps set level = 0.5`.execute(own.db)
    near(await climb(true, 3), 0.2)
    assert.equal(await climb(true, 600), 0)
    await sql`update rate_ramps set level = 1`.execute(own.db)
    assert.equal(await climb(true, 0.2), 1)
  })
})

describe('the circuit', () => {
  const told: string[] = []
  const log = {
    error: (_: object, line: string) => told.push(line),
    info: (line: string) => told.push(line),
  } as never

  test('opens after twenty failures in a row, tries with one, and is told of once', () => {
    let at = 0
    const circuit = createCircuit({ log, what: 'fcm', now: () => at, random: () => 0 })
    for (let i = 0; i < 19; i++) circuit.bad('503')
    circuit.good()
    for (let i = 0; i < 19; i++) circuit.bad('503')
    assert.equal(circuit.room(), all)
    circuit.bad('503')
    assert.deepEqual([circuit.room(), circuit.waitMs()], [0, 10_000])
    // What was in flight meanwhile says nothing new.
    for (let i = 0; i < 50; i++) circuit.bad('503')
    assert.equal(circuit.waitMs(), 10_000)
    const waits: number[] = []
    for (let i = 0; i < 5; i++) {
      at += circuit.waitMs()
      assert.equal(circuit.room(), 1)
      circuit.bad('503')
      waits.push(circuit.waitMs())
    }
    assert.deepEqual(waits, [20_000, 40_000, 60_000, 60_000, 60_000])
    assert.equal(circuit.away(), 'fcm: 503')
    at += circuit.waitMs()
    circuit.good()
    assert.deepEqual([circuit.room(), circuit.away()], [all, undefined])
    assert.deepEqual(told, [
      'fcm takes no pushes: they wait, and are tried again',
      'fcm takes pushes again',
    ])
  })

  test('waits as long as it is asked to', () => {
    const circuit = createCircuit({ log, what: 'fcm', now: () => 0, random: () => 0 })
    for (let i = 0; i < 20; i++) circuit.bad('429', 90_000)
    assert.equal(circuit.waitMs(), 90_000)
  })
})

test('the pace: what is in flight and a quarter of a second ahead', () => {
  let at = 0
  const pace = createPace(500, () => at)
  assert.equal(pace.room(), 32)
  for (let i = 0; i < 500; i++) {
    at += 2
    pace.begun()
    pace.answered(150)
  }
  assert.ok(pace.room() > 150 && pace.room() < 250, `${pace.room()}`)
  for (let i = 0; i < 5000; i++) {
    at += 0.1
    pace.begun()
    pace.answered(150)
  }
  assert.equal(pace.room(), 500)
  for (let i = 0; i < 20; i++) {
    at += 1000
    pace.begun()
  }
  assert.equal(pace.room(), 32)
})

describe('the push worker', () => {
  let fresh: TestDatabase
  let jobs: Jobs
  let fcm: Fcm
  let dataDir: string

  before(async () => {
    fresh = await testDatabase()
    jobs = openJobs(fresh.database)
    fcm = await launchFcm()
    dataDir = mkdtempSync(join(tmpdir(), 'flotilla-push-'))
  })
  after(async () => {
    await endWorkers()
    await jobs.close()
    await fcm.stop()
    rmSync(dataDir, { recursive: true, force: true, maxRetries: 10 })
  })
  beforeEach(async () => {
    await emptyJobs(fresh.db)
    await sql`delete from rate_buckets`.execute(fresh.db)
    await sql`delete from rate_ramps`.execute(fresh.db)
    await sql`delete from job_errors`.execute(fresh.db)
    await sql`delete from job_audits`.execute(fresh.db)
    await fcm.listen(true)
    await fcm.set({ rules: [], latencyMs: 2, tokenSeconds: 3600, tokenError: null })
    await fcm.forget()
  })

  const send = (queue: 'push' | 'push:priority', ...pushes: PushJob[]) =>
    jobs.send(
      fresh.db,
      queue,
      pushes.map((data) => ({ id: data.job_id, data })),
    )
  const build = (provider: PushProvider, changed: object = {}) =>
    pushPass({
      db: fresh.db,
      jobs,
      queue: 'push',
      provider,
      turns: createTurns({ log: silent, take: async (want) => ({ granted: want, waitMs: 0 }) }),
      circuit: createCircuit({ log: silent, what: 'fcm' }),
      pace: createPace(500),
      ttlSeconds: 3600,
      batchMax: 500,
      concurrency: 500,
      worker,
      ...changed,
    })
  const openFcm = (t: { after(fn: () => unknown): void }) => {
    const provider = createFcmProvider({
      url: fcm.url,
      credentials: readCredentials(fcm.credentials),
      validateOnly: false,
      concurrency: 500,
      answerMs: 5000,
    })
    t.after(() => provider.close())
    return provider
  }
  const recorder = (answer: (push: Push) => PushOutcome = () => ({ is: 'sent' })) => {
    const sent: string[] = []
    const provider: PushProvider = {
      name: 'recorder',
      async send(push, turn) {
        await turn()
        sent.push(push.device.value)
        return answer(push)
      },
      async close() {},
    }
    return { sent, provider }
  }
  /** Until nothing is due. */
  const drain = async (pass: ReturnType<typeof build>) => {
    while ((await pass(signal, all)) !== 0);
  }
  const makeDue = () =>
    sql`update pgboss.job set start_after = now() where name in ('push', 'push:priority')`.execute(
      fresh.db,
    )
  const states = async (queue = 'push') => {
    const { rows } = await sql<{ state: string; n: number }>`
      select state, count(*)::int as n from ${everyJob} where name = ${queue} group by 1 order by 1`.execute(
      fresh.db,
    )
    return Object.fromEntries(rows.map(({ state, n }) => [state, n]))
  }
  const rule = (prefix: string, ...replies: Reply[]) => ({ prefix, replies })
  const env = (more: Record<string, string> = {}) => ({
    PUSH_PROVIDER: 'fcm',
    FCM_URL: fcm.url,
    FCM_CREDENTIALS: fcm.credentials,
    FLEET_DATA_DIR: dataDir,
    PUSH_RAMP: '0',
    ...more,
  })

  test('sends a call of 500 devices, and retries those that failed alone, each by its own rule', async (t) => {
    const failing = { quota: 5, busy: 7, gone: 10, invalid: 3, mismatch: 2, hopeless: 4 }
    const targets = Object.entries(failing).flatMap(([kind, count]) => many(count, kind))
    targets.push(...many(500 - targets.length))
    await transaction(fresh.db, async (tx) => {
      await putUser(tx, {
        userId: 'anna',
        devices: ['gone-0', 'gone-1', 'invalid-0', 'phone-0'].map((token) => ({ token })),
      })
      await putUser(tx, { userId: 'bert', devices: [{ token: 'gone-2' }] })
    })
    await fcm.set({
      rules: [
        rule('quota', { is: 'quota', retryAfter: '400' }, { is: 'ok' }),
        rule('busy', { is: 'unavailable' }, { is: 'reset' }, { is: 'ok' }),
        rule('gone', { is: 'unregistered' }),
        rule('invalid', { is: 'invalid', reversed: true }),
        rule('mismatch', { is: 'mismatch' }),
        rule('hopeless', { is: 'internal' }),
      ],
    })
    const failed: string[] = []
    let sent = 0
    const pass = build(openFcm(t), {
      onSent: () => sent++,
      onFailed: (_: string, code: string) => failed.push(code),
      // Fifteen of them fail in a row, by chance.
      circuit: createCircuit({ log: silent, what: 'fcm' }),
    })
    const call = pushJob(targets)
    await send('push', call)
    await drain(pass)
    // One request a device, whatever became of it.
    let stats = await fcm.stats(...targets)
    assert.equal(stats.requests, 500)
    assert.equal(sent, 500 - 31)
    assert.deepEqual(await states(), { completed: 1 + 469 + 10, failed: 5, retry: 16 })
    const { rows: waits } = await sql<{ device: string; seconds: number }>`
      select data #>> '{fcm_tokens,0}' as device,
        extract(epoch from start_after - now())::int as seconds
      from pgboss.job where name = 'push' and state = 'retry'`.execute(fresh.db)
    for (const { device, seconds } of waits) {
      const [least, most] = device.startsWith('quota') ? [340, 400] : [10, 30]
      assert.ok(seconds >= least && seconds <= most, `${device} waits ${seconds} s`)
    }
    await makeDue()
    await drain(pass)
    await makeDue()
    await drain(pass)
    assert.deepEqual(await states(), { completed: 1 + 469 + 10 + 5 + 7, failed: 9 })
    stats = await fcm.stats(...targets)
    for (const [device, count] of Object.entries(stats.counts)) {
      const kind = device.slice(0, device.lastIndexOf('-'))
      const attempts = { quota: 2, busy: 3, hopeless: 3 }[kind] ?? 1
      assert.equal(count, attempts, device)
    }
    assert.equal(stats.repeatedOk, 0)
    assert.deepEqual(
      Object.fromEntries(
        [...Map.groupBy(failed, (code) => code)].map(([code, n]) => [code, n.length]),
      ),
      { UNREGISTERED: 10, INVALID_ARGUMENT: 3, SENDER_ID_MISMATCH: 2, INTERNAL: 4 },
    )
    // Of the user's devices those are gone that FCM knows no more, and nobody else's.
    const devices = await readDevices(fresh.db, ['anna', 'bert'])
    assert.deepEqual(
      devices.map(({ value }) => value),
      ['invalid-0', 'phone-0', 'gone-2'],
    )
    // Each has its own history.
    const { rows: audits } = await sql<{ attempts: number; n: number }>`
      select attempts, count(*)::int as n from job_audits where queue = 'push' group by 1 order by 1`.execute(
      fresh.db,
    )
    assert.deepEqual(audits, [
      { attempts: 1, n: 5 },
      { attempts: 3, n: 4 },
    ])
    // The call once more, and nothing is sent.
    await send('push', call)
    await drain(pass)
    assert.equal((await fcm.stats()).requests, stats.requests)
  })

  test('takes a call apart once, whoever was killed in between', async () => {
    const { sent, provider } = recorder()
    const call = pushJob(many(20))
    await send('push', call)
    const [claimed] = await jobs.fetch('push', 1)
    assert.ok(claimed)
    const pass = build(provider)
    // Its worker died before it was noted: it runs again beside what it was taken apart into.
    await loseLife(fresh.db)
    await jobs.recover('push')
    await drain(pass)
    assert.equal(sent.length, 20)
    const { rows } = await sql<{ data: PushJob }>`
      select data from ${everyJob} where name = 'push' and data ? 'part_of' limit 1`.execute(
      fresh.db,
    )
    assert.partialDeepStrictEqual(rows[0]?.data, {
      part_of: call.job_id,
      payload: call.payload,
      user_id: 'anna',
    })
  })

  test('does not send what comes too late, and says so', async () => {
    const { sent, provider } = recorder()
    const failed: string[] = []
    const late = pushJob(['phone'], { expires_at: new Date(Date.now() - 1000).toISOString() })
    await send('push', late, pushJob(['other']))
    await drain(build(provider, { onFailed: (_: string, code: string) => failed.push(code) }))
    assert.deepEqual([sent, failed], [['other'], ['EXPIRED']])
  })

  test('spends no attempt while all fail, asks with one at a time, and loses nothing', async () => {
    let at = 0
    let isUp = false
    const { sent, provider } = recorder(() =>
      isUp
        ? { is: 'sent' }
        : { is: 'retry', code: 'UNAVAILABLE', afterMs: 10_000, why: 'FCM: 503 UNAVAILABLE' },
    )
    const circuit = createCircuit({ log: silent, what: 'fcm', now: () => at })
    const pass = build(provider, { circuit, pace: createPace(40) })
    await send('push', ...many(200).map((token) => pushJob([token])))
    /** A pass comes back after a second whatever is in hand still. */
    const once = async () => {
      let outcome = await pass(signal, all)
      while (typeof outcome === 'number' && outcome > 0) outcome = await pass(signal, all)
      return outcome
    }
    await once()
    assert.ok(sent.length >= 20 && sent.length <= 40, `${sent.length} were sent`)
    const before = sent.length
    await makeDue()
    assert.deepEqual(await once(), { waitMs: 250 })
    assert.equal(sent.length, before)
    // Ten minutes.
    let probes = 0
    while (at < 600_000) {
      at += circuit.waitMs()
      await makeDue()
      await once()
      probes++
    }
    assert.ok(probes < 30, `${probes} probes`)
    assert.equal(sent.length, before + probes)
    const { rows } = await sql<{ spent: number; n: number }>`
      select retry_count as spent, count(*)::int as n from pgboss.job
      where name = 'push' and state < 'active' group by 1 order by 1`.execute(fresh.db)
    const spent = rows.filter((row) => row.spent > 0)
    assert.ok(
      spent.every((row) => row.spent === 1 && row.n <= 20),
      JSON.stringify(rows),
    )
    assert.equal(
      rows.reduce((sum, { n }) => sum + n, 0),
      200,
    )
    isUp = true
    at += circuit.waitMs()
    await makeDue()
    await drain(pass)
    assert.deepEqual(await states(), { completed: 200 })
  })

  test('ends what is refused for what is true of all, and soon stops to ask', async () => {
    const { sent, provider } = recorder(() => ({
      is: 'rejected',
      code: 'PERMISSION_DENIED',
      why: 'FCM: 403 PERMISSION_DENIED',
      ours: true,
    }))
    await send('push', ...many(100).map((token) => pushJob([token])))
    const pass = build(provider, { pace: createPace(32) })
    await pass(signal, all)
    await pass.finish?.()
    const { failed = 0, created = 0 } = await states()
    assert.ok(failed >= 20 && failed <= 64, `${failed} failed`)
    assert.equal(failed, sent.length)
    assert.equal(failed + created, 100)
  })

  test('that tries the way while all are refused for what is true of all waits with the rest', async () => {
    let [at, answer] = [0, 'rejected']
    const why = 'FCM: 403 PERMISSION_DENIED'
    const { sent, provider } = recorder(() =>
      answer === 'sent'
        ? { is: 'sent' }
        : { is: 'rejected', code: 'PERMISSION_DENIED', why, ours: true },
    )
    const circuit = createCircuit({ log: silent, what: 'fcm', now: () => at })
    circuit.gone(why)
    const pass = build(provider, { circuit })
    await send('push', ...many(3).map((token) => pushJob([token])))
    for (let probes = 1; probes <= 5; probes++) {
      at += circuit.waitMs()
      await makeDue()
      await pass(signal, all)
      await pass.finish?.()
      assert.equal(sent.length, probes)
    }
    assert.deepEqual(await states(), { created: 3 })
    answer = 'sent'
    at += circuit.waitMs()
    await makeDue()
    await drain(pass)
    assert.deepEqual(await states(), { completed: 3 })
  })

  test('in the priority queue, too: retried, dead with its audit, and sent once it is retried', async () => {
    let isUp = false
    const { sent, provider } = recorder(() =>
      isUp ? { is: 'sent' } : { is: 'retry', code: 'INTERNAL', afterMs: 10_000, why: 'FCM: 500' },
    )
    const pass = build(provider, { queue: 'push:priority' })
    const job = pushJob(['phone'])
    await send('push:priority', job)
    for (let attempt = 0; attempt < 3; attempt++) {
      await makeDue()
      await drain(pass)
    }
    assert.equal(sent.length, 3)
    const { rows } = await sql<{ name: string; queue: string; attempts: number }>`
      select j.name, a.queue, a.attempts from pgboss.job j
      join job_audits a on a.dead_job_id = j.id`.execute(fresh.db)
    assert.deepEqual(rows, [{ name: 'push:priority.dead', queue: 'push:priority', attempts: 3 }])
    isUp = true
    const { found } = await findFailed(fresh.db, [job.job_id])
    await retryFailed(fresh.db, { deadIds: found.map(({ dead_id }) => dead_id) })
    await drain(pass)
    assert.deepEqual([sent.length, await states('push:priority')], [4, { completed: 1 }])
  })

  test('writes pushes into a file, without the token', async (t) => {
    const { createLogProvider } = await import('../workers/push/log.ts')
    const provider = createLogProvider(dataDir)
    t.after(() => provider.close())
    await send('push', pushJob(['secret-token', { fid: 'secret-fid' }]))
    await drain(build(provider))
    const folder = join(dataDir, 'push')
    const [file = ''] = await readdir(folder)
    const text = await readFile(join(folder, file), 'utf8')
    const lines = text
      .trim()
      .split('\n')
      .map((line) => JSON.parse(line))
    assert.equal(lines.length, 2)
    assert.doesNotMatch(text, /secret/)
    assert.partialDeepStrictEqual(lines[0], {
      template: 'ticket_ready',
      title: 'Your tickets are here',
    })
  })

  test('a fid that replaces a token takes its place, so that one phone gets one push', async () => {
    const put = (userId: string, devices: object[]) =>
      transaction(fresh.db, (tx) => putUser(tx, { userId, devices }))
    await put('carl', [{ token: 'old' }, { token: 'tablet' }])
    await put('carl', [{ token: 'old' }, { token: 'tablet' }, { fid: 'new', replaces: 'old' }])
    const of = async (...ids: string[]) =>
      (await readDevices(fresh.db, ids)).map(({ kind, value }) => `${kind} ${value}`)
    assert.deepEqual(await of('carl'), ['fid new', 'token tablet'])
    // Also where the phone was another user's.
    await put('dora', [{ token: 'shared' }])
    await put('carl', [{ fid: 'new2', replaces: 'shared' }])
    assert.deepEqual(await of('carl', 'dora'), ['fid new2'])
  })

  test('the process sends, gives back what it did not begin, and exits with 0', async () => {
    await fcm.set({ latencyMs: 100 })
    await send('push', ...many(300).map((token) => pushJob([token])))
    const options = env({ PUSH_RATE: '50' })
    const started = startWorker('push', fresh.url, [], options)
    await until(async () => (await fcm.stats()).requests >= 20)
    started.process.kill('SIGTERM')
    assert.equal(await exited(started), 0, started.output())
    const { rows } = await sql<{ active: number; spent: number }>`
      select count(*) filter (where state = 'active')::int as active,
        max(retry_count) as spent from ${everyJob} where name = 'push'`.execute(fresh.db)
    assert.deepEqual(rows, [{ active: 0, spent: 0 }])
    const { requests } = await fcm.stats()
    assert.deepEqual((await states()).completed, requests)
    const rest = startWorker('push', fresh.url, ['--once'], env())
    assert.equal(await exited(rest), 0, rest.output())
    const stats = await fcm.stats()
    assert.deepEqual([stats.ok, stats.repeatedOk, stats.requests], [300, 0, 300])
    assert.doesNotMatch(started.output() + rest.output(), /phone-|ya29|PRIVATE/)
  })

  test('killed with kill -9, only what was in flight is sent again', async () => {
    await fcm.set({ latencyMs: 150 })
    await send('push', pushJob(many(150)), ...many(50, 'single').map((token) => pushJob([token])))
    const options = env({ PUSH_RATE: '200' })
    const killed = startWorker('push', fresh.url, [], options)
    await until(async () => (await fcm.stats()).ok >= 60)
    killed.process.kill('SIGKILL')
    await exited(killed)
    // What it was told and had noted, and what was on its way, as the server has it.
    const { completed = 0 } = await states()
    const { rows: noted } = await sql<{ device: string }>`
      select data #>> '{fcm_tokens,0}' as device from ${everyJob}
      where name = 'push' and state = 'completed' and jsonb_array_length(data->'fcm_tokens') = 1`.execute(
      fresh.db,
    )
    assert.ok(completed > 25, `${completed} were noted`)
    const sentBefore = (await fcm.stats()).requests
    const inFlightMax = sentBefore - noted.length
    await loseLife(fresh.db)
    const heir = startWorker('push', fresh.url, [], options)
    await until(async () => {
      const { completed: done = 0 } = await states()
      return done === 201
    })
    heir.process.kill('SIGTERM')
    assert.equal(await exited(heir), 0, heir.output())
    const stats = await fcm.stats()
    const again = Object.keys(stats.counts)
    const wasNoted = new Set(noted.map(({ device }) => device))
    assert.deepEqual(
      again.filter((device) => wasNoted.has(device)),
      [],
      'none that was noted is sent again',
    )
    assert.ok(again.length <= inFlightMax, `${again.length} again, ${inFlightMax} were in flight`)
    assert.equal(stats.requests, 200 + again.length)
    const { rows } = await sql<{ dead: number }>`
      select count(*)::int as dead from pgboss.job where name = 'push.dead'`.execute(fresh.db)
    assert.deepEqual(rows, [{ dead: 0 }])
  })

  test('a push of the priority queue overtakes a backlog within a second', async () => {
    const backlog = Array.from({ length: 12 }, (_, i) => pushJob(many(500, `back-${i}`)))
    await send('push', ...backlog)
    const options = env({ PUSH_RATE: '200' })
    const two = [1, 2].map(() => startWorker('push', fresh.url, [], options))
    await until(async () => (await fcm.stats()).requests >= 100)
    const waits: number[] = []
    for (let i = 0; i < 3; i++) {
      const device = `urgent-${i}`
      const sentAt = Date.now()
      await send(
        'push:priority',
        pushJob([device], { template: 'queue_your_turn', priority: 'high' }),
      )
      await until(async () => device in (await fcm.stats(device)).counts)
      const { arrivals } = await fcm.stats(device)
      waits.push((arrivals[device]?.[0] ?? Number.NaN) - sentAt)
    }
    assert.ok(Math.min(...waits) < 1000, `after ${waits.join(', ')} ms`)
    const before = await fcm.stats()
    assert.ok(before.requests < 5_000, 'the backlog is still there')
    for (const one of two) one.process.kill('SIGTERM')
    for (const one of two) assert.equal(await exited(one), 0, one.output())
  })

  test('two workers share the rate: no second has more, and no device has two', async () => {
    await send('push', pushJob(many(300)), pushJob(many(300, 'more')))
    const options = env({ PUSH_RATE: '200' })
    const two = [1, 2].map(() => startWorker('push', fresh.url, [], options))
    await until(async () => (await fcm.stats()).ok >= 600)
    for (const one of two) one.process.kill('SIGTERM')
    for (const one of two) assert.equal(await exited(one), 0, one.output())
    const { secondMax, repeatedOk, requests, spanSeconds } = await fcm.stats()
    // A slow machine brings some together that left apart; two with a rate of their own each would bring 400.
    assert.ok(secondMax <= 300, `${secondMax} in a second`)
    assert.deepEqual([requests, repeatedOk], [600, 0])
    assert.ok(spanSeconds > 2.9, `${spanSeconds} s`)
  })

  test('without an access token pushes wait, no attempt is spent, and it is told once', async () => {
    await fcm.set({
      tokenError: { status: 400, error: 'invalid_grant', description: 'Invalid JWT Signature.' },
    })
    await send('push', ...many(50).map((token) => pushJob([token])))
    const started = startWorker('push', fresh.url, [], env())
    const told = () => started.lines().filter(({ msg }) => /takes no pushes/.test(String(msg)))
    await until(() => told().length > 0)
    assert.match(
      String(told()[0]?.why),
      /^no access token from .*: 400 invalid_grant: Invalid JWT Sig/,
    )
    await until(async () => (await states()).active === undefined)
    const { rows } = await sql<{ n: number; spent: number }>`
      select count(*)::int as n, max(retry_count) as spent from pgboss.job
      where name = 'push' and state < 'active'`.execute(fresh.db)
    assert.deepEqual(rows, [{ n: 50, spent: 0 }])
    assert.equal((await fcm.stats()).requests, 0)
    // Once the account is mended they go out by themselves.
    await fcm.set({ tokenError: null })
    await makeDue()
    await until(async () => {
      await makeDue()
      return (await fcm.stats()).ok === 50
    })
    started.process.kill('SIGTERM')
    assert.equal(await exited(started), 0, started.output())
    assert.equal(told().length, 1)
    assert.ok(readFileSync(fcm.credentials, 'utf8').includes('PRIVATE KEY'))
    assert.doesNotMatch(started.output(), /PRIVATE KEY/)
  })

  test('when FCM goes away in the middle they wait, and none is lost or sent twice', async () => {
    await fcm.set({ latencyMs: 20 })
    await send('push', ...many(400).map((token) => pushJob([token])))
    const started = startWorker('push', fresh.url, [], env({ PUSH_RATE: '300' }))
    await until(async () => (await fcm.stats()).ok >= 50)
    await fcm.goaway(0, 2 ** 31 - 1)
    await until(async () => (await fcm.stats()).ok >= 100)
    await fcm.listen(false)
    const told = () => started.lines().filter(({ msg }) => /takes no pushes/.test(String(msg)))
    await until(() => told().length > 0)
    await fcm.listen(true)
    await until(async () => {
      await makeDue()
      return (await states()).completed === 400
    })
    started.process.kill('SIGTERM')
    assert.equal(await exited(started), 0, started.output())
    const { ok, repeatedOk } = await fcm.stats()
    assert.deepEqual([ok, repeatedOk, told().length], [400, 0, 1])
  })
})
