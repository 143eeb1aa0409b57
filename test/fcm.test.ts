// The provider of pushes over FCM v1 against a stand-in in a process of its own: what its answers mean, the sessions and
// how they end, and the access tokens.

import assert from 'node:assert/strict'
import { spawnSync } from 'node:child_process'
import { randomUUID } from 'node:crypto'
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, before, beforeEach, describe, test } from 'node:test'
import type { PushJob } from '../domain/pushes.ts'
import { createAccessTokens } from '../workers/push/accessTokens.ts'
import { readAnswer, readRetryAfter } from '../workers/push/answers.ts'
import { readPushConfig } from '../workers/push/config.ts'
import { readCredentials } from '../workers/push/credentials.ts'
import { createFcmProvider } from '../workers/push/fcm.ts'
import { toMessage } from '../workers/push/message.ts'
import type { Push, PushOutcome } from '../workers/push/provider.ts'
import { createSessions, RequestFailed } from '../workers/push/sessions.ts'
import { type Fcm, launchFcm, type Reply } from './servers/fcm.ts'
import { until } from './worker.ts'

const never = new AbortController().signal
const atOnce = async () => {}
const folder = mkdtempSync(join(tmpdir(), 'flotilla-fcm-test-'))
let fcm: Fcm
before(async () => {
  fcm = await launchFcm()
})
after(async () => {
  await fcm.stop()
  rmSync(folder, { recursive: true, force: true })
})
beforeEach(async () => {
  await fcm.set({ rules: [], latencyMs: 2, tokenSeconds: 3600, tokenError: null })
  await fcm.forget()
})

const job = (changed: Partial<PushJob> = {}): PushJob => ({
  job_id: randomUUID(),
  type: 'push',
  template: 'ticket_ready',
  user_id: 'anna',
  fcm_tokens: ['phone'],
  payload: { title: 'Your tickets are here', body: 'Opening night' },
  ...changed,
})
const pushTo = (value: string, kind: 'token' | 'fid' = 'token', changed = {}): Push => ({
  job: job(changed),
  device: { kind, value },
  expiresAt: new Date(Date.now() + 3_600_000),
})
const open = (t: { after(fn: () => unknown): void }, changed = {}) => {
  const provider = createFcmProvider({
    url: fcm.url,
    credentials: readCredentials(fcm.credentials),
    validateOnly: false,
    concurrency: 200,
    answerMs: 5000,
    ...changed,
  })
  t.after(() => provider.close())
  return provider
}
const rule = (prefix: string, ...replies: Reply[]) => ({ prefix, replies })

