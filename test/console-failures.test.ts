// Failures in the console: found and paged however many they are, retried and removed one by one, together and all at
// once, beside running workers and beside another operator.

import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { after, before, beforeEach, describe, test } from 'node:test'
import { sql } from 'kysely'
import { type FailedFilter, type Look, lookFailed, lookQuery, planLook } from '../db/failedPages.ts'
import { beginAction, readAction } from '../db/operatorActions.ts'
import { countFailed } from '../db/redrive.ts'
import { transaction } from '../db/transaction.ts'
import { queues } from '../domain/queues.ts'
import { createBulk } from '../workers/http/console/bulk.ts'
import { type Api, openApi } from './api.ts'
import { follow, type Seen, type Visitor, visitor } from './consoles.ts'
import { type TestDatabase, testDatabase } from './database.ts'
import { bury } from './failedJobs.ts'
import { emptyJobs } from './jobRows.ts'
import { areDone, countRuns, createRuns, readRuns } from './runs.ts'
import { startJobWorker, until } from './worker.ts'

const names = queues.map(({ name }) => name)

describe('failures in the console', () => {
  let database: TestDatabase
  let api: Api
  let who: Visitor
  before(async () => {
    database = await testDatabase()
    api = await openApi(database.database)
    who = visitor(api.app)
    await who.signIn()
    await createRuns(api.db)
  })
  after(() => api.close())
  beforeEach(async () => {
    await emptyJobs(api.db)
    await sql`truncate job_audits, job_errors, runs`.execute(api.db)
  })

  const failed = async () => (await countFailed(api.db)).failed
  const idsIn = ({ text }: Seen) =>
    [...text.matchAll(/name="id" value="([^"]+)"/g)].map(([, id]) => id as string)
  const linkIn = ({ text }: Seen, rel: string) =>
    new RegExp(`rel="${rel}" href="/console/([^"]+)"`).exec(text)?.[1]?.replaceAll('&amp;', '&')
  /** As if each had died a second before the next. */
  const spread = () =>
    sql`update pgboss.job j set created_on = now() - s.n * interval '1 s'
      from (select id, row_number() over (order by id) as n from pgboss.job where name like '%.dead') s
      where j.id = s.id and j.name like '%.dead'`.execute(api.db)
  /** The history's page of a change, until it stands still. */
  const ended = async (seen: Seen) => {
    const id = seen.to.split('/').at(-1) as string
    await until(async () => (await readAction(api.db, id))?.state !== 'running')
    return (await readAction(api.db, id))!
  }
  const confirm = async (what: string, fields: Record<string, string | readonly string[]>) => {
    const asked = await who.post('failures/ask', { ...fields, do: what })
    assert.equal(asked.status, 200)
    const until = /name="until" value="(\d+)"/.exec(asked.text)?.[1] ?? ''
    return await who.post('failures/do', { ...fields, do: what, until })
  }

  test('are paged from the latest to the first and back, each once', async () => {
    await bury(api.db, 'email', 60)
    await bury(api.db, 'push', 61)
    await spread()
    const { rows } = await sql<{
      id: string
    }>`select id from pgboss.job where name like '%.dead' order by created_on desc`.execute(api.db)
    const order = rows.map(({ id }) => id)
    const one = await who.get('failures')
    const two = await who.get(linkIn(one, 'next') ?? '')
    const three = await who.get(linkIn(two, 'next') ?? '')
    assert.deepEqual([one, two, three].flatMap(idsIn), order)
    assert.equal(linkIn(three, 'next'), undefined)
    assert.equal(linkIn(one, 'prev'), undefined)
    const back = await who.get(linkIn(three, 'prev') ?? '')
    assert.deepEqual(idsIn(back), order.slice(50, 100))
    const first = await who.get(linkIn(back, 'prev') ?? '')
    assert.deepEqual(idsIn(first), order.slice(0, 50))
    assert.equal(linkIn(first, 'prev'), undefined)
    assert.deepEqual(idsIn(await who.get(linkIn(first, 'next') ?? '')), order.slice(50, 100))
    const emails = await who.get('failures?queue=email')
    assert.equal(idsIn(emails).length, 50)
    assert.match(linkIn(emails, 'next') ?? '', /queue=email/)
  })

  test('are paged right when all died in the same moment', async () => {
    await bury(api.db, 'email', 120)
    const found: string[] = []
    for (let path: string | undefined = 'failures'; path !== undefined; ) {
      const page = await who.get(path)
      found.push(...idsIn(page))
      path = linkIn(page, 'next')
    }
    assert.equal(new Set(found).size, 120)
    assert.equal(found.length, 120)
  })

  test('are found by words of the error, and by its class, in either case', async () => {
    await bury(api.db, 'email', 3, { error: 'Mailbox full: 100% of quota' })
    await bury(api.db, 'push', 2, { error: 'the device is gone' })
    assert.equal(idsIn(await who.get('failures?text=mailBOX')).length, 3)
    assert.equal(idsIn(await who.get('failures?text=error%3A')).length, 5)
    assert.equal(idsIn(await who.get('failures?text=100%25')).length, 3)
    assert.equal(idsIn(await who.get('failures?text=gone&queue=email')).length, 0)
    assert.match((await who.get('failures?text=nobody')).text, /No failure matches/)
    assert.equal((await who.get(`failures?text=${'x'.repeat(201)}`)).status, 400)
    const { text } = await who.get('failures')
    assert.match(text, /text=the\+device\+is\+gone/)
    assert.match(text, /text=Mailbox\+full%3A/)
  })

  test('show each attempt and the audit row', async () => {
    const [dead] = await bury(api.db, 'email', 1, { error: 'no such host' })
    const { text } = await who.get('failures')
    assert.match(text, /<li value="3">.*no such host/s)
    assert.match(text, /SASO-INFRA-9100/)
    assert.ok(text.includes(`/console/jobs/${dead?.dead_id}`))
  })

  describe('a hundred thousand of them', () => {
    type Node = {
      'Node Type': string
      'Actual Rows': number
      'Actual Loops': number
      Plans?: Node[]
    }
    const nodes = (node: Node): Node[] => [node, ...(node.Plans ?? []).flatMap(nodes)]
    const plan = async (filter: FailedFilter, look: Look) =>
      await transaction(api.db, async (tx) => {
        await planLook(tx)
        const { rows } = await sql<{ 'QUERY PLAN': { Plan: Node }[] }>`
          explain (analyze, format json) ${lookQuery(filter, look)}`.execute(tx)
        return nodes(rows[0]!['QUERY PLAN'][0]!.Plan)
      })
    const most = (all: Node[]) =>
      Math.max(...all.map((node) => node['Actual Rows'] * node['Actual Loops']))

    test('are paged without reading, or sorting, more than a page', async () => {
      const some = await bury(api.db, 'email', 70_000)
      await bury(api.db, 'push', 30_000)
      await spread()
      await sql`analyze pgboss.job`.execute(api.db)
      const page = { direction: 'older', lookMax: 51, max: 51 } as const
      const first = await lookFailed(api.db, { queues: names }, page)
      assert.equal(first.found.length, 51)
      const { rows } = await sql<{ us: string; id: string }>`
        select (extract(epoch from created_on) * 1000000)::bigint::text as us, id from pgboss.job
        where id = ${some[35_000]?.dead_id}`.execute(api.db)
      const places = [undefined, first.found.at(-1), rows[0]]
      for (const from of places) {
        for (const direction of ['older', 'newer'] as const) {
          for (const queues of [names, ['email'] as const]) {
            const all = await plan({ queues }, { ...page, from, direction })
            assert.ok(
              all.some((node) => node['Node Type'].startsWith('Index')),
              'by an index',
            )
            assert.ok(!all.some((node) => node['Node Type'] === 'Seq Scan'), 'no scan over all')
            assert.ok(most(all) <= 51 * queues.length + 60, `${most(all)} rows in a step`)
          }
        }
      }
      const seen = await who.get('failures')
      assert.equal(idsIn(seen).length, 50)
      assert.match(seen.text, /100,000/)
      assert.equal(idsIn(await who.get(linkIn(seen, 'next') ?? '')).length, 50)
    })

    test('are searched a bounded piece at a time, to the end', async () => {
      await bury(api.db, 'email', 45_000, { error: 'common' })
      await bury(api.db, 'push', 1, { error: 'rare' })
      await spread()
      await sql`update pgboss.job set created_on = now() - interval '3 days' where name = 'push.dead'`.execute(
        api.db,
      )
      const look = { direction: 'older', lookMax: 20_000, max: 51 } as const
      const all = await plan({ queues: names, text: 'rare' }, look)
      assert.ok(most(all) <= 20_002, `${most(all)} rows in a step`)
      let pages = 0
      let page = await who.get('failures?text=rare')
      assert.match(page.text, /Looked at 20,000 failures/)
      while (idsIn(page).length === 0 && pages++ < 5)
        page = await who.get(linkIn(page, 'next') ?? '')
      assert.equal(pages, 2)
      assert.equal(idsIn(page).length, 1)
      assert.equal(linkIn(page, 'next'), undefined)
    })
  })

  test('are retried at once when they are chosen, and only those', async () => {
    const all = await bury(api.db, 'email', 5)
    const [one, two] = all
    const seen = await who.post('failures/ask', { do: 'retry', id: [one!.dead_id, two!.dead_id] })
    assert.match((await follow(who, seen)).text, /Retried 2 jobs\./)
    assert.equal(await failed(), 3)
    const again = await who.post('failures/ask', {
      do: 'retry',
      id: [one!.dead_id, all[2]!.dead_id],
    })
    assert.match((await follow(who, again)).text, /Retried 1 job; 1 was gone already/)
    const { rows } = await sql<{
      resolved_as: string
    }>`select resolved_as from job_audits where resolved_at is not null`.execute(api.db)
    assert.deepEqual(
      rows.map((row) => row.resolved_as),
      ['retried', 'retried', 'retried'],
    )
  })

  test('are removed after a question, and only those', async () => {
    const [one] = await bury(api.db, 'email', 3)
    const asked = await who.post('failures/ask', { do: 'remove', id: one!.dead_id })
    assert.match(asked.text, /Remove 1 failed job\?/)
    assert.equal(await failed(), 3)
    const seen = await who.post('failures/do', { do: 'remove', id: idsIn(asked) })
    assert.match((await follow(who, seen)).text, /Removed 1 job\./)
    assert.equal(await failed(), 2)
  })

  test('are not touched by a form that names none, or nonsense', async () => {
    await bury(api.db, 'email', 1)
    const wrong = [
      await who.post('failures/ask', { do: 'retry' }),
      await who.post('failures/ask', { do: 'retry', id: "' or true --" }),
      await who.post('failures/ask', {
        do: 'retry',
        id: Array.from({ length: 51 }, () => randomUUID()),
      }),
      await who.post('failures/ask', { do: 'retry-all', queue: 'nope' }),
      await who.post('failures/do', { do: 'remove-all' }),
      await who.post('failures/do', { do: 'remove-all', until: 'now()' }),
      await who.post('failures/do', { do: 'drop' }),
      // Errors are kept without it, and what was asked for is kept: it is no place for it.
      await who.post('failures/ask', { do: 'retry-all', text: 'anna@example.org' }),
      await who.post('failures/do', { do: 'retry-all', text: 'anna@example.org', until: '1' }),
    ]
    assert.deepEqual(
      wrong.map(({ status }) => status),
      [400, 400, 400, 404, 400, 400, 400, 400, 400],
    )
    const kept = await sql`select from operator_actions
      where detail::text || subject like '%anna%'`.execute(api.db)
    assert.equal(kept.rows.length, 0)
    const unknown = await who.post('failures/ask', { do: 'retry', id: randomUUID() })
    assert.match((await follow(who, unknown)).text, /Retried 0 jobs; 1 was gone already/)
    assert.equal(await failed(), 1)
  })

  test('are all retried beside a running worker, each run once, with their progress', async () => {
    await sql`insert into paused_queues (queue) values ('commands') on conflict do nothing`.execute(
      api.db,
    )
    await bury(api.db, 'commands', 3000, { data: { n: 1 } })
    await bury(api.db, 'email', 5)
    const worker = startJobWorker(database.url)
    await sql`delete from paused_queues`.execute(api.db)
    const seen = await confirm('retry-all', { queue: 'commands', text: '' })
    assert.match(seen.to, /^\/console\/history\//)
    const action = await ended(seen)
    assert.deepEqual([action.state, action.done, action.total], ['done', 3000, 3000])
    await until(() => areDone(api.db, 3000))
    const runs = await readRuns(api.db)
    assert.equal(runs.length, 3000)
    assert.equal(new Set(runs.map((run) => run.job_id)).size, 3000)
    assert.equal(await failed(), 5)
    assert.match((await follow(who, seen)).text, /3,000 retried/)
    worker.process.kill('SIGKILL')
  })

  test('that match are removed, the others stay, and what fails later is not meant', async () => {
    await bury(api.db, 'email', 700, { error: 'mailbox full' })
    await bury(api.db, 'email', 600, { error: 'no such host' })
    await bury(api.db, 'push', 30, { error: 'mailbox full' })
    const asked = await who.post('failures/ask', { do: 'remove-all', queue: 'email', text: 'full' })
    assert.match(asked.text, /those of 1,300 failed jobs of email whose error has <q/)
    const moment = /name="until" value="(\d+)"/.exec(asked.text)?.[1] ?? ''
    await bury(api.db, 'email', 40, { error: 'mailbox full' })
    const seen = await who.post('failures/do', {
      do: 'remove-all',
      queue: 'email',
      text: 'full',
      until: moment,
    })
    const action = await ended(seen)
    assert.deepEqual([action.state, action.done], ['done', 700])
    assert.equal(await failed(), 670)
    assert.match(action.subject, /all that failed in email, with “full” in their error/)
  })

  test('are each moved once when two operators press at once', async () => {
    await bury(api.db, 'email', 2000)
    const other = visitor(api.app)
    await other.signIn()
    const moment = /name="until" value="(\d+)"/.exec(
      (await who.post('failures/ask', { do: 'retry-all', queue: '' })).text,
    )?.[1] as string
    await other.get('failures')
    const fields = { do: 'retry-all', queue: '', text: '', until: moment }
    const both = await Promise.all([
      who.post('failures/do', fields),
      other.post('failures/do', { ...fields, do: 'remove-all' }),
    ])
    const actions = await Promise.all(both.map(ended))
    assert.deepEqual(
      actions.map(({ state }) => state),
      ['done', 'done'],
    )
    assert.equal(
      actions.reduce((sum, { done }) => sum + done, 0),
      2000,
    )
    assert.equal(await failed(), 0)
    const { rows } = await sql<{
      n: number
    }>`select count(*)::int as n from pgboss.job where name = 'email' and state = 'created'`.execute(
      api.db,
    )
    assert.equal(rows[0]?.n, actions[0]?.done)
    assert.equal(await countRuns(api.db), 0)
  })

  test('are gone on with where a process left them, by one operator only', async () => {
    await bury(api.db, 'email', 1200)
    const detail = { queues: ['email'], text: '', until: '9000000000000000' }
    const operator = { who: 'console', address: '127.0.0.1', session: 'x' }
    const subject = 'all that failed in email'
    const given = { ...operator, action: 'jobs.retry', subject, detail, total: 1200 }
    const id = await beginAction(api.db, given)
    // Its process ends at once: at the first batch it stops.
    const bulk = createBulk({ db: api.db, log: api.app.log })
    bulk.start({ id, action: 'jobs.retry', detail, cursor: null })
    await bulk.close()
    assert.equal((await readAction(api.db, id))?.state, 'stopped')
    assert.ok((await failed()) > 0)
    assert.match((await who.get(`history/${id}`)).text, /Go on/)
    await Promise.all([1, 2].map(() => who.post('history/do', { id, do: 'continue' })))
    const action = await ended({ to: `/console/history/${id}` } as Seen)
    assert.deepEqual([action.state, action.done], ['done', 1200])
    assert.equal(await failed(), 0)
    // One that a crash left running is seen to be stopped after a while.
    const crashed = await beginAction(api.db, given)
    assert.equal((await readAction(api.db, crashed))?.state, 'running')
    await sql`update operator_actions set seen_at = seen_at - interval '31 s' where id = ${crashed}`.execute(
      api.db,
    )
    assert.equal((await readAction(api.db, crashed))?.state, 'stopped')
    await who.post('history/do', { id: crashed, do: 'continue' })
    assert.equal((await ended({ to: crashed } as Seen)).state, 'done')
  })
})
