// Who gets into the console, and who does not: the password, its tries, sessions and their end, forms from elsewhere, and
// what browsers are told to refuse.

import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { after, before, describe, test } from 'node:test'
import { sql } from 'kysely'
import { listActions, pruneActions } from '../db/operatorActions.ts'
import { readPaused } from '../db/pauses.ts'
import { openSessions, sessionSeconds } from '../workers/http/console/session.ts'
import { type Api, consolePassword, openApi, unreachableDatabase } from './api.ts'
import { follow, visitor } from './consoles.ts'
import { testDatabase } from './database.ts'

describe('the console', () => {
  let api: Api
  let addresses = 0
  /** Each from an address of its own, so that their tries do not add up. */
  const stranger = () => visitor(api.app, `10.0.0.${++addresses}`)
  const operator = async () => {
    const who = stranger()
    assert.equal((await who.signIn()).status, 303)
    return who
  }
  before(async () => {
    const { database } = await testDatabase()
    api = await openApi(database)
  })
  after(() => api.close())

  test('shows nothing to who is not signed in, and leads back to where they wanted to go', async () => {
    const who = stranger()
    for (const path of ['', 'failures?queue=email', 'jobs/0198', 'workers', 'no-such-page']) {
      const seen = await who.get(path)
      assert.equal(seen.status, 303)
      assert.match(seen.to, /^\/console\/login/)
      assert.equal(seen.text, '')
    }
    const { to } = await who.get('failures?queue=email')
    const page = await follow(who, { to } as never)
    assert.match(page.text, /name="to" value="\/console\/failures\?queue=email"/)
    const back = await who.post('login', {
      password: consolePassword,
      to: '/console/failures?queue=email',
    })
    assert.equal(back.to, '/console/failures?queue=email')
    assert.match((await follow(who, back)).text, /<h1>Failures<\/h1>/)
  })

  test('does nothing for who is not signed in', async () => {
    const seen = await stranger().post('queues/do', { queue: 'email', do: 'pause' })
    assert.equal(seen.status, 403)
    assert.match(seen.text, /nothing was done/)
    assert.equal((await sql`select from paused_queues`.execute(api.db)).rows.length, 0)
  })

  test('leads to no other place after signing in', async () => {
    for (const to of [
      'https://evil.example/',
      '//evil.example',
      '/console//evil',
      '/consoles',
      'javascript:alert(1)',
      '/console/../docs\r\nx: y',
      '/console/../docs',
      '/console/%2e%2e/docs',
    ]) {
      const seen = await stranger().post('login', { password: consolePassword, to })
      assert.equal(seen.to, '/console', to)
    }
  })

  test('refuses a wrong password, whatever it is, in the same words', async () => {
    const who = stranger()
    const texts = new Set<string>()
    for (const password of [
      '',
      'x',
      consolePassword.slice(1),
      `${consolePassword}x`,
      '\0',
      'ü'.repeat(5000),
    ]) {
      const seen = await who.signIn(password)
      assert.equal(seen.status, 403)
      assert.equal(seen.headers['set-cookie'], undefined)
      texts.add(seen.text)
    }
    assert.equal(texts.size, 1)
  })

  test('lets an address try ten times a minute, and everybody together a hundred times', async () => {
    const who = stranger()
    const tries = []
    for (let i = 0; i < 12; i++) tries.push((await who.signIn('wrong')).status)
    assert.ok(tries.filter((status) => status === 403).length <= 10)
    assert.equal(tries.at(-1), 429)
    const right = await who.signIn()
    assert.equal(right.status, 429)
    assert.ok(Number(right.headers['retry-after']) > 0)
    await operator()

    const neighbours = ['2001:db8::1', '2001:db8:0:0:ffff::2'].map((one) => visitor(api.app, one))
    const statuses = []
    for (let i = 0; i < 12; i++) statuses.push((await neighbours[i % 2]!.signIn('wrong')).status)
    assert.equal(statuses.at(-1), 429, 'a network of IPv6 counts as one')

    let last = 0
    for (let i = 0; i < 110 && last !== 429; i++) last = (await stranger().signIn('wrong')).status
    assert.equal(last, 429)
    await sql`delete from rate_limits`.execute(api.db)
  })

  test('gives a cookie that scripts and other sites cannot use', async () => {
    const plain = await stranger().signIn()
    const cookie = String(plain.headers['set-cookie'])
    assert.match(
      cookie,
      /^flotilla_console=[\w-]+\.\d+\.[\w-]+; Path=\/console; HttpOnly; SameSite=Strict; Max-Age=28800$/,
    )
    const { database } = await testDatabase()
    const behind = await openApi(database, {}, { TRUSTED_PROXIES: ['127.0.0.1'] })
    const seen = await visitor(behind.app).post(
      'login',
      { password: consolePassword },
      { 'x-forwarded-proto': 'https', origin: 'https://console.test' },
    )
    assert.match(String(seen.headers['set-cookie']), /; Secure$/)
    await behind.close()
  })

  test('believes no cookie it did not sign, none of another password and none that is over', async () => {
    const who = await operator()
    const good = who.cookie
    assert.equal((await who.get()).status, 200)
    const [id, expires = '', signature] = good.split('=')[1]!.split('.')
    const forged = [
      `${id}.${Number(expires) + 1}.${signature}`,
      `x${id}.${expires}.${signature}`,
      `${id}.${expires}.`,
      `${id}.${expires}`,
      `${id}.${expires}.${signature}.x`,
      '',
    ]
    for (const token of forged) {
      who.cookie = `flotilla_console=${token}`
      assert.equal((await who.get()).status, 303, token)
    }
    let now = Date.now()
    const sessions = await openSessions('a password that is long', () => now)
    const { token } = sessions.begin()
    const others = await openSessions('another password, long too')
    assert.ok(sessions.find(`a=b; flotilla_console=${token}; c=d`))
    assert.equal(others.find(`flotilla_console=${token}`), undefined)
    now += sessionSeconds * 1000
    assert.equal(sessions.find(`flotilla_console=${token}`), undefined)
  })

  test('ends a session for good when somebody signs out, and no other one', async () => {
    const [who, other] = [await operator(), await operator()]
    const kept = who.cookie
    const seen = await who.post('logout', {})
    assert.match(String(seen.headers['set-cookie']), /^flotilla_console=;.*Max-Age=0/)
    assert.match((await follow(who, seen)).text, /You are signed out/)
    who.cookie = kept
    assert.equal((await who.get()).status, 303)
    assert.equal((await who.get('', { 'x-console-part': 'live' })).status, 401)
    assert.equal((await other.get()).status, 200)
  })

  test('takes a form with the token of its own session alone', async () => {
    const [who, other] = [await operator(), await operator()]
    const csrf = /name="csrf" value="([^"]+)"/.exec((await other.get()).text)?.[1] as string
    for (const token of ['', 'x', csrf]) {
      const seen = await who.post('queues/do', { queue: 'email', do: 'pause', csrf: token })
      assert.equal(seen.status, 403)
    }
    assert.equal((await sql`select from paused_queues`.execute(api.db)).rows.length, 0)
  })

  test('takes no form from another site, its token or not', async () => {
    const who = await operator()
    const foreign: Record<string, string>[] = [
      { origin: 'https://evil.example' },
      { origin: 'null' },
      { origin: 'http://console.test:81' },
      { 'sec-fetch-site': 'cross-site' },
      { 'sec-fetch-site': 'same-site' },
    ]
    for (const headers of foreign) {
      const seen = await who.post('queues/do', { queue: 'email', do: 'pause' }, headers)
      assert.equal(seen.status, 403, JSON.stringify(headers))
      assert.match(seen.text, /another site/)
      const login = await stranger().post('login', { password: consolePassword }, headers)
      assert.equal(login.status, 403)
    }
    const same = { 'sec-fetch-site': 'same-origin' }
    const seen = await who.post('queues/do', { queue: 'email', do: 'pause' }, same)
    assert.equal(seen.status, 303)
    await who.post('queues/do', { queue: 'email', do: 'resume' })
  })

  test('changes nothing by GET', async () => {
    const who = await operator()
    for (const path of ['queues/do?queue=email&do=pause', 'logout', 'failures/do?do=retry-all']) {
      assert.equal((await who.get(path)).status, 404)
    }
    assert.equal((await who.get()).status, 200)
  })

  test('tells browsers to run, load, frame and keep nothing', async () => {
    const who = await operator()
    const pages = [await who.get(), await stranger().get('login'), await who.get('no-such')]
    for (const { headers } of pages) {
      const policy = String(headers['content-security-policy'])
      for (const rule of [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "frame-ancestors 'none'",
        "base-uri 'none'",
        "form-action 'self'",
      ]) {
        assert.ok(policy.includes(rule), rule)
      }
      assert.doesNotMatch(policy, /unsafe|\*/)
      assert.equal(headers['cache-control'], 'no-store')
      assert.equal(headers['x-content-type-options'], 'nosniff')
      assert.equal(headers['referrer-policy'], 'same-origin')
      assert.ok(headers['x-request-id'])
    }
    for (const { text } of pages) {
      assert.doesNotMatch(text, /<script(?! src="\/console\/console\.js" defer><\/script>)/)
      assert.doesNotMatch(text, /\sstyle=|\son\w+=/)
    }
  })

  test('answers what is no form and no page as a page', async () => {
    const who = await operator()
    const answers = [
      await who.get('no-such-page'),
      await who.get('jobs/%25'),
      await who.get('history/none'),
      await who.get('__proto__'),
      await who.post('constructor', {}),
      await who.get('queues/nope'),
      await who.post(
        'login',
        { password: consolePassword },
        { 'content-type': 'application/json' },
      ),
      await who.post('login', { password: 'x'.repeat(70_000) }),
      await who.post('queues/do', { queue: 'nope', do: 'pause' }),
      await who.post('queues/do', {}),
    ]
    assert.deepEqual(
      answers.map(({ status }) => status),
      [404, 404, 404, 404, 404, 404, 415, 413, 404, 400],
    )
    for (const { text, headers } of answers) {
      assert.match(String(headers['content-type']), /^text\/html/)
      assert.match(text, /<h1>/)
      assert.match(text, /request [\w-]+/)
    }
  })

  test('has each sign-in and each change in its history, with the address', async () => {
    const who = await operator()
    await who.post('queues/do', { queue: 'push:priority', do: 'pause' })
    await who.post('queues/do', { queue: 'push:priority', do: 'resume' })
    await who.post('logout', {})
    const rows = await listActions(api.db, 4, undefined)
    assert.deepEqual(
      rows.map(({ action, subject, state, who: by }) => [action, subject, state, by]),
      [
        ['session.end', 'console', 'done', 'console'],
        ['queue.resume', 'push:priority', 'done', 'console'],
        ['queue.pause', 'push:priority', 'done', 'console'],
        ['session.begin', 'console', 'done', 'console'],
      ],
    )
    assert.deepEqual([...new Set(rows.map(({ address }) => address))], [`10.0.0.${addresses}`])
    assert.equal(await pruneActions(api.db), 0)
    await sql`update operator_actions set at = at - interval '91 days'`.execute(api.db)
    await sql`update ended_sessions set expires_at = now() - interval '1 s'`.execute(api.db)
    assert.ok((await pruneActions(api.db)) > 5)
    assert.deepEqual(await listActions(api.db, 4, undefined), [])
  })

  test('does not say of a change that was made that it failed', async () => {
    const who = await operator()
    await sql`create function refuse() returns trigger language plpgsql as
      $$ begin raise exception 'no'; end $$`.execute(api.db)
    await sql`create trigger refuse before update on operator_actions for each row
      when (new.state = 'done') execute function refuse()`.execute(api.db)
    try {
      assert.equal((await who.post('queues/do', { queue: 'push', do: 'pause' })).status, 500)
    } finally {
      await sql`drop function refuse() cascade`.execute(api.db)
    }
    assert.ok((await readPaused(api.db)).has('push'))
    const [row] = await listActions(api.db, 1, undefined)
    assert.deepEqual([row?.action, row?.state], ['queue.pause', 'running'])
    await who.post('queues/do', { queue: 'push', do: 'resume' })
  })

  test('says that the database is away, and comes back with it', async () => {
    const who = await operator()
    const away = unreachableDatabase()
    const dead = await openApi(away)
    const lost = visitor(dead.app)
    lost.cookie = who.cookie
    const seen = await lost.get()
    assert.equal(seen.status, 503)
    assert.match(seen.text, /database cannot be reached/)
    assert.ok(Number(seen.headers['retry-after']) > 0)
    assert.equal((await lost.get('console.css')).status, 200)
    await dead.close()
    await away.close()
  })

  test('is loaded by nobody who does not ask for it', () => {
    const seen = new Set<string>()
    const load = (path: string): void => {
      if (seen.has(path)) return
      seen.add(path)
      const text = readFileSync(path, 'utf8')
      for (const [, kind, to] of text.matchAll(
        /^(import|export|\})(?! type\b).* from '(\.[^']+)'$/gm,
      )) {
        if (kind !== undefined && to !== undefined) load(join(dirname(path), to))
      }
    }
    load(join(import.meta.dirname, '../workers/http/main.ts'))
    assert.ok(seen.size > 50)
    assert.deepEqual(
      [...seen].filter((path) => path.includes('/http/console/')),
      [],
    )
  })
})