describe('an answer of FCM', () => {
  test('means what Google says it means, whatever the order of its details', async (t) => {
    const provider = open(t)
    const cases: [Reply, PushOutcome['is'], { code?: string; afterMs?: number; ours?: boolean }][] =
      [
        [{ is: 'ok' }, 'sent', {}],
        [{ is: 'unregistered' }, 'gone', {}],
        [{ is: 'invalid' }, 'rejected', { code: 'INVALID_ARGUMENT', ours: false }],
        [{ is: 'invalid', reversed: true }, 'rejected', { code: 'INVALID_ARGUMENT', ours: false }],
        [{ is: 'mismatch' }, 'rejected', { code: 'SENDER_ID_MISMATCH', ours: false }],
        [
          { is: 'thirdParty', reversed: true },
          'rejected',
          { code: 'THIRD_PARTY_AUTH_ERROR', ours: false },
        ],
        [{ is: 'bare404' }, 'rejected', { code: 'NOT_FOUND', ours: true }],
        [{ is: 'denied' }, 'rejected', { code: 'PERMISSION_DENIED', ours: true }],
        [{ is: 'quota' }, 'retry', { code: 'QUOTA_EXCEEDED', afterMs: 60_000 }],
        [
          { is: 'quota', retryAfter: '7', reversed: true },
          'retry',
          { code: 'QUOTA_EXCEEDED', afterMs: 7000 },
        ],
        [{ is: 'unavailable' }, 'retry', { code: 'UNAVAILABLE', afterMs: 10_000 }],
        [
          { is: 'unavailable', retryAfter: '45' },
          'retry',
          { code: 'UNAVAILABLE', afterMs: 45_000 },
        ],
        [{ is: 'unavailable', retryAfter: '1' }, 'retry', { code: 'UNAVAILABLE', afterMs: 10_000 }],
        [{ is: 'internal' }, 'retry', { code: 'INTERNAL', afterMs: 10_000 }],
        [{ is: 'html502' }, 'retry', { code: 'HTTP_502', afterMs: 10_000 }],
        [{ is: 'reset' }, 'retry', { code: 'CONNECTION', afterMs: 10_000 }],
      ]
    await fcm.set({ rules: cases.map(([reply], i) => rule(`device-${i}-`, reply)) })
    for (const [i, [reply, is, told]] of cases.entries()) {
      const outcome = await provider.send(pushTo(`device-${i}-x`), atOnce, never)
      assert.equal(outcome.is, is, `${reply.is}: ${JSON.stringify(outcome)}`)
      assert.partialDeepStrictEqual(outcome, told)
    }
    const { counts } = await fcm.stats()
    assert.deepEqual(counts, {}, 'none was asked twice')
  })

  test('is told without the token of the device', () => {
    const body = JSON.stringify({ error: { status: 'INVALID_ARGUMENT', message: 'no: tok-1 is' } })
    const outcome = readAnswer({ status: 400, headers: {}, body }, 'tok-1')
    assert.deepEqual(outcome, {
      is: 'rejected',
      code: 'INVALID_ARGUMENT',
      why: 'FCM: 400 INVALID_ARGUMENT: no: *** is',
      ours: false,
    })
  })

  test('says when to come back in seconds or as a date', () => {
    const now = Date.parse('2026-12-01T10:00:00Z')
    assert.equal(readRetryAfter('30', now), 30_000)
    assert.equal(readRetryAfter('Tue, 01 Dec 2026 10:02:00 GMT', now), 120_000)
    assert.equal(readRetryAfter('Tue, 01 Dec 2026 09:00:00 GMT', now), 0)
    for (const none of [undefined, 'soon', '', '-3'])
      assert.equal(readRetryAfter(none, now), undefined)
  })
})

describe('a message', () => {
  test('says to Android, Apple and browsers what the job says, to a token or to a fid', async (t) => {
    const provider = open(t)
    const push = pushTo('fid-1', 'fid', {
      priority: 'high',
      collapse_key: 'queue:match-1',
      payload: { title: 'It is your turn', body: 'Now', data: { match_id: 'match-1' } },
    })
    assert.deepEqual(await provider.send(push, atOnce, never), { is: 'sent' })
    const { messages } = await fcm.stats('fid-1')
    const sent = messages['fid-1'] as Record<string, Record<string, unknown>>
    assert.partialDeepStrictEqual(sent, {
      fid: 'fid-1',
      notification: { title: 'It is your turn', body: 'Now' },
      data: { match_id: 'match-1' },
      android: {
        priority: 'HIGH',
        collapse_key: 'queue:match-1',
        notification: { tag: 'queue:match-1' },
      },
      apns: { headers: { 'apns-priority': '10', 'apns-collapse-id': 'queue:match-1' } },
      webpush: { headers: { Urgency: 'high' } },
      fcm_options: { analytics_label: 'ticket_ready' },
    })
    assert.equal('token' in sent, false)
    const ttl = Number.parseInt(String(sent.android?.ttl), 10)
    assert.ok(ttl > 3590 && ttl <= 3600, `lives for ${ttl} s`)
  })

  test('has the same name each time it is sent, so that a phone shows it once', () => {
    const push = pushTo('phone')
    const [first, again] = [toMessage(push, 0), toMessage(push, 60_000)] as {
      android: { notification: object; collapse_key?: string }
      apns: { headers: Record<string, string> }
      webpush: { headers: Record<string, string> }
    }[]
    assert.deepEqual(first?.android.notification, again?.android.notification)
    for (const message of [first, again]) {
      assert.equal(message?.apns.headers['apns-collapse-id'], push.job.job_id)
      assert.match(String(message?.webpush.headers.Topic), /^[\w-]{32}$/)
      assert.equal(message?.android.collapse_key, undefined)
    }
  })

  test('is only checked in a dry run', async (t) => {
    const provider = open(t, { validateOnly: true })
    assert.deepEqual(await provider.send(pushTo('phone'), atOnce, never), { is: 'sent' })
    const { validated, ok } = await fcm.stats()
    assert.deepEqual([validated, ok], [1, 1])
  })
})

