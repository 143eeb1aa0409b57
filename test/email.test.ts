// Mails on their way: that a job becomes one, once, what becomes of it when a provider will not have it, and the process.

import assert from 'node:assert/strict'
import { mkdtemp, readdir, readFile, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, before, beforeEach, describe, test } from 'node:test'
import { sql } from 'kysely'
import { type Jobs, openJobs } from '../db/jobs.ts'
import { openRates } from '../db/rates.ts'
import type { EmailJob } from '../domain/emails.ts'
import { emailPass } from '../workers/email/email.ts'
import { createLogProvider } from '../workers/email/log.ts'
import type { EmailProvider, Mail, SendOutcome } from '../workers/email/provider.ts'
import { createProviders } from '../workers/email/providers.ts'
import { createLog } from '../workers/log.ts'
import { type TestDatabase, testDatabase } from './database.ts'
import { drain, mailJob } from './emailJobs.ts'
import { emptyJobs, everyJob, loseLife } from './jobRows.ts'
import { endWorkers, exited, startWorker, until } from './worker.ts'

const signal = new AbortController().signal

describe('the email worker', () => {
  let fresh: TestDatabase
  let jobs: Jobs
  let dataDir: string
  const worker = { log: createLog('test', 'silent'), failed() {}, dying: signal, stopping: signal }

  before(async () => {
    fresh = await testDatabase()
    jobs = openJobs(fresh.database)
    dataDir = await mkdtemp(join(tmpdir(), 'flotilla-mail-'))
  })
  after(async () => {
    await jobs.close()
    await endWorkers()
    await rm(dataDir, { recursive: true, force: true, maxRetries: 10 })
  })
  beforeEach(async () => {
    await emptyJobs(fresh.db)
    await sql`truncate rate_slots, email_sends, email_suppressions, circuits, circuit_changes`.execute(
      fresh.db,
    )
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
  const build = (provider: EmailProvider, db = fresh.db) =>
    emailPass({
      db,
      jobs,
      slots: openRates(db),
      providers: createProviders({ db, providers: [provider], worker }),
      from,
      perSecond: 1000,
      batchMax: 100,
      concurrency: 10,
      absentAfterMs: 0,
      unaskable: 'give-up',
      worker,
    })
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
    assert.equal(await drain(pass), 1)
    await emptyJobs(fresh.db)
    await enqueue(job)
    assert.equal(await drain(pass), 1)
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
    const passes = [build(provider), build(provider, fresh.open().db)]
    await Promise.all(passes.map(drain))
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
    await drain(pass)
    assert.deepEqual(await due(30, since), [true])
    afterMs = 900_000
    await again()
    since = await databaseTime()
    await drain(pass)
    assert.deepEqual(await due(900, since), [true])
    await again()
    await drain(pass)
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
    await drain(build(provider))
    assert.equal(sent.length, 3)
    assert.deepEqual((await dead()).sort(), [
      '550 no such user ***@***',
      'the payload cannot be read: template must be one of order_confirmation, ticket_delivery, quota_invitation, alert',
    ])
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
