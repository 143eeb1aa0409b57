// Addresses that get no mail: what Mailgun's webhooks put on the list and what of them is not believed, and the operator's
// command; quotas, whose invitation is a mail; and what an operator is shown of one.

import assert from 'node:assert/strict'
import { randomBytes, randomUUID } from 'node:crypto'
import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, beforeEach, describe, test } from 'node:test'
import { sql } from 'kysely'
import { execute } from '../cli/main.ts'
import type { Context } from '../cli/program.ts'
import { openJobs } from '../db/jobs.ts'
import { pruneWebhooks } from '../db/suppressions.ts'
import { transaction } from '../db/transaction.ts'
import { decodeEmailJob } from '../domain/emails.ts'
import { decodeEvent } from '../domain/readEvent.ts'
import { createHandler } from '../workers/inbox/inbox.ts'
import { createLog } from '../workers/log.ts'
import { openApi } from './api.ts'
import { testDatabase } from './database.ts'
import { toCloudEvent } from './events.ts'
import { type Webhook, webhookBody } from './servers/mailgun.ts'

const fresh = await testDatabase()
const { db } = fresh
const signingKey = 'a-webhook-signing-key'
const api = await openApi(fresh.database, {}, { MAILGUN_SIGNING_KEY: signingKey })
const folder = mkdtempSync(join(tmpdir(), 'flotilla-preview-'))
after(async () => {
  await api.close()
  rmSync(folder, { recursive: true })
})
beforeEach(() => sql`truncate email_suppressions, email_sends, webhook_events`.execute(db))

const post = (body: object) => api.call('POST', 'webhooks/mailgun', { key: false, body })
const suppressed = async () => {
  const { rows } = await sql<{ address: string; reason: string }>`
    select address, reason from email_suppressions order by address`.execute(db)
  return rows.map(({ address, reason }) => `${address} ${reason}`)
}
const failed = (over: Partial<Webhook> = {}): Webhook => ({
  event: 'failed',
  severity: 'permanent',
  reason: 'bounce',
  recipient: 'Anna@Example.org',
  ...over,
})

