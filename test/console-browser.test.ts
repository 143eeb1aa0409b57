// The console in a real Chromium: with scripts and without, on a phone and on a desk, with strangers' markup in everything
// it shows.

import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { mkdirSync, writeFileSync } from 'node:fs'
import { after, before, describe, test } from 'node:test'
import { sql } from 'kysely'
import { openCircuit } from '../db/circuits.ts'
import { countFailed } from '../db/redrive.ts'
import { reportWorker } from '../db/registry.ts'
import { type Api, consolePassword, openApi } from './api.ts'
import { type TestDatabase, testDatabase } from './database.ts'
import { bury } from './failedJobs.ts'
import { type Chromium, startChromium, type Tab, withoutChromium } from './servers/chromium.ts'
import { makeMatch } from './waitingrooms.ts'
import { until } from './worker.ts'

const attack = `"><script>alert('x')</script><img src=x onerror=alert(2)><a href="javascript:alert(3)">x</a>`
const pages = [
  '',
  'failures',
  'queues',
  'queues/email?state=failed',
  'workers',
  'sources',
  'rooms',
  'flags',
  'history',
  'jobs',
]

describe('the console in a browser', { skip: withoutChromium() }, () => {
  let database: TestDatabase
  let api: Api
  let base: string
  let chromium: Chromium
  let jobPage: string
  before(async () => {
    database = await testDatabase()
    api = await openApi(database.database)
    base = `${await api.app.listen({ host: '127.0.0.1', port: 0 })}/console`
    chromium = await startChromium()
    jobPage = await seed(api)
  })
  after(() => api.close())

  /** Tabs share their cookies: who is signed in already stays so. */
  const signIn = async (tab: Tab) => {
    await tab.goto(base)
    if (await tab.evaluate(`document.getElementById('password') === null`)) return
    await tab.evaluate(`document.getElementById('password').value = '${consolePassword}'`)
    await press(tab, 'Sign in')
    assert.equal(await tab.evaluate(`document.querySelector('h1').textContent`), 'Overview')
  }
  const open = async (view: Parameters<Tab['view']>[0] = {}) => {
    const tab = await chromium.open('about:blank')
    await tab.view(view)
    await signIn(tab)
    return tab
  }
  const press = (tab: Tab, text: string) =>
    tab.leaves(() =>
      tab.evaluate(
        `[...document.querySelectorAll('button')].find((one) => one.textContent.trim().startsWith(${JSON.stringify(text)})).click()`,
      ),
    )

  test('runs nothing that strangers wrote, and shows it as they wrote it', async () => {
    const tab = await open()
    const all = [...pages, jobPage, `failures?text=${encodeURIComponent(attack)}`]
    const looked = ['', 'sources', jobPage]
    let shown = 0
    for (const path of all) {
      await tab.goto(`${base}/${path}`)
      const inside = `document.querySelectorAll('img, main script, a[href^="javascript:"]').length`
      assert.equal(await tab.evaluate(inside), 0, path)
      const text = await tab.evaluate<string>('document.body.textContent')
      shown += text.split(`<script>alert('x')</script>`).length - 1
      if (!looked.includes(path)) continue
      // The next look, by the page's own script.
      await tab.becomes(`document.getElementById('status').dataset.state === 'live'`)
      assert.equal(await tab.evaluate(inside), 0, path)
    }
    assert.ok(shown > 10, `${shown} times`)
    assert.deepEqual([tab.dialogs, tab.errors], [[], []])
    await tab.close()
  })

  test('is live: shows what changes, keeps what is ticked and unfolded, and says when it is old', async () => {
    const tab = await open()
    await tab.goto(`${base}/queues`)
    const email = `[...document.querySelectorAll('tr')].find((row) => row.dataset.key === 'email')`
    await tab.evaluate(`${email}.querySelector('button').focus()`)
    await sql`insert into paused_queues (queue) values ('email')`.execute(api.db)
    await tab.becomes(`${email}.textContent.includes('paused')`)
    assert.equal(await tab.evaluate('document.activeElement.value'), 'resume')
    await tab.becomes(`document.getElementById('status').textContent.includes('Live')`)
    await tab.online(false)
    await tab.becomes(
      `document.getElementById('status').textContent.includes('Offline') || document.getElementById('status').textContent.includes('No answer')`,
    )
    await sql`delete from paused_queues`.execute(api.db)
    await tab.online(true)
    await tab.becomes(`!${email}.textContent.includes('paused')`)
    await tab.becomes(`document.getElementById('status').textContent.includes('Live')`)
    assert.deepEqual(tab.errors, [])
    await tab.close()
  })

  test('says that somebody signed out elsewhere', async () => {
    const tab = await open()
    await tab.evaluate(`fetch('/console/logout', {
      method: 'POST',
      body: new URLSearchParams({ csrf: document.querySelector('[name=csrf]').value }),
    })`)
    await tab.becomes(`document.getElementById('status').textContent.includes('Signed out')`)
    await tab.close()
  })

  test('chooses all of a page with one box, and retries them', async () => {
    await bury(api.db, 'inbox', 3, { error: 'for the box' })
    const tab = await open()
    await tab.goto(`${base}/failures?text=for+the+box`)
    await tab.evaluate(`document.querySelector('thead input').click()`)
    assert.equal(await tab.evaluate(`document.querySelectorAll('tbody input:checked').length`), 3)
    await press(tab, 'Retry chosen')
    assert.match(await tab.evaluate<string>('document.body.textContent'), /Retried 3 jobs/)
    await tab.close()
  })

  test('shows and does everything without scripts', async () => {
    await bury(api.db, 'inbox', 4, { error: 'without scripts' })
    const tab = await open({ scripts: false })
    const says = async (pattern: RegExp) =>
      assert.match(await tab.evaluate<string>('document.body.textContent'), pattern)
    for (const path of [...pages, jobPage]) {
      await tab.goto(`${base}/${path}`)
      await says(/As of/)
    }
    const before = (await countFailed(api.db)).failed
    await tab.goto(`${base}/failures?text=without+scripts`)
    await tab.evaluate(`document.querySelector('tbody input[type=checkbox]').checked = true`)
    await press(tab, 'Retry chosen')
    await says(/Retried 1 job/)
    await tab.evaluate(`document.querySelector('tbody input[type=checkbox]').checked = true`)
    await press(tab, 'Remove chosen')
    await says(/Remove 1 failed job\?/)
    await press(tab, 'Remove 1 job')
    await says(/Removed 1 job/)
    await press(tab, 'Remove all that match')
    await press(tab, 'Remove them')
    await until(async () => (await countFailed(api.db)).failed === before - 4)
    await tab.goto(`${base}/history`)
    await says(/all that failed in all queues/)
    await tab.goto(`${base}/queues`)
    await press(tab, 'Pause')
    await says(/is paused/)
    await press(tab, 'Resume')
    await says(/is resumed/)
    await press(tab, 'Sign out')
    await says(/You are signed out/)
    assert.deepEqual(tab.errors, [])
    await tab.close()
  })

  test('fits a phone and a desk, in the light and in the dark', async () => {
    const folder = process.env.FLOTILLA_SCREENSHOTS
    if (folder) mkdirSync(folder, { recursive: true })
    for (const width of [390, 1280]) {
      for (const dark of [false, true]) {
        const tab = await open({ width, dark })
        for (const path of [...pages, jobPage]) {
          await tab.goto(`${base}/${path}`)
          const wide = await tab.evaluate<number>('document.documentElement.scrollWidth')
          assert.ok(wide <= width, `${path || 'overview'} is ${wide} wide on ${width}`)
          const name = `${(path || 'overview').replace(/\W+/g, '-').slice(0, 20)}-${width}${dark ? '-dark' : ''}.png`
          if (folder) writeFileSync(`${folder}/${name}`, await tab.screenshot())
        }
        assert.deepEqual(tab.errors, [])
        await tab.close()
      }
    }
  })
})

