// Alerts: by the pass on a real database and as processes, against a Slack of its own process that tells what arrived and
// when, and the mails as jobs.

import assert from 'node:assert/strict'
import { after, beforeEach, describe, test } from 'node:test'
import { sql } from 'kysely'
import { pino } from 'pino'
import { closeCircuit, openCircuit } from '../db/circuits.ts'
import { noticeDeadLetters } from '../db/deadLetters.ts'
import { openJobs } from '../db/jobs.ts'
import { openRates } from '../db/rates.ts'
import { rest, restMs } from '../db/rests.ts'
import { type Alert, channelsFor, decodeAlert, describeAlert } from '../domain/alerts.ts'
import { decodeEmailJob, type EmailJob } from '../domain/emails.ts'
import { type AlertOptions, alertPass } from '../workers/alert/alert.ts'
import { readAlertConfig } from '../workers/alert/config.ts'
import { createSlack, toMessage } from '../workers/alert/slack.ts'
import type { ConfigError } from '../workers/config.ts'
import { createRenderer } from '../workers/email/templates.ts'
import { testDatabase } from './database.ts'
import { drain } from './emailJobs.ts'
import { bury } from './failedJobs.ts'
import { emptyJobs, everyJob, loseLife } from './jobRows.ts'
import { startSlack } from './servers/slack.ts'
import { freePort } from './waitingrooms.ts'
import { endWorkers, exited, startWorker, until } from './worker.ts'

const fresh = await testDatabase()
const { db } = fresh
const jobs = openJobs(fresh.database)
const server = await startSlack()
const { signal } = new AbortController()
let lines: string[] = []
const log = pino({ level: 'info' }, { write: (line: string) => void lines.push(line) })
const worker = { log, failed() {}, dying: signal }
after(async () => {
  await endWorkers()
  await jobs.close()
  await server.stop()
})
beforeEach(async () => {
  lines = []
  await emptyJobs(db)
  await sql`truncate rate_slots, rests, job_audits, job_errors, dead_letter_notices, flags, flag_changes,
    circuits, circuit_changes, schedules`.execute(db)
  await server.reset()
})

const opening = { why: 'HTTP 503 <!channel> & co', waitMs: () => 5000, wasProbe: false }
const at = '2027-01-01T00:00:00.000Z'
const letters = (queue: string, count = 1): Extract<Alert, { type: 'NotifyDeadLetters' }> => ({
  type: 'NotifyDeadLetters',
  queue,
  count,
  error: 'no',
  at,
})
const send = (...alerts: Alert[]) =>
  jobs.send(
    db,
    'alert',
    alerts.map((data) => ({ data })),
  )
const passOf = (over: Partial<AlertOptions> = {}) =>
  alertPass({
    db,
    jobs,
    slots: openRates(db),
    slack: createSlack({ url: server.url, timeoutMs: 5000 }),
    email: 'ops@example.org',
    worker,
    ...over,
  })
const mails = async () => {
  const { rows } = await sql<{ id: string; data: EmailJob & { template: 'alert' } }>`
    select id, data from ${everyJob} where name = 'email' order by id`.execute(db)
  return rows
}
const states = async () => {
  const { rows } = await sql<{ state: string; wait: number; attempts: number }>`
    select state, extract(epoch from start_after - clock_timestamp())::float8 as wait,
      retry_count as attempts
    from ${everyJob} where name = 'alert' order by id`.execute(db)
  return rows
}
const alertsMade = async () => {
  const { rows } = await sql<{ data: Alert }>`
    select data from ${everyJob} where name = 'alert' order by id`.execute(db)
  return rows.map(({ data }) => decodeAlert(data))
}
const notice = (everySeconds = 600) => noticeDeadLetters(db, { everySeconds })
const texts = async () => (await server.messages()).map(({ text }) => text)