describe('a webhook of Mailgun', () => {
  test('suppresses who cannot be reached, complains or unsubscribes, and nobody else', async () => {
    const hooks = [
      failed(),
      failed({ recipient: 'b@example.org', severity: 'temporary', reason: 'generic' }),
      failed({ recipient: 'c@example.org', event: 'complained' }),
      failed({ recipient: 'd@example.org', event: 'unsubscribed' }),
      failed({ recipient: 'e@example.org', event: 'delivered' }),
      failed({ recipient: 'f@example.org', reason: 'espblock' }),
      failed({ recipient: 'g@example.org', reason: 'suppress-complaint' }),
      failed({ recipient: 'no address' }),
    ]
    for (const hook of hooks) assert.equal((await post(webhookBody(signingKey, hook))).status, 200)
    assert.deepEqual(await suppressed(), [
      'anna@example.org bounce',
      'c@example.org complaint',
      'd@example.org unsubscribe',
      'g@example.org complaint',
    ])
  })

  test('is refused for good when it is forged, old or no webhook at all', async () => {
    const now = Math.floor(Date.now() / 1000)
    const good = webhookBody(signingKey, failed()) as { signature: Record<string, string> }
    const wrong = [
      webhookBody('another key', failed()),
      webhookBody(signingKey, failed({ timestamp: now - 3600 })),
      webhookBody(signingKey, failed({ timestamp: now + 3600 })),
      { ...good, signature: { ...good.signature, timestamp: String(now - 1) } },
      { ...good, signature: { ...good.signature, signature: '00'.repeat(32) } },
      { ...good, signature: { ...good.signature, signature: 'x' } },
      { ...good, signature: undefined },
      { signature: good.signature },
    ]
    for (const body of wrong) {
      const answer = await post(body)
      assert.deepEqual([answer.status, answer.json.code], [406, 'WEBHOOK_REFUSED'])
    }
    const text = await api.call('POST', 'webhooks/mailgun', { key: false, body: '{' })
    assert.equal(text.status, 406)
    assert.deepEqual(await suppressed(), [])
  })

  test('counts once, however often it comes, also at the same time', async () => {
    const token = randomBytes(25).toString('hex')
    const body = webhookBody(signingKey, failed({ token }))
    const answers = await Promise.all([post(body), post(body), post(body)])
    assert.deepEqual(
      answers.map(({ status }) => status),
      [200, 200, 200],
    )
    assert.deepEqual(answers.map(({ json }) => json.message).sort(), [
      'done',
      'done before',
      'done before',
    ])
    // The signature does not cover the rest.
    await post(webhookBody(signingKey, failed({ token, recipient: 'victim@example.org' })))
    assert.deepEqual(await suppressed(), ['anna@example.org bounce'])
    const { rows } = await sql<{ payload: object }>`select payload from webhook_events`.execute(db)
    assert.ok(!JSON.stringify(rows).includes('nna@'), 'no personal data is kept of it')
    await sql`update webhook_events set received_at = received_at - interval '2 h'`.execute(db)
    assert.equal(await pruneWebhooks(db, { provider: 'mailgun', keepSeconds: 3600 }), 1)
  })

  test('tells that a mail of unknown outcome was taken', async () => {
    const jobId = randomUUID()
    await sql`insert into email_sends (job_id, provider) values (${jobId}, 'mailgun')`.execute(db)
    await post(webhookBody(signingKey, { event: 'delivered', recipient: 'a@example.org', jobId }))
    const { rows } = await sql<{ state: string }>`select state from email_sends`.execute(db)
    assert.deepEqual(rows, [{ state: 'sent' }])
  })

  test('waits at Mailgun while there is no key to believe it by', async () => {
    const keyless = await openApi(fresh.database)
    after(() => keyless.close())
    const body = webhookBody(signingKey, failed())
    const answer = await keyless.call('POST', 'webhooks/mailgun', { key: false, body })
    assert.equal(answer.status, 503)
  })
})

async function run(words: string, env: Record<string, string> = {}) {
  const [out, err]: [string[], string[]] = [[], []]
  const context: Context = {
    program: 'fleet',
    env: { DATABASE_URL: fresh.url, ...env },
    argv: words.split(' '),
    say: (line) => out.push(line),
    warn: (line) => err.push(line),
    input: async () => '',
    columns: undefined,
    terminal: undefined,
    onStop: () => {},
    become: () => assert.fail('becomes nothing'),
  }
  const code = await execute('fleet', context)
  return { code, out: out.join('\n'), err: err.join('\n') }
}

test('an operator lists, adds and removes addresses', async () => {
  assert.equal((await run('email:suppress list')).code, 3)
  assert.equal((await run('email:suppress add Anna@Example.org')).code, 0)
  assert.match((await run('email:suppress add anna@example.ORG')).out, /was suppressed already/)
  assert.match(
    (await run('email:suppress list')).out,
    /^anna@example\.org +manual +operator +\d{4}-/m,
  )
  const [row] = JSON.parse((await run('email:suppress list anna@example.org --json')).out)
  assert.equal(row.reason, 'manual')
  assert.equal((await run('email:suppress list ben@example.org')).code, 3)
  assert.match((await run('email:suppress remove anna@example.org')).out, /gets mail again/)
  assert.equal((await run('email:suppress remove anna@example.org')).code, 3)
  for (const words of [
    'email:suppress',
    'email:suppress drop',
    'email:suppress add',
    'email:suppress add x',
  ]) {
    assert.equal((await run(words)).code, 2, words)
  }
})