describe('the sessions', () => {
  test('are few, stay open, and are not given more streams than they bear', async (t) => {
    const provider = open(t)
    await fcm.set({ latencyMs: 30 })
    for (let round = 0; round < 3; round++) {
      const sends = Array.from({ length: 150 }, (_, i) =>
        provider.send(pushTo(`phone-${round}-${i}`), atOnce, never),
      )
      const outcomes = await Promise.all(sends)
      assert.deepEqual(new Set(outcomes.map(({ is }) => is)), new Set(['sent']))
    }
    const { opened, streamsMax, requests, tokens } = await fcm.stats()
    assert.ok(opened <= 3, `${opened} sessions`)
    assert.ok(streamsMax <= 100, `${streamsMax} streams`)
    assert.deepEqual([requests, tokens], [450, 1])
  })

  test('are replaced when the server goes away: what it has not seen is sent by another', async (t) => {
    const provider = open(t)
    await fcm.set({ latencyMs: 300 })
    await provider.send(pushTo('first'), atOnce, never)
    const sends = Array.from({ length: 40 }, (_, i) =>
      provider.send(pushTo(`phone-${i}`), atOnce, never),
    )
    await until(async () => (await fcm.stats()).requests === 41)
    // All that is in flight was not seen: stream 1 alone was.
    await fcm.goaway(2, 1)
    const outcomes = await Promise.all(sends)
    assert.deepEqual(new Set(outcomes.map(({ is }) => is)), new Set(['sent']))
    assert.equal((await fcm.stats()).repeatedOk, 0)
    // A gentle one lets what is in flight finish.
    const more = Array.from({ length: 40 }, (_, i) =>
      provider.send(pushTo(`more-${i}`), atOnce, never),
    )
    await until(async () => (await fcm.stats()).requests >= 121)
    await fcm.goaway(0, 2 ** 31 - 1)
    assert.deepEqual(new Set((await Promise.all(more)).map(({ is }) => is)), new Set(['sent']))
    assert.deepEqual(await provider.send(pushTo('after'), atOnce, never), { is: 'sent' })
    assert.ok((await fcm.stats()).opened >= 2)
  })

  test('whose request was refused unseen make it again with a turn of its own', async (t) => {
    const provider = open(t)
    await fcm.set({ rules: [rule('phone', { is: 'refuse' }, { is: 'ok' })] })
    let turns = 0
    const outcome = await provider.send(
      pushTo('phone'),
      async () => {
        turns++
      },
      never,
    )
    assert.deepEqual([outcome, turns], [{ is: 'sent' }, 2])
  })

  test('that are cut leave the outcome unknown, and nothing is sent again by itself', async (t) => {
    const provider = open(t)
    await fcm.set({ rules: [rule('phone', { is: 'drop' })], latencyMs: 50 })
    const sends = Array.from({ length: 20 }, (_, i) =>
      provider.send(pushTo(`phone-${i}`), atOnce, never),
    )
    const outcomes = await Promise.all(sends)
    for (const outcome of outcomes)
      assert.partialDeepStrictEqual(outcome, { is: 'retry', code: 'CONNECTION' })
    assert.deepEqual((await fcm.stats()).counts, {})
  })

  test('give up an answer that does not come, and a server that is not there', async (t) => {
    const provider = open(t, { answerMs: 300 })
    await fcm.set({ rules: [rule('phone', { is: 'hang' })] })
    assert.partialDeepStrictEqual(await provider.send(pushTo('phone'), atOnce, never), {
      is: 'retry',
      code: 'TIMEOUT',
    })
    const away = open(t, { url: 'http://127.0.0.1:1' })
    const outcome = await away.send(pushTo('phone'), atOnce, never)
    assert.equal(outcome.is, 'away')
    assert.match((outcome as { why: string }).why, /ECONNREFUSED/)
  })

  test('that do not answer a ping, or are old, are replaced', async (t) => {
    const options = { url: fcm.url, sessionsMax: 1, pingEveryMs: 20, ageMaxMs: 100 }
    const sessions = createSessions(options)
    t.after(() => sessions.close())
    await until(async () => {
      await sessions.post('/', {}, '{}', never)
      return (await fcm.stats()).opened >= 3
    })
  })

  test('end a request when its caller goes', async (t) => {
    await fcm.set({ rules: [rule('phone', { is: 'hang' })] })
    const sessions = createSessions({ url: fcm.url, sessionsMax: 1, streamsMax: 1 })
    t.after(() => sessions.close())
    const stop = new AbortController()
    const body = JSON.stringify({ message: { token: 'phone' } })
    const path = '/v1/projects/flotilla-test/messages:send'
    await fcm.set({ latencyMs: 60_000 })
    const both = [1, 2].map(() => sessions.post(path, {}, body, stop.signal))
    await until(async () => (await fcm.stats()).requests === 1)
    stop.abort(new Error('enough'))
    for (const one of both) await assert.rejects(one, /enough/)
    await sessions.close()
    await assert.rejects(sessions.post(path, {}, body, never), RequestFailed)
  })

  test('speak TLS', { skip: withoutOpenssl() }, async (t) => {
    const [key, cert] = [join(folder, 'key.pem'), join(folder, 'cert.pem')]
    const made = spawnSync('openssl', [
      ...['req', '-x509', '-newkey', 'rsa:2048', '-nodes', '-days', '2', '-keyout', key],
      ...['-out', cert, '-subj', '/CN=localhost', '-addext', 'subjectAltName=IP:127.0.0.1'],
    ])
    assert.equal(made.status, 0, String(made.stderr))
    const secure = await launchFcm(['--key', key, '--cert', cert])
    t.after(secure.stop)
    const credentials = readCredentials(secure.credentials)
    const send = `
      import { createFcmProvider } from './workers/push/fcm.ts'
      import { readCredentials } from './workers/push/credentials.ts'
      const provider = createFcmProvider({ url: process.argv[1],
        credentials: readCredentials(process.argv[2]), validateOnly: false, concurrency: 1,
        answerMs: 5000 })
      const job = JSON.parse(process.argv[3])
      const push = { job, device: { kind: 'token', value: 'phone' }, expiresAt: new Date() }
      const outcome = await provider.send(push, async () => {}, new AbortController().signal)
      console.log(JSON.stringify(outcome))
      await provider.close()`
    const run = (env: object) =>
      spawnSync(
        process.execPath,
        [
          ...['--input-type=module', '-e', send],
          ...[secure.url, secure.credentials, JSON.stringify(job())],
        ],
        { cwd: join(import.meta.dirname, '..'), env: { PATH: process.env.PATH, ...env } },
      )
    const trusted = run({ NODE_EXTRA_CA_CERTS: cert })
    assert.equal(String(trusted.stdout).trim(), '{"is":"sent"}', String(trusted.stderr))
    assert.match(String(run({}).stdout), /"is":"away".*certificate/)
    assert.ok(credentials.projectId)
  })
})