/** Something of everything, as strangers would have it. @returns the path of a job that failed */
async function seed({ db, jobs }: Api): Promise<string> {
  const data = {
    type: 'email',
    template: 'order_confirmation',
    recipient: 'ann@example.com',
    payload: { order: 'A-17', note: attack },
    traceparent: `00-${'ab'.repeat(16)}-${'cd'.repeat(8)}-01`,
  }
  const [dead] = await bury(db, 'email', 1, {
    data: { ...data, [attack]: attack, type: attack },
    error: attack,
  })
  await sql`insert into job_errors (job_id, queue, attempt, kind, message, stack) values (${dead?.id}, 'email', 1, 'failed', ${attack}, ${`Error: ${attack}\n    at send (mailgun.ts:12:3)`})`.execute(
    db,
  )
  await bury(db, 'email', 64, { data, error: 'Mailgun answered 421: try again later' })
  await bury(db, 'push', 12, { data: { type: 'push' }, error: 'connect ECONNREFUSED 10.0.0.7:443' })
  await sql`update pgboss.job set created_on = now() - (random() * 20) * interval '1 hour' where name in ('email.dead', 'push.dead')`.execute(
    db,
  )
  await sql`update pgboss.job set created_on = now() where id = ${dead?.dead_id}`.execute(db)
  await jobs.send(
    db,
    'email',
    Array.from({ length: 230 }, () => ({ data })),
  )
  await jobs.send(
    db,
    'push',
    Array.from({ length: 40 }, () => ({ data: { type: 'push' }, delayMs: 60_000 })),
  )
  const doing = {
    queues: { email: { active: 12, handled: 48_211, perSecond: 98.7 } },
    rssBytes: 81 * 2 ** 20,
  }
  const worker = { host: 'node-1.fleet.internal', pid: 4711, version: '1.4.2', upSeconds: 7300 }
  await reportWorker(db, { ...worker, id: randomUUID(), name: 'email', doing })
  await reportWorker(db, {
    ...worker,
    id: randomUUID(),
    name: 'http',
    doing: { rssBytes: 88 * 2 ** 20 },
  })
  await reportWorker(db, {
    ...worker,
    id: randomUUID(),
    name: attack,
    host: attack,
    version: attack,
    doing: {},
  })
  await sql`update workers set seen_at = now() - interval '5 minutes' where name = ${attack}`.execute(
    db,
  )
  await sql`update workers set seen_at = now() + interval '1 hour' where name <> ${attack}`.execute(
    db,
  )
  await sql`insert into loader_sources (name, definition, last_id, newest_id, loaded, rate, ok_at, event_at, failures, last_error, failed_at, seen_at) values
    ('shop-eu', '{}', 182233, 182240, 182233, 4, now(), now(), 0, null, null, now()),
    ('partner-api', '{}', 5120, 9911, 5120, 0, now() - interval '3 hours', now() - interval '3 hours', 17, 'HTTP 503 from the source', now(), now()),
    (${attack}, '{}', 0, null, 0, 0, null, null, 1, ${attack}, now(), now())`.execute(db)
  for (const name of ['Final: Zagreb – Split', attack]) {
    const matchId = await makeMatch(db)
    await sql`update events set name = ${name} where id = ${matchId}`.execute(db)
    await sql`update waiting_rooms set phase = 'open', status = 'active', opened_at = now(), last_seat = 48211 where match_id = ${matchId}`.execute(
      db,
    )
  }
  await openCircuit(db, 'email:mailgun', {
    why: 'three answers of 503 in a row',
    waitMs: () => 3_600_000,
    wasProbe: false,
  })
  await openCircuit(db, attack, { why: attack, waitMs: () => 60_000, wasProbe: false })
  return `jobs/${dead?.dead_id}`
}