describe('an alert', () => {
  test('goes to Slack and by mail, each once, with nothing in it that calls anybody', async () => {
    await openCircuit(db, 'embedding', opening)
    const pass = passOf()
    await drain(pass)
    await closeCircuit(db, 'embedding')
    await drain(pass)
    await pass.finish?.()
    const [off = '', on = ''] = await texts()
    assert.match(off, /^:rotating_light: \*embeddings was switched off: embedding is away\*\n/)
    assert.match(off, /^Why: HTTP 503 &lt;!channel&gt; &amp; co$/m)
    assert.match(
      on,
      /^:white_check_mark: \*embeddings is on again: embedding was away for \d+ s\*\n/,
    )
    const sent = await mails()
    assert.deepEqual(
      sent.map(({ id, data }) => [data.job_id === id, data.recipient, data.template]),
      [
        [true, 'ops@example.org', 'alert'],
        [true, 'ops@example.org', 'alert'],
      ],
    )
    const render = await createRenderer()
    const mail = render(
      decodeEmailJob(sent.find(({ data }) => /off/.test(data.payload.title))?.data),
    )
    assert.equal(mail.subject, 'Alert: embeddings was switched off: embedding is away')
    assert.match(mail.text, /^Why: +HTTP 503 <!channel> & co$/m)
    assert.ok(!mail.html.includes('<!channel>'))
  })

  test('that runs a second time makes no second mail', async () => {
    await send(letters('push'))
    const refusing = passOf()
    await server.mood({ next: [{ is: 'hang-up' }] })
    await drain(refusing)
    assert.deepEqual((await mails()).length, 1)
    assert.deepEqual(
      (await states()).map(({ state }) => state),
      ['retry'],
    )
    await sql`update pgboss.job set start_after = now() where name = 'alert'`.execute(db)
    await drain(refusing)
    await refusing.finish?.()
    assert.deepEqual([(await mails()).length, (await texts()).length], [1, 2])
  })

  test('goes nowhere without settings, and that is said', async () => {
    await send(letters('push'))
    const pass = passOf({ slack: undefined, email: undefined })
    await drain(pass)
    await pass.finish?.()
    assert.match(lines.join(''), /nobody is told of it: set SLACK_WEBHOOK_URL/)
    assert.deepEqual(
      (await states()).map(({ state }) => state),
      ['completed'],
    )
  })

  test('is not sent by the way that it says is broken', () => {
    const both = ['slack', 'email'] as const
    assert.deepEqual(channelsFor(letters('push'), both), both)
    assert.deepEqual(channelsFor(letters('email'), both), ['slack'])
    assert.deepEqual(channelsFor(letters('email'), ['email']), ['email'])
    assert.deepEqual(channelsFor(letters('alert'), both), ['email'])
    assert.deepEqual(channelsFor(letters('alert'), ['slack']), ['slack'])
  })

  test('is one line a fact, however long and wild', () => {
    const error = `${'x'.repeat(5000)}\n\u2028*bold* <@U1>`
    const text = toMessage(describeAlert({ ...letters('push', 12), error }))
    assert.equal(text.split('\n').length, 4)
    assert.match(text, /12 jobs were given up in the queue push/)
    assert.ok(text.length < 2000 && !text.includes('<'))
  })
})