function withoutOpenssl(): string | false {
  if (spawnSync('openssl', ['version']).status === 0) return false
  const reason = 'needs openssl on the PATH: apt-get install openssl'
  if (process.env.FLOTILLA_REFUSE_SKIPS === '1') throw new Error(reason)
  return reason
}

describe('access tokens', () => {
  test('are asked for once however many wait, and kept', async () => {
    const tokens = createAccessTokens(readCredentials(fcm.credentials))
    const all = await Promise.all(Array.from({ length: 50 }, () => tokens.get()))
    assert.equal(new Set(all).size, 1)
    assert.equal(await tokens.get(), all[0])
    assert.equal((await fcm.stats()).tokens, 1)
  })

  test('are renewed before their end, while the old one still serves', async () => {
    // It began in the past: Google takes no assertion from the future.
    let at = Date.now() - 3_400_000
    const tokens = createAccessTokens(readCredentials(fcm.credentials), () => at)
    const first = await tokens.get()
    at += 3_400_000
    assert.equal(await tokens.get(), first)
    await until(async () => (await tokens.get()) !== first)
    assert.equal((await fcm.stats()).tokens, 2)
  })

  test('that are refused are exchanged once, and then the refusal is for good', async (t) => {
    const provider = open(t)
    await fcm.set({ rules: [rule('once', { is: 'unauthenticated' }, { is: 'ok' })] })
    assert.deepEqual(await provider.send(pushTo('once'), atOnce, never), { is: 'sent' })
    assert.equal((await fcm.stats()).tokens, 2)
    await fcm.set({ rules: [rule('never', { is: 'unauthenticated' })] })
    assert.partialDeepStrictEqual(await provider.send(pushTo('never'), atOnce, never), {
      is: 'rejected',
      code: 'UNAUTHENTICATED',
      ours: true,
    })
    assert.equal((await fcm.stats('never')).counts.never, 2)
  })

  test('that cannot be had are told as Google tells it, without the key', async (t) => {
    const file = JSON.parse(readFileSync(fcm.credentials, 'utf8'))
    const path = join(folder, 'other.json')
    const withAccount = (changed: object) => {
      writeFileSync(path, JSON.stringify({ ...file, ...changed }))
      return open(t, { credentials: readCredentials(path) })
    }
    const stranger = withAccount({ client_email: 'stranger@example.org' })
    const outcome = (await stranger.send(pushTo('phone'), atOnce, never)) as {
      is: string
      why: string
    }
    assert.equal(outcome.is, 'away')
    assert.match(
      outcome.why,
      /^no access token from http.*: 400 invalid_grant: Invalid grant: account/,
    )
    const gone = withAccount({ token_uri: 'http://127.0.0.1:1/token' })
    assert.match(
      ((await gone.send(pushTo('phone'), atOnce, never)) as { why: string }).why,
      /ECONNREFUSED/,
    )
    await fcm.set({ tokenError: { status: 503, error: 'backend_error', description: 'try later' } })
    const busy = open(t)
    assert.deepEqual(await busy.send(pushTo('phone'), atOnce, never), {
      is: 'away',
      why: `no access token from ${file.token_uri}: 503 backend_error: try later`,
    })
    assert.equal((await fcm.stats()).requests, 0)
  })
})