test('a preview is a page, a text and a whole mail, in the language asked for', async () => {
  const { code, out } = await run(`email:preview ticket_delivery --locale hr --out ${folder}`)
  assert.equal(code, 0)
  assert.match(out, /^Subject: Vaše ulaznice/)
  assert.deepEqual(
    readdirSync(folder).sort(),
    ['eml', 'html', 'txt'].map((kind) => `ticket_delivery.hr.${kind}`),
  )
  const read = (kind: string) => readFileSync(join(folder, `ticket_delivery.hr.${kind}`), 'utf8')
  assert.match(read('html'), /^<!doctype html>[\s\S]*Tom &amp; Zoë/)
  assert.match(read('txt'), /red 12, mjesto 7: K7QF/)
  assert.match(read('eml'), /^Content-Type: multipart\/alternative/m)
  assert.match(
    (await run('email:preview nothing')).err,
    /known: order_confirmation, ticket_delivery/,
  )
  assert.equal((await run('email:preview ticket_delivery --locale not_a_tag!')).code, 2)
})

describe('a quota', () => {
  test('is made with its invitation, which becomes one mail', async () => {
    const event_id = await api.makeEvent({ name: 'Opening night' })
    const quota = { event_id, user_id: 'guest', quantity: 3, expires_at: '2030-06-01T12:00:00Z' }
    const answer = await api.call('POST', 'quotas', { internal: true, body: quota })
    assert.equal(answer.status, 201)
    const { rows } = await sql<{ message_id: string; data: object; subject: string }>`
      select message_id, data, subject from outbox where type = 'quota.invitation'`.execute(db)
    const { quota_id } = answer.json
    assert.equal(rows[0]?.subject, quota_id)
    const stored = await db
      .selectFrom('quotas')
      .selectAll()
      .where('id', '=', quota_id)
      .executeTakeFirst()
    assert.deepEqual([stored?.user_id, stored?.quantity], ['guest', 3])

    const email = 'guest@example.org'
    await api.call('PUT', 'users/guest', { internal: true, body: { email, locale: 'de' } })
    const event = toCloudEvent({
      messageId: rows[0]!.message_id,
      type: 'quota.invitation',
      subject: quota_id,
      sequence: 1,
      data: rows[0]!.data as never,
    })
    const jobs = openJobs(fresh.database)
    after(() => jobs.close())
    const handle = createHandler({ jobs, worker: { log: createLog('test', 'silent') } })
    await transaction(db, (tx) => handle(tx, [decodeEvent(event)]))
    const sent = await sql<{ data: object }>`
      select data from pgboss.job where name = 'email'`.execute(db)
    assert.equal(sent.rows.length, 1)
    const job = decodeEmailJob(sent.rows[0]?.data)
    assert.deepEqual(
      [job.template, job.recipient, job.payload.locale],
      ['quota_invitation', email, 'de'],
    )
  })

  test('is for internal programs, of an event that exists, and of good values', async () => {
    const event_id = await api.makeEvent()
    const good = { event_id, user_id: 'guest', quantity: 1 }
    const status = async (body: object, caller: object = { internal: true }) =>
      (await api.call('POST', 'quotas', { ...caller, body })).status
    assert.equal(await status(good, { user: 'guest' }), 403)
    assert.equal(await status(good, {}), 401)
    assert.equal(await status({ ...good, event_id: randomUUID() }), 404)
    assert.equal(await status({ ...good, quantity: 0 }), 400)
    assert.equal(await status({ ...good, expires_at: '2030-06-31T12:00:00Z' }), 400)
    assert.equal(await status({ ...good, more: 1 }), 400)
  })

  test('asked for again under one key is one, told with the same answer', async () => {
    const event_id = await api.makeEvent()
    const call = {
      internal: true,
      key: randomUUID().replaceAll('-', ''),
      body: { event_id, user_id: 'g', quantity: 1 },
    }
    const [first, second] = [
      await api.call('POST', 'quotas', call),
      await api.call('POST', 'quotas', call),
    ]
    assert.deepEqual(first.json, second.json)
    assert.equal(second.headers['idempotent-replayed'], 'true')
  })
})