describe('Slack', () => {
  test('that wants to rest is left alone by all instances, and no attempt is spent', async () => {
    await send(...Array.from({ length: 3 }, () => letters('push')))
    await server.mood({ next: [{ is: 'limit', retryAfter: 120 }] })
    const [one, two] = [passOf(), passOf()]
    await Promise.all([drain(one), drain(two)])
    const waiting = await states()
    assert.equal((await texts()).length, 1)
    assert.ok(
      waiting.every(({ wait, attempts }) => wait > 100 && attempts === 0),
      JSON.stringify(waiting),
    )
    const ms = await restMs(db, 'slack')
    assert.ok(ms > 100_000 && ms <= 120_000)
    // A shorter word does not end it.
    await rest(db, 'slack', 1000)
    assert.ok((await restMs(db, 'slack')) > 100_000)
    await server.reset()
    await sql`update rests set until_at = clock_timestamp()`.execute(db)
    await sql`update pgboss.job set start_after = now() where name = 'alert'`.execute(db)
    await Promise.all([drain(one), drain(two)])
    await Promise.all([one.finish?.(), two.finish?.()])
    const seen = await server.messages()
    assert.deepEqual(
      seen.map(({ status }) => status),
      [200, 200, 200],
    )
  })

  test('that is away for long loses no alert: it is tried by one at a time, and no attempt is spent', async () => {
    const at = new Date().toISOString()
    await send({ ...letters('push'), at }, { ...letters('email'), at })
    const sent: string[] = []
    const pass = passOf({ onSent: (channel) => sent.push(channel) })
    for (let tries = 0; tries < 5; tries++) {
      await server.mood({ next: [{ is: 'refuse', status: 503, body: '' }] })
      await drain(pass)
      assert.ok((await restMs(db, 'slack')) > 25_000)
      await sql`update rests set until_at = clock_timestamp()`.execute(db)
      await sql`update pgboss.job set start_after = now() where name = 'alert'`.execute(db)
    }
    assert.deepEqual(
      (await states()).map(({ attempts }) => attempts),
      [0, 0],
    )
    assert.equal((await texts()).length, 5)
    await drain(pass)
    await pass.finish?.()
    assert.equal((await texts()).length, 7)
    assert.deepEqual(sent.sort(), ['email', 'slack', 'slack'], 'each is counted once')
    // What is a day old is news no more.
    await server.mood({ next: [{ is: 'refuse', status: 503, body: '' }] })
    await send({ ...letters('push'), at: new Date(Date.now() - 86_400_001).toISOString() })
    await drain(pass)
    assert.equal((await states()).filter(({ state }) => state === 'retry').length, 1)
  })

  test('that refuses for good is not asked again: the alert is a dead letter, told by mail', async () => {
    for (const [status, body] of [
      [400, 'invalid_payload'],
      [410, 'channel_is_archived'],
    ] as const) {
      await server.mood({ next: [{ is: 'refuse', status, body }] })
      await send(letters('push'))
      const pass = passOf()
      await drain(pass)
      await pass.finish?.()
    }
    const { rows } = await sql<{ message: string }>`
      select errors->-1->>'message' as message from job_audits order by created_at`.execute(db)
    assert.deepEqual(
      rows.map(({ message }) => message),
      ['Slack answered 400 invalid_payload', 'Slack answered 410 channel_is_archived'],
    )
    assert.equal((await texts()).length, 2)
    await emptyJobs(db)
    assert.equal(await notice(), 1)
    const pass = passOf()
    await drain(pass)
    await pass.finish?.()
    assert.deepEqual([(await mails()).length, (await texts()).length], [1, 2])
  })

  test('that is away, silent or hangs up is asked again, and the address is told to nobody', async () => {
    const slack = createSlack({ url: server.url, timeoutMs: 300 })
    const post = () => slack.post(describeAlert(letters('push')), signal)
    await server.mood({ next: [{ is: 'silence' }, { is: 'hang-up' }], burst: 5 })
    const url = `http://127.0.0.1:${await freePort()}/services/T0/B0/secret`
    const gone = createSlack({ url, timeoutMs: 300 })
    const outcomes = [
      await post(),
      await post(),
      await gone.post(describeAlert(letters('push')), signal),
    ]
    assert.deepEqual(outcomes[0], { is: 'retry', why: 'Slack did not answer in time' })
    assert.deepEqual(
      outcomes.map(({ is }) => is),
      ['retry', 'retry', 'away'],
    )
    for (const outcome of outcomes) {
      assert.doesNotMatch(JSON.stringify(outcome), /services|secret|127\.0/)
    }
    await server.mood({ next: [{ is: 'limit' }] })
    assert.deepEqual(await post(), { is: 'limited', afterMs: 30_000 })
  })
})

describe('dead letters', () => {
  test('of a queue are told at once and together, then in a digest, each once', async () => {
    await bury(db, 'push', 3, { error: 'the first' })
    await bury(db, 'payments', 1, { error: 'no money' })
    assert.equal(await notice(), 2)
    assert.equal(await notice(), 0)
    await bury(db, 'push', 20, { error: 'later' })
    assert.equal(await notice(), 0, 'the queue was told of just now')
    await sql`update dead_letter_notices set told_at = told_at - interval '10 min'`.execute(db)
    assert.equal(await notice(), 1)
    assert.equal(await notice(), 0)
    const made = (await alertsMade()).filter((one) => one.type === 'NotifyDeadLetters')
    assert.deepEqual(
      made.map(({ queue, count, error }) => [queue, count, error]),
      [
        ['payments', 1, 'no money'],
        ['push', 3, 'the first'],
        ['push', 20, 'later'],
      ],
    )
  })

  test('are told once whoever looks, and none is passed over that is committed late', async () => {
    const pools = [fresh, fresh.open('one'), fresh.open('two')]
    const late = await pools[1]!.db.startTransaction().execute()
    await bury(late as never, 'push', 1, { error: 'late' })
    await bury(db, 'push', 5)
    const look = (everySeconds: number) =>
      Promise.all(
        Array.from({ length: 9 }, (_, i) => noticeDeadLetters(pools[i % 3]!.db, { everySeconds })),
      )
    const told = (await look(600)).reduce((sum, n) => sum + n, 0)
    assert.equal(told, 1)
    await late.commit().execute()
    assert.equal(await notice(0), 1)
    const made = (await alertsMade()).filter((one) => one.type === 'NotifyDeadLetters')
    assert.deepEqual(made.map(({ count }) => count).sort(), [1, 5])
  })

  test('that were dealt with are no news, nor are alerts that could not be mailed', async () => {
    await bury(db, 'push', 2)
    await sql`update job_audits set resolved_at = clock_timestamp(), resolved_as = 'removed'`.execute(
      db,
    )
    await bury(db, 'email', 1, { data: { type: 'email', template: 'alert' } })
    await bury(db, 'alert', 1, { data: letters('alert') })
    assert.equal(await notice(), 0)
    await bury(db, 'email', 1, { data: { type: 'email', template: 'ticket_delivery' } })
    assert.equal(await notice(), 1)
    const made = (await alertsMade()).filter(
      (one) => one.type === 'NotifyDeadLetters' && one.queue === 'email',
    )
    assert.deepEqual(
      made.map((one) => one.type === 'NotifyDeadLetters' && one.count),
      [1],
    )
  })
})

