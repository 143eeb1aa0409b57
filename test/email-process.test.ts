// The email worker as processes against a Mailgun of its own process: the figures are those seen there. Killed in the
// middle of sending, several that share one rate, settings that are not enough.

import assert from 'node:assert/strict'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, beforeEach, describe, test } from 'node:test'
import { sql } from 'kysely'
import { openJobs } from '../db/jobs.ts'
import { ConfigError } from '../workers/config.ts'
import { readEmailConfig } from '../workers/email/config.ts'
import { testDatabase } from './database.ts'
import { mailJob } from './emailJobs.ts'
import { emptyJobs, everyJob, loseLife } from './jobRows.ts'
import { apiKey, domain, startMailgun } from './servers/mailgun.ts'
import { endWorkers, exited, startWorker, until, type WorkerProcess } from './worker.ts'

const fresh = await testDatabase()
const { db } = fresh
const jobs = openJobs(fresh.database)
const server = await startMailgun()
const dataDir = mkdtempSync(join(tmpdir(), 'flotilla-mail-'))
after(async () => {
  await endWorkers()
  await jobs.close()
  await server.stop()
  rmSync(dataDir, { recursive: true, force: true, maxRetries: 10 })
})
beforeEach(async () => {
  await emptyJobs(db)
  await sql`truncate rate_slots, email_sends, circuits, circuit_changes`.execute(db)
  await server.reset()
})

const start = (env: Record<string, string> = {}, args: string[] = []): WorkerProcess =>
  startWorker('email', fresh.url, args, {
    FLEET_DATA_DIR: dataDir,
    EMAIL_PROVIDER: 'mailgun',
    MAILGUN_URL: server.url,
    MAILGUN_DOMAIN: domain,
    MAILGUN_API_KEY: apiKey,
    ...env,
  })
const enqueue = async (count: number): Promise<string[]> => {
  const mails = Array.from({ length: count }, () => mailJob())
  await jobs.send(
    db,
    'email',
    mails.map((data) => ({ id: data.job_id, data })),
  )
  return mails.map(({ job_id }) => job_id)
}
const accepted = async () => (await server.seen()).messages.filter((one) => one.accepted)
const idsOf = (messages: { fields: Record<string, string> }[]) =>
  messages.map(({ fields }) => String(fields['v:flotilla-job']))
const states = async () => {
  const { rows } = await sql<{ state: string; n: number }>`
    select state, count(*)::int as n from ${everyJob} where name = 'email' group by 1`.execute(db)
  return rows
}

test('a process killed in the middle of sending: each mail is at the server once, and what was open is asked for first', async () => {
  const ids = await enqueue(60)
  await server.mood({ latencyMs: 300 })
  // Certainty is not waited for here: what the server has it shows at once.
  const env = { EMAIL_ABSENT_AFTER: '0' }
  for (let kills = 0; kills < 2; kills++) {
    const before = (await accepted()).length
    const killed = start(env, ['--concurrency=10'])
    await until(async () => (await accepted()).length >= before + 8)
    killed.process.kill('SIGKILL')
    assert.equal(await exited(killed), 'SIGKILL')
    await loseLife(db)
  }
  const open = await sql<{ job_id: string }>`
    select job_id from email_sends where state = 'handed'`.execute(db)
  assert.ok(open.rows.length > 0, 'some were in hand')
  await server.mood({ latencyMs: 0 })
  const heir = start(env)
  await until(async () => (await states()).every(({ state }) => state === 'completed'))
  heir.process.kill('SIGTERM')
  assert.equal(await exited(heir), 0, heir.output())
  const { asked } = await server.seen()
  assert.deepEqual(idsOf(await accepted()).sort(), ids.sort())
  const questions = new Set(asked.map((id) => id.split('@')[0]))
  for (const { job_id } of open.rows) assert.ok(questions.has(job_id), 'asked before it went again')
  assert.deepEqual(await states(), [{ state: 'completed', n: 60 }])
})

