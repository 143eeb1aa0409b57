// A mail of unknown outcome, providers that are away, suppressed addresses: by the pass on a real database, against a
// Mailgun of its own process that tells what arrived. Time is moved by updating rows.

import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { after, before, beforeEach, describe, test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { sql } from 'kysely'
import { pino } from 'pino'
import { confirmEmailSent, openEmailSends } from '../db/emailSends.ts'
import { type Jobs, openJobs } from '../db/jobs.ts'
import { openRates } from '../db/rates.ts'
import { suppress } from '../db/suppressions.ts'
import type { EmailJob } from '../domain/emails.ts'
import { createDelivery } from '../workers/email/delivery.ts'
import { type EmailOptions, emailPass } from '../workers/email/email.ts'
import { createMailgun } from '../workers/email/mailgun.ts'
import type { EmailProvider, Mail, SendOutcome } from '../workers/email/provider.ts'
import { createProviders, type Providers } from '../workers/email/providers.ts'
import { type TestDatabase, testDatabase } from './database.ts'
import { drain, mailJob } from './emailJobs.ts'
import { emptyJobs, everyJob } from './jobRows.ts'
import { type Answer, apiKey, domain, type Mailgun, startMailgun } from './servers/mailgun.ts'

const signal = new AbortController().signal
const all = Number.POSITIVE_INFINITY

describe('a mail', () => {
  let fresh: TestDatabase
  let jobs: Jobs
  let server: Mailgun
  let lines: Record<string, unknown>[]
  const counts = { sent: 0, failed: 0, suppressed: 0 }
  const log = pino(
    { level: 'info' },
    { write: (line: string) => void lines.push(JSON.parse(line)) },
  )
  const worker = { log, failed() {}, dying: signal, stopping: signal }

  before(async () => {
    fresh = await testDatabase()
    jobs = openJobs(fresh.database)
    server = await startMailgun()
  })
  after(async () => {
    await jobs.close()
    await server.stop()
  })
  beforeEach(async () => {
    lines = []
    Object.assign(counts, { sent: 0, failed: 0, suppressed: 0 })
    await emptyJobs(fresh.db)
    await sql`truncate rate_slots, email_sends, email_suppressions, circuits, circuit_changes`.execute(
      fresh.db,
    )
    await server.reset()
    await server.mood({ latencyMs: 0 })
  })

  const mailgun = () => createMailgun({ url: server.url, domain, apiKey, timeoutMs: 400 })
  /** Keeps what it is given and cannot be asked. */
  const recorder = (answer: () => SendOutcome = () => ({ is: 'sent' })) => {
    const mails: Mail[] = []
    const provider: EmailProvider = {
      name: 'recorder',
      async send(mail) {
        mails.push(mail)
        return answer()
      },
    }
    return { mails, provider }
  }
  const choose = (...providers: EmailProvider[]): Providers =>
    createProviders({ db: fresh.db, providers, worker })
  const build = (providers: Providers, over: Partial<EmailOptions> = {}) =>
    emailPass({
      db: fresh.db,
      jobs,
      slots: openRates(fresh.db),
      providers,
      from: 'Tickets <tickets@shop.example>',
      perSecond: 1000,
      batchMax: 100,
      concurrency: 10,
      absentAfterMs: 300_000,
      unaskable: 'give-up',
      worker,
      onSent: () => counts.sent++,
      onFailed: () => counts.failed++,
      onSuppressed: () => counts.suppressed++,
      ...over,
    })
  const enqueue = (...mails: EmailJob[]) =>
    jobs.send(
      fresh.db,
      'email',
      mails.map((data) => ({ id: data.job_id, data })),
    )
  const again = () =>
    sql`update pgboss.job set start_after = now() where name = 'email'`.execute(fresh.db)
  const earlier = (seconds: number) =>
    sql`update email_sends set handed_at = handed_at - ${seconds} * interval '1 s'`.execute(
      fresh.db,
    )
  const arrived = async () => (await server.seen()).messages.filter(({ accepted }) => accepted)
  const jobOf = async (id: string) => {
    const { rows } = await sql<{ name: string; state: string; spent: number; wait: number | null }>`
      select name, state, retry_count as spent,
        round(extract(epoch from start_after - clock_timestamp()))::int as wait
      from ${everyJob} where ${id} in (id::text, source_id::text, data->>'job_id')`.execute(
      fresh.db,
    )
    return rows[0]
  }
  const send = async (id: string): Promise<{ state: string; hands: number } | undefined> => {
    const { rows } = await sql<{ state: string; hands: number }>`
      select state, hands from email_sends where job_id = ${id}`.execute(fresh.db)
    return rows[0]
  }
  const dead = async () => {
    const { rows } = await sql<{ message: string }>`
      select source_output->>'message' as message from pgboss.job where name = 'email.dead'`.execute(
      fresh.db,
    )
    return rows.map(({ message }) => message)
  }

  for (const answer of [
    { is: 'fault', accepts: true },
    { is: 'hang-up', accepts: true },
    { is: 'silence', accepts: true },
  ] as Answer[]) {
    test(`that was accepted without a word (${answer.is}) is asked for, and not sent again`, async () => {
      const job = mailJob()
      await server.mood({ next: [answer] })
      const pass = build(choose(mailgun()))
      await enqueue(job)
      await drain(pass)
      assert.deepEqual(await send(job.job_id), { state: 'handed', hands: 1 })
      assert.equal((await jobOf(job.job_id))?.state, 'retry')
      await again()
      await drain(pass)
      const { messages, asked } = await server.seen()
      assert.deepEqual([messages.length, asked.length], [1, 1])
      assert.deepEqual(await send(job.job_id), { state: 'sent', hands: 1 })
      assert.equal((await jobOf(job.job_id))?.state, 'completed')
      assert.equal(counts.sent, 1)
    })
  }

  test('that becomes visible late is not sent again before it would be for certain', async () => {
    const job = mailJob()
    await server.mood({ next: [{ is: 'fault', accepts: true }], visibleAfterMs: 3_600_000 })
    const pass = build(choose(mailgun()))
    await enqueue(job)
    await drain(pass)
    for (const seconds of [30, 200]) {
      await again()
      await earlier(seconds)
      await drain(pass)
      const after = await jobOf(job.job_id)
      // It waits for more certainty, and spends no attempt on it.
      assert.deepEqual([after?.state, after?.spent], ['retry', 1])
      assert.ok(after!.wait! > 10 && after!.wait! <= 62, `${after?.wait} s`)
    }
    await server.mood({ visibleAfterMs: 0 })
    await again()
    await drain(pass)
    assert.equal((await server.seen()).messages.length, 1)
    assert.equal((await jobOf(job.job_id))?.state, 'completed')
  })

  test('that is not there after all that time is sent again, under the same Message-Id', async () => {
    const job = mailJob()
    await server.mood({ next: [{ is: 'fault', accepts: false }] })
    const pass = build(choose(mailgun()))
    await enqueue(job)
    await drain(pass)
    await earlier(301)
    await again()
    await drain(pass)
    const { messages } = await server.seen()
    assert.deepEqual(
      messages.map(({ accepted }) => accepted),
      [false, true],
    )
    assert.equal(new Set(messages.map(({ fields }) => fields['h:Message-Id'])).size, 1)
    assert.deepEqual(await send(job.job_id), { state: 'sent', hands: 2 })
  })

  test('that is lost each time is given up after the third, with every attempt told', async () => {
    const job = mailJob()
    await server.mood({ answer: { is: 'fault', accepts: false } })
    const providers = choose(mailgun())
    const pass = build(providers)
    await enqueue(job)
    for (let i = 0; i < 4; i++) {
      await drain(pass)
      await earlier(301)
      await again()
      await sql`update circuits set probe_at = clock_timestamp()`.execute(fresh.db)
      await providers.refresh()
    }
    assert.equal((await server.seen()).messages.length, 3)
    assert.match((await dead())[0] ?? '', /handed over 3 times/)
    assert.equal(counts.failed, 1)
    // A person says: once more.
    await server.mood({ answer: { is: 'well' } })
    await emptyJobs(fresh.db)
    await enqueue(job)
    await drain(pass)
    assert.equal((await arrived()).length, 1)
  })

  test('of unknown outcome at one provider never goes to another', async () => {
    const job = mailJob()
    const other = recorder()
    await server.mood({ answer: { is: 'fault', accepts: true }, visibleAfterMs: 3_600_000 })
    const pass = build(choose(mailgun(), other.provider))
    await enqueue(job)
    await drain(pass)
    await server.stop()
    for (let i = 0; i < 3; i++) {
      await earlier(3600)
      await again()
      await drain(pass)
    }
    await server.start()
    assert.equal(other.mails.length, 0)
    assert.equal((await jobOf(job.job_id))?.state, 'retry')
  })

  test('that a mail server may have, which cannot be asked, is a person’s to decide, or comes twice if so set', async () => {
    const job = mailJob()
    const { mails, provider } = recorder(() => ({ is: 'unknown', why: 'the connection broke' }))
    await enqueue(job)
    const pass = build(choose(provider))
    await drain(pass)
    await again()
    await drain(pass)
    assert.equal(mails.length, 1)
    assert.match((await dead())[0] ?? '', /recorder may have it already and cannot be asked/)
    assert.equal((await send(job.job_id))?.state, 'given_up')

    await emptyJobs(fresh.db)
    await sql`truncate email_sends`.execute(fresh.db)
    await enqueue(job)
    const resends = build(choose(provider), { unaskable: 'resend' })
    await drain(resends)
    await again()
    await drain(resends)
    assert.equal(mails.length, 3)
  })

  test('whose outcome is known keeps it while the database is away', async () => {
    const away = Object.assign(new Error('the database starts'), { code: '57P03' })
    for (const outcome of [
      { is: 'sent' },
      { is: 'rejected', why: 'no such user' },
      { is: 'down', why: 'busy' },
    ] as const) {
      const { mails, provider } = recorder(() => outcome)
      const sends = openEmailSends(fresh.db)
      let said = 0
      const { deliver } = createDelivery({
        sends: {
          ...sends,
          settle: async (one) => (++said <= 2 ? Promise.reject(away) : await sends.settle(one)),
        },
        providers: choose(provider),
        pace: { next: async () => {} },
        askPace: { next: async () => {} },
        absentAfterMs: 300_000,
        unaskable: 'give-up',
        stopping: signal,
      })
      const mail = { ...mails[0], id: randomUUID(), to: 'a@example.org', from: 't@shop.example' }
      const delivered = await deliver(mail as Mail, false, signal).catch((error) => error)
      assert.ok(delivered !== away, 'the job does not fail for it')
      const state = outcome.is === 'sent' ? 'sent' : 'withdrawn'
      assert.deepEqual(await send(mail.id), { state, hands: 1 })
    }
  })

  test('that was given up and turns out to be there is not sent once more', async () => {
    const sends = openEmailSends(fresh.db)
    const begin = (jobId: string) =>
      sends.begin({ jobId, provider: 'recorder', address: 'a@example.org' })
    const [late, told, other] = [randomUUID(), randomUUID(), randomUUID()]
    for (const jobId of [late, told]) {
      await begin(jobId)
      await sends.settle({ jobId, hands: 1, as: 'given_up' })
    }
    await sends.settle({ jobId: late, hands: 1, as: 'sent' })
    await confirmEmailSent(fresh.db, told)
    for (const jobId of [late, told]) {
      const again = await begin(jobId)
      assert.deepEqual([again.is, 'state' in again && again.state], ['earlier', 'sent'])
    }
    // Who lost it says nothing of the hand-over after his.
    await begin(other)
    await sends.again(other, 'recorder', 1)
    await sends.settle({ jobId: other, hands: 1, as: 'withdrawn' })
    assert.deepEqual(await send(other), { state: 'handed', hands: 2 })
  })

  test('goes to the next provider while the first cannot be reached, which is told once, and back when it is back', async () => {
    const other = recorder()
    await server.stop()
    const providers = choose(mailgun(), other.provider)
    const pass = build(providers)
    await enqueue(...Array.from({ length: 20 }, () => mailJob()))
    await drain(pass)
    assert.equal(other.mails.length, 20)
    const told = (code: string) => lines.filter((line) => line.code === code).length
    assert.equal(told('SASO-INFRA-9110'), 1)
    await server.start()
    await sql`update circuits set probe_at = clock_timestamp()`.execute(fresh.db)
    await providers.refresh()
    await enqueue(...Array.from({ length: 10 }, () => mailJob()))
    await drain(pass)
    const back = (await arrived()).length
    assert.ok(back >= 1, 'one tried it out')
    assert.equal(other.mails.length + back, 30)
    await enqueue(mailJob())
    await drain(pass)
    assert.equal((await arrived()).length, back + 1)
    assert.deepEqual([told('SASO-INFRA-9110'), told('SASO-INFRA-9111')], [1, 1])
    const { rows } = await sql<{ code: string }>`
      select code from circuit_changes order by id`.execute(fresh.db)
    assert.deepEqual(
      rows.map(({ code }) => code),
      ['SASO-INFRA-9110', 'SASO-INFRA-9111'],
    )
  })

  test('waits without an attempt spent while no provider is there: few tries, one alert over two instances, no loss', async () => {
    await server.stop()
    const first = choose(mailgun())
    const second = choose(mailgun())
    const passes = [build(first), build(second)]
    const mails = Array.from({ length: 60 }, () => mailJob())
    await enqueue(...mails)
    for (let round = 0; round < 5; round++) {
      await Promise.all(passes.map(drain))
      await again()
      await Promise.all([first.refresh(), second.refresh()])
    }
    const outcome = await passes[0]!(signal, all)
    assert.ok(typeof outcome === 'object' && outcome.waitMs > 0 && outcome.waitMs <= 1000)
    assert.equal(lines.filter(({ code }) => code === 'SASO-INFRA-9110').length, 1)
    const { rows } = await sql<{ spent: number; n: number }>`
      select max(retry_count) as spent, count(*)::int as n from ${everyJob}
      where name = 'email' and state in ('created', 'retry')`.execute(fresh.db)
    assert.deepEqual(rows, [{ spent: 0, n: 60 }])

    await server.start()
    await server.mood({ latencyMs: 0 })
    while ((await arrived()).length < 60) {
      await sql`update circuits set probe_at = clock_timestamp()`.execute(fresh.db)
      await Promise.all([first.refresh(), second.refresh(), again()])
      await Promise.all(passes.map(drain))
    }
    const ids = (await arrived()).map(({ fields }) => fields['v:flotilla-job'])
    assert.deepEqual(ids.sort(), mails.map(({ job_id }) => job_id).sort())
    assert.equal(lines.filter(({ code }) => code === 'SASO-INFRA-9111').length, 1)
  })

  test('that is refused for the rate runs again as late as asked, and the others are not even tried', async () => {
    const until = new Date(Date.now() + 600_000).toUTCString().replace('GMT', 'UTC')
    const body = {
      message: `Domain ${domain} is not allowed to send: request limit exceeded, try again after ${until}`,
    }
    await server.mood({ answer: { is: 'refuse', status: 420, body } })
    const providers = choose(mailgun())
    const pass = build(providers, { concurrency: 1 })
    const mails = Array.from({ length: 20 }, () => mailJob())
    await enqueue(...mails)
    await drain(pass)
    await pass.finish?.()
    assert.equal((await server.seen()).messages.length, 1)
    const after = await Promise.all(mails.map(({ job_id }) => jobOf(job_id)))
    const refused = after.filter((one) => one?.state === 'retry')
    assert.equal(refused.length, 1)
    const { wait } = refused[0]!
    assert.ok(wait! > 580 && wait! <= 601, `${wait} s`)
    // Given back, no attempt spent.
    assert.equal(after.filter((one) => one?.state === 'created').length, 19)
    assert.ok(providers.awayMs() > 580_000)
  })

  test('that tries whether the rate is free again spends no attempt, however often', async () => {
    await server.mood({ answer: { is: 'refuse', status: 429, body: { message: 'Too many' } } })
    const waitsMs = { first: 1, most: 1 }
    const providers = createProviders({ db: fresh.db, providers: [mailgun()], worker, waitsMs })
    const job = mailJob()
    await enqueue(job)
    const pass = build(providers, { concurrency: 1 })
    for (let i = 0; i < 5; i++) {
      await again()
      await drain(pass)
      await pass.finish?.()
      await sleep(20)
      await providers.refresh()
    }
    assert.equal((await server.seen()).messages.length, 5)
    assert.deepEqual([(await jobOf(job.job_id))?.spent, await dead()], [1, []])
  })

  test('to a suppressed address is not sent, however it is written, and its job is done', async () => {
    await suppress(fresh.db, { address: 'anna@example.org', reason: 'bounce', source: 'test' })
    const job = { ...mailJob(), recipient: 'Anna@Example.ORG' }
    await enqueue(job, { ...mailJob(), recipient: 'ben@example.org' })
    await drain(build(choose(mailgun())))
    assert.deepEqual(
      (await arrived()).map(({ fields }) => fields.to),
      ['ben@example.org'],
    )
    assert.deepEqual([counts.sent, counts.suppressed], [1, 1])
    assert.equal((await jobOf(job.job_id))?.state, 'completed')
    assert.ok(!JSON.stringify(lines).includes('example.org'), 'no address in the log')
  })

  test('of two jobs goes out once', async () => {
    const job = mailJob()
    await jobs.send(fresh.db, 'email', [{ data: job }, { data: job }])
    const pass = build(choose(mailgun()))
    await drain(pass)
    await again()
    await drain(pass)
    assert.equal((await arrived()).length, 1)
  })

  test('that waits for its slot is not handed over: its worker stops or dies, and it goes at once elsewhere', async () => {
    const stop = new AbortController()
    const job = mailJob()
    await enqueue(job)
    // Its slot is far away.
    await sql`insert into rate_slots values ('email', clock_timestamp() + interval '1 s')`.execute(
      fresh.db,
    )
    const stopped = build(choose(mailgun()), { worker: { ...worker, stopping: stop.signal } })
    const passing = stopped(stop.signal, all)
    while ((await jobOf(job.job_id))?.state !== 'active') await new Promise(setImmediate)
    await sleep(200)
    assert.equal(await send(job.job_id), undefined)
    stop.abort(new Error('stop'))
    await passing
    assert.deepEqual((await jobOf(job.job_id))?.spent, 0)
    await drain(build(choose(mailgun())))
    const { messages, asked } = await server.seen()
    assert.deepEqual([messages.length, asked.length], [1, 0])
  })
})
