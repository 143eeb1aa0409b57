// Mails: what they look like, that a job becomes one, and that no more go out than the bucket lets through.

import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { mkdtemp, readdir, readFile, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, before, beforeEach, describe, test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { sql } from 'kysely'
import { type Jobs, openJobs } from '../db/jobs.ts'
import { countTokens, takeTokens } from '../db/rates.ts'
import { decodeEmailJob, type EmailJob } from '../domain/emails.ts'
import { emailPass } from '../workers/email/email.ts'
import { createLogProvider } from '../workers/email/log.ts'
import type { EmailProvider, Mail, SendOutcome } from '../workers/email/provider.ts'
import { createRenderer, formatMoney, formatTime } from '../workers/email/templates.ts'
import { createLog } from '../workers/log.ts'
import { type TestDatabase, testDatabase } from './database.ts'
import { emptyJobs, everyJob, loseLife } from './jobRows.ts'
import { endWorkers, exited, startWorker, until } from './worker.ts'

const signal = new AbortController().signal
const all = Number.POSITIVE_INFINITY
type Tickets = Extract<EmailJob, { template: 'ticket_delivery' }>['payload']
const values: Tickets = {
  order_id: '0190a1b2-0000-7000-8000-000000000001',
  event_name: 'Opening night',
  starts_at: '2027-01-01T19:00:00.000Z',
  section: 'Stalls',
  quantity: 2,
  seats: ['Stalls-1-1', 'Stalls-1-2'],
  total: { amount_minor: 123450, currency: 'EUR' },
  tickets: [
    { ticket_id: randomUUID(), seat: 'Stalls-1-1', code: 'K7QF-22' },
    { ticket_id: randomUUID(), seat: 'Stalls-1-2', code: 'M3XD-91' },
  ],
}
const mailJob = (
  template: EmailJob['template'] = 'order_confirmation',
  changed: Partial<Tickets> & { locale?: string } = {},
): EmailJob =>
  ({
    job_id: randomUUID(),
    type: 'email',
    template,
    recipient: 'anna@example.org',
    payload: { ...values, ...changed },
    created_at: '2026-12-01T10:00:00.000Z',
    attempts: 0,
    max_attempts: 3,
  }) as EmailJob

describe('a mail', async () => {
  const render = await createRenderer()

  test('tells what was bought, as text and as HTML', () => {
    const { subject, text, html } = render(mailJob())
    assert.equal(subject, 'Your order for Opening night is confirmed')
    assert.equal(
      text,
      `Thank you for your order.

Event:    Opening night
When:     Friday, January 1, 2027 at 7:00 PM UTC
Section:  Stalls
Seats:    Stalls-1-1 and Stalls-1-2
Tickets:  2
Total:    €1,234.50

Your tickets come in a second e-mail.

Order 0190a1b2-0000-7000-8000-000000000001
`,
    )
    for (const part of ['Opening night', '€1,234.50', 'Stalls-1-1 and Stalls-1-2', 'lang="en"']) {
      assert.ok(html.includes(part), part)
    }
  })

  test('brings each ticket with its seat and code', () => {
    const { subject, text, html } = render(mailJob('ticket_delivery'))
    assert.equal(subject, 'Your tickets for Opening night')
    assert.match(text, /^Stalls, row 1, seat 1: K7QF-22\nStalls, row 1, seat 2: M3XD-91$/m)
    assert.equal(html.match(/K7QF-22|M3XD-91/g)?.length, 2)
    assert.match(html, />Stalls, row 1, seat 2</)
  })

  test('does without seats in a standing section', () => {
    const { seats, ...standing } = values
    const job = mailJob('ticket_delivery')
    job.payload = { ...standing, tickets: [{ ticket_id: randomUUID(), code: 'K7QF-22' }] }
    const { subject, text } = render(job)
    assert.equal(subject, 'Your ticket for Opening night')
    assert.match(text, /^Stalls: K7QF-22$/m)
  })

  test('escapes values in HTML, and lets none make a line of its own', () => {
    const event_name = '<script>alert(1)</script>\r\nBcc: all@example.org'
    const { subject, text, html } = render(mailJob('order_confirmation', { event_name }))
    assert.ok(!html.includes('<script>'))
    assert.ok(html.includes('&lt;script&gt;'))
    assert.ok(!subject.includes('\n'))
    assert.ok(text.includes('<script>alert(1)</script> Bcc: all@example.org\n'))
  })

  test('falls back to English, with its dates too, and to British ones for a Briton', () => {
    for (const locale of ['fr-CA', 'nonsense!!', '']) {
      const { language, text } = render(mailJob('order_confirmation', { locale }))
      assert.equal(language, 'en')
      assert.match(text, /Friday, January 1, 2027/)
    }
    assert.match(
      render(mailJob('order_confirmation', { locale: 'en-GB' })).text,
      /Friday,? 1 January 2027/,
    )
  })

  test('writes money in the units of its currency, exactly', () => {
    const cases = [
      [5, 'EUR', '€0.05'],
      [4500, 'EUR', '€45.00'],
      [4500, 'JPY', '¥4,500'],
      [4500, 'KWD', 'KWD 4.500'],
      [Number.MAX_SAFE_INTEGER, 'USD', '$90,071,992,547,409.91'],
    ] as const
    for (const [amount_minor, currency, expected] of cases) {
      const written = formatMoney({ amount_minor, currency }, 'en')
      assert.equal(written.replace(/\u00a0/g, ' '), expected)
    }
    assert.match(formatTime(values.starts_at, 'de'), /Freitag, 1\. Januar 2027/)
  })

  test('is refused when its job is none, with what is wrong', () => {
    const job = mailJob()
    const wrong: [object, RegExp][] = [
      [{ ...job, template: 'spam' }, /template must be one of order_confirmation, ticket_del/],
      [{ ...job, recipient: 'a@b.c, d@e.f' }, /one e-mail address/],
      [{ ...job, recipient: 'a@b.c\r\nBcc: x@y.z' }, /one e-mail address/],
      [{ ...job, job_id: '../../etc/passwd' }, /job_id must be/],
      [{ ...job, payload: { ...values, starts_at: 'soon' } }, /starts_at must be a time/],
      [{ ...job, payload: { ...values, total: 5 } }, /payload\.total must be an object/],
    ]
    assert.deepEqual(decodeEmailJob(job), job)
    for (const [data, message] of wrong) assert.throws(() => decodeEmailJob(data), message)
  })
})

describe('the email worker', () => {
  let fresh: TestDatabase
  let jobs: Jobs
  let dataDir: string
  const worker = { log: createLog('test', 'silent'), failed() {}, dying: signal }

  before(async () => {
    fresh = await testDatabase()
    jobs = openJobs(fresh.database)
    dataDir = await mkdtemp(join(tmpdir(), 'flotilla-mail-'))
    await sql`create function hold_time() returns trigger language plpgsql as $$ begin
      new.filled_at := clock_timestamp() + interval '1 h';
      return new;
    end $$`.execute(fresh.db)
  })
  after(async () => {
    await jobs.close()
    await endWorkers()
    await rm(dataDir, { recursive: true, force: true, maxRetries: 10 })
  })
  beforeEach(async () => {
    await emptyJobs(fresh.db)
    await sql`delete from rate_buckets`.execute(fresh.db)
    await rm(join(dataDir, 'mail'), { recursive: true, force: true })
  })

  const enqueue = (...mails: EmailJob[]) =>
    jobs.send(
      fresh.db,
      'email',
      mails.map((data) => ({ id: data.job_id, data })),
    )
  const recorder = (answer: (mail: Mail) => SendOutcome = () => ({ is: 'sent' })) => {
    const sent: Mail[] = []
    const provider: EmailProvider = {
      name: 'recorder',
      async send(mail) {
        sent.push(mail)
        return answer(mail)
      },
    }
    return { sent, provider }
  }
  const from = 'Tickets <tickets@shop.example>'
  const build = (provider: EmailProvider, perSecond = 100, db = fresh.db) =>
    emailPass({ db, jobs, provider, from, perSecond, batchMax: 100, concurrency: 10, worker })
  const files = () => readdir(join(dataDir, 'mail')).catch(() => [] as string[])
  const dead = async () => {
    const { rows } = await sql<{ message: string }>`
      select source_output->>'message' as message from pgboss.job
      where name = 'email.dead'`.execute(fresh.db)
    return rows.map((row) => row.message)
  }
  const due = async (seconds: number, since: string) => {
    const { rows } = await sql<{ due: boolean }>`
      select start_after - ${seconds} * interval '1 s'
        between ${since}::timestamptz and clock_timestamp() as due
      from pgboss.job where name = 'email' and state < 'active'`.execute(fresh.db)
    return rows.map((row) => row.due)
  }
  const databaseTime = async () => {
    const { rows } = await sql<{ at: string }>`select clock_timestamp()::text as at`.execute(
      fresh.db,
    )
    return rows[0]!.at
  }

  test('writes a mail as a whole .eml file, once, however often its job runs', async () => {
    const job = mailJob('ticket_delivery')
    const pass = build(createLogProvider(dataDir))
    await enqueue(job)
    assert.equal(await pass(signal, all), 1)
    await emptyJobs(fresh.db)
    await enqueue(job)
    assert.equal(await pass(signal, all), 1)
    assert.deepEqual(await files(), [`${job.job_id}.eml`])
    const mail = await readFile(join(dataDir, 'mail', `${job.job_id}.eml`), 'utf8')
    const head = mail.slice(0, mail.indexOf('\r\n\r\n'))
    assert.match(head, /^From: Tickets <tickets@shop\.example>$/m)
    assert.match(head, /^To: anna@example\.org$/m)
    assert.match(head, /^Subject: Your tickets for Opening night$/m)
    assert.ok(head.includes(`Message-ID: <${job.job_id}@shop.example>`))
    assert.match(head, /^Date: Tue, 01 Dec 2026 10:00:00 \+0000$/m)
    assert.match(head, /^Content-Type: multipart\/alternative;/m)
    assert.match(mail, /^Content-Type: text\/plain; charset=utf-8/m)
    assert.match(mail, /^Content-Type: text\/html; charset=utf-8/m)
  })

  test('two workers at once send each mail once', async () => {
    const { sent, provider } = recorder()
    await enqueue(...Array.from({ length: 60 }, () => mailJob()))
    const passes = [build(provider), build(provider, 100, fresh.open().db)]
    await Promise.all(passes.map((pass) => pass(signal, 30)))
    assert.equal(sent.length, 60)
    assert.equal(new Set(sent.map((mail) => mail.id)).size, 60)
  })

  test('tries again as its schedule says, or as late as the provider asks', async () => {
    let afterMs = 0
    const { provider } = recorder(() => ({ is: 'retry', afterMs, why: 'busy' }))
    const pass = build(provider)
    const again = () => sql`update pgboss.job set start_after = now()`.execute(fresh.db)
    await enqueue(mailJob())
    let since = await databaseTime()
    await pass(signal, all)
    assert.deepEqual(await due(30, since), [true])
    afterMs = 900_000
    await again()
    since = await databaseTime()
    await pass(signal, all)
    assert.deepEqual(await due(900, since), [true])
    await again()
    await pass(signal, all)
    assert.deepEqual([await due(0, since), await dead()], [[], ['busy']])
  })

  test('buries what the provider refuses at once, and what is no mail, and sends the rest', async () => {
    const { sent, provider } = recorder((mail) =>
      mail.to === 'gone@example.org'
        ? { is: 'rejected', why: '550 no such user gone@example.org' }
        : { is: 'sent' },
    )
    await enqueue(mailJob(), { ...mailJob(), recipient: 'gone@example.org' }, mailJob(), {
      ...mailJob(),
      template: 'spam',
    } as never)
    await build(provider)(signal, all)
    assert.equal(sent.length, 3)
    assert.deepEqual((await dead()).sort(), [
      '550 no such user ***@***',
      'the payload cannot be read: template must be one of order_confirmation, ticket_delivery',
    ])
  })

  test('sends no more than the bucket holds, over all instances, and waits for the next', async (t) => {
    const { sent, provider } = recorder()
    await enqueue(...Array.from({ length: 12 }, () => mailJob()))
    const passes = [build(provider, 5), build(provider, 5, fresh.open().db)]
    await takeTokens(fresh.db, { name: 'email', perSecond: 5, burst: 5 }, 0)
    // Time stands still for the bucket, however long a statement takes: nothing refills but what the test lets pass.
    await sql`create trigger held before update on rate_buckets
      for each row execute function hold_time()`.execute(fresh.db)
    t.after(() => sql`drop trigger held on rate_buckets`.execute(fresh.db))
    await sql`update rate_buckets set filled_at = filled_at`.execute(fresh.db)
    await Promise.all(passes.map((pass) => pass(signal, all)))
    assert.equal(sent.length, 5)
    const outcome = (await passes[0]!(signal, all)) as { waitMs: number }
    assert.ok(outcome.waitMs > 0 && outcome.waitMs <= 200, `waits ${outcome.waitMs} ms`)
    // Nobody spent an attempt, and nothing that was put back waits.
    const { rows } = await sql<{ attempts: number }>`
      select max(retry_count) as attempts from pgboss.job
      where state < 'active' and start_after <= clock_timestamp()`.execute(fresh.db)
    assert.deepEqual(rows, [{ attempts: 0 }])
    await sql`alter table rate_buckets disable trigger held`.execute(fresh.db)
    await sql`update rate_buckets set filled_at = clock_timestamp() - interval '1 s'`.execute(
      fresh.db,
    )
    await sql`alter table rate_buckets enable trigger held`.execute(fresh.db)
    // It asks again when it said it would.
    let handled: Awaited<ReturnType<(typeof passes)[0]>> = outcome
    while (typeof handled !== 'number') {
      await sleep(handled.waitMs)
      handled = await passes[0]!(signal, all)
    }
    assert.equal(handled, 5)
    assert.equal(sent.length, 10)
  })

  test('a bucket gives whole tokens, all it has, and says how long until the next', async () => {
    const rate = { name: 'test', perSecond: 10, burst: 3 }
    const stop = () =>
      sql`update rate_buckets set filled_at = clock_timestamp() + interval '60 s'`.execute(fresh.db)
    assert.deepEqual(await countTokens(fresh.db, rate), { granted: 3, waitMs: 0 })
    await takeTokens(fresh.db, rate, 0)
    await stop()
    assert.deepEqual(await takeTokens(fresh.db, rate, 2), { granted: 2, waitMs: 0 })
    await stop()
    assert.deepEqual(await takeTokens(fresh.db, rate, 2), { granted: 1, waitMs: 100 })
    await stop()
    assert.deepEqual(await takeTokens(fresh.db, rate, 2), { granted: 0, waitMs: 100 })
    await sql`update rate_buckets set filled_at = clock_timestamp() - interval '1 h'`.execute(
      fresh.db,
    )
    assert.equal((await countTokens(fresh.db, rate)).granted, 3)
  })

  test('the process sends, gives back what it did not begin, and exits with 0', async () => {
    await enqueue(...Array.from({ length: 150 }, () => mailJob()))
    const env = { FLEET_DATA_DIR: dataDir, EMAIL_RATE: '100' }
    const started = startWorker('email', fresh.url, ['--concurrency=1'], env)
    await until(async () => (await files()).length >= 3)
    started.process.kill('SIGTERM')
    assert.equal(await exited(started), 0, started.output())
    const { rows } = await sql<{ active: number; spent: number }>`
      select count(*) filter (where state = 'active')::int as active,
        max(retry_count) as spent from ${everyJob} where name = 'email'`.execute(fresh.db)
    assert.deepEqual(rows, [{ active: 0, spent: 0 }])
    const rest = startWorker('email', fresh.url, ['--once'], env)
    assert.equal(await exited(rest), 0, rest.output())
    assert.equal((await files()).length, 150)
    const log = started.output() + rest.output()
    assert.ok(!log.includes('anna@example.org'), 'no address in the log')
    assert.equal(log.match(/"mail sent"/g)?.length, 150)
  })

  test('a killed process loses no mail and sends none twice that was settled', async () => {
    await enqueue(...Array.from({ length: 60 }, () => mailJob()))
    const env = { FLEET_DATA_DIR: dataDir }
    const killed = startWorker('email', fresh.url, ['--concurrency=2'], env)
    await until(async () => (await files()).length >= 5)
    killed.process.kill('SIGKILL')
    assert.equal(await exited(killed), 'SIGKILL')
    // Its last sign of life is long ago.
    await loseLife(fresh.db)
    const settled = await sql<{ id: string }>`
      select id from ${everyJob} where name = 'email' and state = 'completed'`.execute(fresh.db)
    const heir = startWorker('email', fresh.url, [], env)
    await until(async () => (await files()).filter((name) => name.endsWith('.eml')).length === 60)
    heir.process.kill('SIGTERM')
    assert.equal(await exited(heir), 0, heir.output())
    const again = new Set(heir.lines().map((line) => line.job_id))
    assert.deepEqual(
      settled.rows.filter((row) => again.has(row.id)),
      [],
    )
    const { rows } = await sql<{ state: string; n: number }>`
      select state, count(*)::int as n from ${everyJob} where name = 'email' group by 1`.execute(
      fresh.db,
    )
    assert.deepEqual(rows, [{ state: 'completed', n: 60 }])
  })
})