describe('the settings', () => {
  const env = (more = {}) => ({ DATABASE_URL: 'postgres://x', PUSH_PROVIDER: 'fcm', ...more })
  const fault = (name: string, content: string | object) => {
    const path = join(folder, name)
    writeFileSync(path, typeof content === 'string' ? content : JSON.stringify(content))
    return () => readPushConfig(env({ FCM_CREDENTIALS: path }))
  }

  test('name what is wrong with the service account', () => {
    const file = JSON.parse(readFileSync(fcm.credentials, 'utf8'))
    assert.throws(
      () => readPushConfig(env()),
      /FCM_CREDENTIALS is not set, and PUSH_PROVIDER is fcm/,
    )
    assert.throws(
      () => readPushConfig(env({ FCM_CREDENTIALS: '/nowhere.json' })),
      /FCM_CREDENTIALS names a file that cannot be read: ENOENT/,
    )
    assert.throws(fault('a.json', 'no json'), /no JSON object/)
    assert.throws(
      fault('b.json', { ...file, type: 'authorized_user' }),
      /type is not "service_account"/,
    )
    assert.throws(fault('c.json', { ...file, private_key: 'PEM' }), /private_key is no RSA key/)
    assert.throws(fault('d.json', { ...file, project_id: '' }), /without project_id/)
    assert.throws(fault('e.json', { ...file, token_uri: 'ftp://x' }), /token_uri is no URL/)
    assert.equal(readPushConfig(env({ FCM_CREDENTIALS: fcm.credentials })).PUSH_RATE, 1000)
  })
})