test('several processes share one rate, as the server sees it, and stop without a mail lost or sent twice', async () => {
  const ids = await enqueue(120)
  await server.mood({ latencyMs: 20 })
  const workers = [
    start({ EMAIL_RATE: '40' }),
    start({ EMAIL_RATE: '40' }),
    start({ EMAIL_RATE: '40' }),
  ]
  await until(async () => (await accepted()).length >= 60)
  workers[0]?.process.kill('SIGTERM')
  assert.equal(await exited(workers[0]!), 0, workers[0]?.output())
  await until(async () => (await accepted()).length === 120)
  for (const worker of workers.slice(1)) worker.process.kill('SIGTERM')
  for (const worker of workers.slice(1)) assert.equal(await exited(worker), 0, worker.output())
  const messages = await accepted()
  assert.deepEqual(idsOf(messages).sort(), ids.sort())
  const times = messages.map(({ at }) => at).sort((a, b) => a - b)
  // Never faster than the rate: 119 gaps of 1/40 s, but for the last call's lateness.
  const seconds = (times.at(-1)! - times[0]!) / 1000
  assert.ok(seconds > 118 / 40 - 0.5, `120 mails in ${seconds} s`)
  // What the bucket allows: its 40 tokens and 40 more.
  const most = Math.max(
    ...times.map((at) => times.filter((one) => one >= at && one < at + 1000).length),
  )
  assert.ok(most <= 80, `${most} in a second`)
  const log = workers.map((worker) => worker.output()).join('')
  assert.ok(
    !log.includes('anna@example.org') && !log.includes(apiKey),
    'neither addresses nor keys',
  )
})

test('in a dry run Mailgun delivers to nobody, and what a mail server would get is a file', async () => {
  await enqueue(1)
  const dry = start({ EMAIL_DRY_RUN: 'on' }, ['--once'])
  assert.equal(await exited(dry), 0, dry.output())
  assert.equal((await accepted())[0]?.fields['o:testmode'], 'yes')
  await enqueue(1)
  const smtp = { EMAIL_PROVIDER: 'smtp', SMTP_URL: 'smtp://127.0.0.1:1', EMAIL_DRY_RUN: 'on' }
  const files = start(smtp, ['--once'])
  assert.equal(await exited(files), 0, files.output())
  assert.match(files.output(), /"provider":"smtp","msg":"mail sent"/)
})

describe('settings', () => {
  const good = { DATABASE_URL: 'postgres://x', FLEET_DATA_DIR: dataDir }
  const faults = (env: Record<string, string>) => {
    try {
      readEmailConfig({ ...good, ...env })
    } catch (error) {
      if (error instanceof ConfigError) return error.faults
      throw error
    }
    return []
  }

  test('name what a provider lacks, all at once', () => {
    assert.deepEqual(faults({}), [])
    assert.deepEqual(faults({ EMAIL_PROVIDER: 'mailgun, smtp' }), [
      'SMTP_URL is not set, and EMAIL_PROVIDER names smtp',
      'MAILGUN_DOMAIN is not set, and EMAIL_PROVIDER names mailgun',
      'MAILGUN_API_KEY is not set, and EMAIL_PROVIDER names mailgun',
    ])
    const wrong = 'EMAIL_PROVIDER must be one of log, smtp, mailgun, or several in their order'
    assert.deepEqual(faults({ EMAIL_PROVIDER: 'sendgrid' }), [`${wrong} (it is "sendgrid")`])
    assert.deepEqual(faults({ EMAIL_PROVIDER: 'log,log' }), [`${wrong} (it is "log,log")`])
    const mailgun = { EMAIL_PROVIDER: 'mailgun', MAILGUN_DOMAIN: domain, MAILGUN_API_KEY: apiKey }
    assert.deepEqual(faults(mailgun), [])
    const plain = { ...mailgun, MAILGUN_URL: 'http://api.mailgun.net', NODE_ENV: 'production' }
    assert.match(faults(plain)[0] ?? '', /MAILGUN_URL must begin with https/)
    const secret = faults({ EMAIL_PROVIDER: 'smtp', SMTP_URL: 'ftp://user:hush@host' })
    assert.match(secret[0] ?? '', /^SMTP_URL must be smtp:/)
    assert.ok(!secret.join().includes('hush'))
  })

  test('end the process with what is wrong', async () => {
    const worker = start({ MAILGUN_API_KEY: '' })
    assert.equal(await exited(worker), 78)
    assert.match(
      worker.output(),
      /email: MAILGUN_API_KEY is not set, and EMAIL_PROVIDER names mailgun/,
    )
  })
})