describe('the alert worker', () => {
  const start = (env: Record<string, string> = {}) =>
    startWorker('alert', fresh.url, [], {
      SLACK_WEBHOOK_URL: server.url,
      ALERT_EMAIL: 'ops@example.org',
      ALERT_POLL_MS: '50',
      ALERT_LOOK: '1',
      ...env,
    })

  test('tells one opening once and dead letters once from two instances, a message a second', async () => {
    const workers = [start(), start()]
    await Promise.all([
      openCircuit(db, 'embedding', opening),
      openCircuit(db, 'opensearch', opening),
    ])
    await Promise.all([
      openCircuit(db, 'embedding', opening),
      openCircuit(db, 'opensearch', opening),
    ])
    await bury(db, 'push', 4)
    await bury(db, 'payments', 2)
    await send(letters('inbox'), letters('commands'))
    await until(async () => (await texts()).length >= 6)
    await until(async () => (await states()).every(({ state }) => state === 'completed'))
    for (const one of workers) one.process.kill('SIGTERM')
    assert.deepEqual(await Promise.all(workers.map(exited)), [0, 0])
    const seen = await server.messages()
    assert.deepEqual(
      seen.map(({ status }) => status),
      [200, 200, 200, 200, 200, 200],
    )
    assert.equal(new Set(seen.map(({ text }) => text.split('\n')[0])).size, 6)
    assert.equal((await mails()).length, 6)
    const lasted = seen.at(-1)!.at - seen[0]!.at
    // Their slots are a second apart; one that is half a second late still goes.
    assert.ok(lasted >= 4400, `six messages within ${lasted} ms`)
    for (const one of workers) assert.ok(!one.output().includes('abcdefghijklmnopqrstuvwx'))
  })

  test('killed at any moment tells all of it, and mails nothing twice', async () => {
    await server.mood({ burst: 100 })
    for (let i = 0; i < 6; i++) await send(letters('push', i + 1))
    for (let kills = 0; kills < 2; kills++) {
      const before = (await texts()).length
      const killed = start()
      await until(async () => (await texts()).length > before)
      killed.process.kill('SIGKILL')
      await exited(killed)
      await loseLife(db)
    }
    const heir = start()
    await until(async () => (await states()).every(({ state }) => state === 'completed'))
    heir.process.kill('SIGTERM')
    assert.equal(await exited(heir), 0)
    const heads = (await texts()).map((text) => text.split('\n')[0])
    assert.equal(new Set(heads).size, 6)
    // What was in hand at a kill may have been told and not settled.
    assert.ok(heads.length <= 6 + 2 * 4, `${heads.length} messages`)
    assert.equal((await mails()).length, 6)
  })

  test('says what is wrong with its settings', () => {
    const faultsOf = (env: Record<string, string>) => {
      try {
        readAlertConfig({ DATABASE_URL: 'postgres://x', ...env })
        return ''
      } catch (error) {
        return (error as ConfigError).faults.join('\n')
      }
    }
    assert.match(
      faultsOf({ ALERT_EMAIL: 'a@b.c, d@e.f' }),
      /ALERT_EMAIL must be one e-mail address/,
    )
    const secret = 'ftp://hooks.slack.com/services/secret'
    assert.match(faultsOf({ SLACK_WEBHOOK_URL: secret }), /SLACK_WEBHOOK_URL must be a URL/)
    assert.ok(!faultsOf({ SLACK_WEBHOOK_URL: secret }).includes('secret'))
    const plain = { SLACK_WEBHOOK_URL: 'http://hooks.slack.com/x', NODE_ENV: 'production' }
    assert.match(faultsOf(plain), /must begin with https/)
    assert.equal(faultsOf({}), '')
  })
})
