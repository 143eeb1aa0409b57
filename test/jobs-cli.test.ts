// The program jobs as people and programs use it: what it says where, how it asks, how it ends. Most run inside this
// process, with a terminal that is made of answers; a few as the processes they are.

import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { randomUUID } from 'node:crypto'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { PassThrough } from 'node:stream'
import { after, before, beforeEach, describe, test } from 'node:test'
import { sql } from 'kysely'
import { offer, shellLines } from '../cli/completion.ts'
import { execute } from '../cli/main.ts'
import type { Context } from '../cli/program.ts'
import { choose, openTerminal, type Terminal } from '../cli/terminal.ts'
import { readAudit } from '../db/attempts.ts'
import { type TestDatabase, testDatabase } from './database.ts'
import { bury } from './failedJobs.ts'
import { emptyJobs } from './jobRows.ts'

const cli = join(import.meta.dirname, '..', 'cli')
const folder = mkdtempSync(join(tmpdir(), 'flotilla-jobs-'))
after(() => rmSync(folder, { recursive: true }))

type Seat = { answers?: string[]; input?: string; columns?: number; env?: Record<string, string> }

describe('jobs', () => {
  let test1: TestDatabase

  before(async () => {
    test1 = await testDatabase()
  })
  beforeEach(async () => {
    await emptyJobs(test1.db)
    await sql`truncate job_errors, job_audits, paused_queues, workers, stop_requests`.execute(
      test1.db,
    )
  })

  /** `answers`: somebody sits there, who types them and then ends the input. */
  async function run(
    words: string | string[],
    seat: Seat = {},
    program: 'jobs' | 'fleet' = 'jobs',
  ) {
    const out: string[] = []
    const err: string[] = []
    const shown: string[] = []
    const answers = seat.answers && [...seat.answers]
    const terminal: Terminal | undefined = answers && {
      ask: async (question) => {
        err.push(question)
        return answers.shift()
      },
      show: (line) => shown.push(line),
      close: () => {},
    }
    const context: Context = {
      program,
      env: { DATABASE_URL: test1.url, ...seat.env },
      argv: typeof words === 'string' ? words.split(' ') : words,
      say: (line) => out.push(line),
      warn: (line) => err.push(line),
      input: async () => seat.input ?? '',
      columns: seat.columns,
      terminal,
      onStop: () => {},
      become: () => assert.fail('becomes nothing'),
    }
    const code = await execute(program, context)
    return { code, out: out.join('\n'), err: err.join('\n'), shown }
  }

  const failedCount = async (): Promise<number> =>
    JSON.parse((await run('failed:show --json --max 10000')).out).length

  test('failed:show prints a table, and under it the command that retries exactly what it shows', async () => {
    const [one] = await bury(test1.db, 'email', 1, {
      data: { type: 'email', template: 'ticket_delivery' },
      error: 'the provider\u001b[2J said\nno',
    })
    const { code, out } = await run('failed:show')
    assert.equal(code, 0)
    const [head, row, ...rest] = out.split('\n')
    assert.match(head ?? '', /^Id +Queue +Type +Attempts +Failed at +Error$/)
    const at = String.raw`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ`
    const cells = `^${one?.id} +email +ticket_delivery +3 +${at} +the provider \\[2J said no$`
    assert.match(row ?? '', new RegExp(cells))
    assert.deepEqual(rest, ['', `To retry them: jobs failed:retry ${one?.id}`])

    const words = rest[1]?.split('jobs ')[1] ?? ''
    assert.equal((await run(words)).code, 0)
    assert.equal((await run('failed:show')).code, 3)
  })

  test('failed:show says --all when that is what it shows, and names ids when it shows a part', async () => {
    await bury(test1.db, 'email', 5)
    await bury(test1.db, 'inbox', 1)
    assert.match((await run('failed:show')).out, /\nTo retry them: jobs failed:retry --all$/)
    assert.match(
      (await run('failed:show --queue email')).out,
      /\nTo retry them: jobs failed:retry --all --queue email$/,
    )
    const { out } = await run('failed:show --max 4')
    assert.match(out, /\n4 of 6 are shown\.\nTo retry those: jobs failed:retry( [0-9a-f-]{36}){4}$/)
    await run(out.slice(out.indexOf('failed:retry')))
    assert.equal(await failedCount(), 2)
  })

  test('failed:show names the command as it was called itself: npx fleet jobs', async () => {
    await bury(test1.db, 'email', 1)
    const { out } = await run('failed:show', { env: { npm_command: 'exec' } })
    assert.match(out, /To retry them: npx jobs failed:retry /)
  })

  test('failed:show fits the terminal by cutting the error, never the id', async () => {
    const error = 'x'.repeat(300)
    const [one] = await bury(test1.db, 'email', 1, { error })
    const { out } = await run('failed:show', { columns: 110 })
    const table = out.split('\n').slice(0, 2)
    for (const line of table) assert.ok(line.length <= 110, line)
    assert.match(table[1] ?? '', new RegExp(`^${one?.id} .*x…$`))
    assert.ok((await run('failed:show')).out.includes(error), 'uncut where a program reads it')
    const narrow = (await run('failed:show', { columns: 20 })).out
    assert.ok(narrow.includes(one?.id ?? ''))
  })

  test('failed:show <id> has the whole audit: every attempt, and the last stack', async () => {
    const [one] = await bury(test1.db, 'email', 1, { error: 'no such host' })
    assert.ok(one)
    for (const id of [one.id, one.dead_id, one.dead_id.slice(0, 8)]) {
      const { code, out } = await run(['failed:show', id])
      assert.equal(code, 0)
      for (const part of ['SASO-INFRA-9100', one.id, one.dead_id, 'Transport', 'no such host']) {
        assert.ok(out.includes(part), part)
      }
      assert.match(out, /Last stack\n +Error: no such host\n +at somewhere/)
      assert.match(out, new RegExp(`failed:retry ${one.id}\n.*failed:remove ${one.id}$`))
    }
    const { job, audit } = JSON.parse((await run(['failed:show', one.id, '--json'])).out)
    assert.equal(job.id, one.id)
    assert.equal(audit.errors.length, 1)
    const unknown = await run(['failed:show', randomUUID()])
    assert.equal(unknown.code, 3)
    assert.match(unknown.err, /is not among the failed jobs/)
  })

  test('failed:show --stats counts by queue and type', async () => {
    await bury(test1.db, 'email', 2, { data: { template: 'a' } })
    await bury(test1.db, 'email', 1, { data: { template: 'b' } })
    const { out, code } = await run('failed:show --stats')
    assert.equal(code, 0)
    assert.match(out, /^email +3 +\S+ +a 2, b 1$/m)
    assert.match(out, /^inbox +0 +-$/m)
    const [email] = JSON.parse((await run('failed:show --stats --queue email --json')).out)
    assert.deepEqual(email.types, { a: 2, b: 1 })
  })

  test('failed:retry does the known, names the unknown, and ends with 3', async () => {
    const [one, two] = await bury(test1.db, 'email', 2)
    const nobody = randomUUID()
    const { code, out, err } = await run(['failed:retry', `${one?.id}`, nobody])
    assert.equal(code, 3)
    assert.equal(out, `retried ${one?.id} in email`)
    assert.equal(err, `jobs: not among the failed jobs: ${nobody}`)
    const again = await run(['failed:retry', `${one?.id}`, `${two?.dead_id}`, '--json'])
    assert.equal(again.code, 3)
    const document = JSON.parse(again.out)
    assert.equal(document.retried, 1)
    assert.deepEqual(document.unknown, [one?.id])
  })

  test('failed:retry --all takes all of a queue in batches, shows how it goes, and is idempotent', async () => {
    await bury(test1.db, 'email', 1203)
    await bury(test1.db, 'inbox', 1)
    const { code, out, shown } = await run('failed:retry --all --force --queue email', {
      answers: [],
    })
    assert.equal(out, 'retried 1203 jobs: 1203 in email')
    assert.equal(code, 0)
    assert.deepEqual(shown.filter(Boolean), [
      'retried 500 of 1203',
      'retried 1000 of 1203',
      'retried 1203 of 1203',
    ])
    const again = await run('failed:retry --all --queue email')
    assert.equal(again.code, 3)
    assert.equal(await failedCount(), 1)
  })

  test('failed:retry by two operators at once retries each job once', async () => {
    const dead = await bury(test1.db, 'inbox', 600)
    const ids = dead.map(({ id }) => id)
    const runs = await Promise.all([
      run(['failed:retry', ...ids, '--json']),
      run(['failed:retry', ...ids, '--json']),
      run(['failed:retry', '--all', '--json']),
    ])
    const retried = runs.map(({ out }) => JSON.parse(out).retried as number)
    assert.equal(
      retried.reduce((a, b) => a + b),
      600,
      retried.join(),
    )
    const { rows } = await sql<{ name: string; state: string; count: number }>`
      select name, state::text, count(*)::int from pgboss.job group by 1, 2`.execute(test1.db)
    assert.deepEqual(rows, [{ name: 'inbox', state: 'created', count: 600 }])
  })

  test('failed:retry while the queue is paused says that they wait', async () => {
    await bury(test1.db, 'email', 1)
    await run('pause email')
    const { code, err } = await run('failed:retry --all')
    assert.equal(code, 0)
    assert.match(err, /email is paused: they wait until it is resumed/)
  })

  test('failed:retry at a terminal asks for each: retry, delete or skip', async () => {
    const [a, b, c, d] = await bury(test1.db, 'email', 4)
    for (const [n, job] of [a, b, c, d].entries()) {
      await sql`update pgboss.job set created_on = now() + ${n} * interval '1 s'
        where id = ${job?.dead_id}`.execute(test1.db)
    }
    const answers = ['r', 'what', 'delete', 's']
    const { code, out } = await run('failed:retry', { answers })
    assert.equal(code, 0)
    assert.match(out, /1 of 4 {2}.*in email/)
    assert.match(out, /retried 1, removed 1, skipped 1$/)
    const resolved = await Promise.all(
      [a, b, c, d].map(async (job) => (await readAudit(test1.db, job?.dead_id ?? ''))?.resolvedAs),
    )
    assert.deepEqual(resolved, ['retried', 'removed', null, null])
  })

  test('failed:retry --all and failed:remove at a terminal ask once', async () => {
    await bury(test1.db, 'email', 2)
    for (const words of ['failed:retry --all', 'failed:remove --all']) {
      for (const answers of [['no'], []]) {
        const { code, err } = await run(words, { answers })
        assert.equal(code, 1)
        assert.match(err, /2 failed jobs.*nothing was re/s)
      }
    }
    assert.equal(await failedCount(), 2)
    assert.equal((await run('failed:retry --all', { answers: ['y'] })).code, 0)
    assert.equal(await failedCount(), 0)
  })

  test('failed:remove deletes what is named, and all only when that is meant', async () => {
    const [one] = await bury(test1.db, 'email', 3)
    const { code, out } = await run(['failed:remove', `${one?.dead_id}`])
    assert.equal(code, 0)
    assert.equal(out, `removed ${one?.id} in email`)
    const unasked = await run('failed:remove --all')
    assert.equal(unasked.code, 2)
    assert.match(unasked.err, /--all --force removes all/)
    assert.equal(await failedCount(), 2)
    const all = JSON.parse((await run('failed:remove --all --force --json')).out)
    assert.equal(all.removed, 2)
    assert.equal((await run('failed:remove --all --force')).code, 3)
  })

  test('show masks what the payload says of people and secrets, and knows a job that is gone', async () => {
    const data = { type: 'email', recipient: 'anna@example.org', tickets: [{ code: 'opens' }] }
    const [one] = await bury(test1.db, 'email', 1, { data, error: 'no for ***@***' })
    const { code, out } = await run(['show', `${one?.id}`])
    assert.equal(code, 0)
    assert.doesNotMatch(out, /anna|opens/)
    assert.match(out, /"recipient": "\*\*\*"/)
    assert.match(out, /State +failed/)
    const document = JSON.parse((await run(['show', `${one?.id}`, '--json'])).out)
    assert.deepEqual(document.job.data.tickets, [{ code: '***' }])
    await run(['failed:remove', `${one?.id}`])
    const gone = await run(['show', `${one?.id}`])
    assert.equal(gone.code, 0)
    assert.match(gone.out, /The job is gone.*Resolved +removed at/s)
    assert.equal((await run(['show', randomUUID()])).code, 3)
  })

  test('show prints nothing of a payload that could move a cursor', async () => {
    const [one] = await bury(test1.db, 'email', 1, { data: { note: 'a\x9b2Jb\u202ec' } })
    const { out } = await run(['show', `${one?.id}`])
    assert.match(out, /^ {4}"note": "a 2Jb c"$/m)
  })

  const mail = {
    job_id: 'a-1',
    type: 'email',
    template: 'order_confirmation',
    recipient: 'anna@example.org',
    payload: {
      order_id: 'o',
      event_name: 'e',
      starts_at: '2026-01-02T03:04:05Z',
      section: 'A',
      quantity: 1,
      total: { amount_minor: 1, currency: 'EUR' },
    },
  }

  test('send makes a job of an argument, a file or stdin', async () => {
    const text = JSON.stringify(mail)
    const file = join(folder, 'mail.json')
    writeFileSync(file, text)
    for (const payload of [text, `@${file}`, '-']) {
      const { code, out, err } = await run(['send', 'email', payload], { input: text })
      assert.equal(code, 0, err)
      const [, id] = /^sent ([0-9a-f-]{36}) to email$/.exec(out) ?? []
      assert.match((await run(['show', `${id}`])).out, /State +ready/)
    }
    const late = ['send', 'email', text, '--delay', '60', '--priority', '5', '--json']
    const { id, queue } = JSON.parse((await run(late)).out)
    assert.equal(queue, 'email')
    const listed = JSON.parse((await run('list email --state delayed --json')).out)
    assert.deepEqual(
      listed.map((job: { id: string; priority: number }) => [job.id, job.priority]),
      [[id, 5]],
    )
  })

  for (const { queue = 'email', payload, says } of [
    { payload: '{"a":1,}', says: /the payload is no JSON: .*position 7 \(line 1 column 8\)/ },
    { payload: '{"a":\n[1', says: /no JSON: .*\(line 2 column 3\)/ },
    { payload: '', says: /the payload is empty: it must be a JSON object/ },
    { payload: '[1]', says: /must be a JSON object/ },
    { payload: '{"type":"push"}', says: /email does not take this payload: type must be "email"/ },
    { payload: '@/no/such/file', says: /cannot read \/no\/such\/file: ENOENT/ },
    { queue: 'commands', payload: '{"command_id":1}', says: /command_id must be a UUID/ },
    { queue: 'inbox', payload: '{}', says: /inbox does not take this payload: specversion/ },
    { queue: 'emial', payload: '{}', says: /no queue "emial"; known: commands, .*email/ },
  ]) {
    test(`send ${queue} ${JSON.stringify(payload)} is refused, and says why`, async () => {
      const { code, out, err } = await run(['send', queue, payload])
      assert.match(err, says)
      assert.equal(code, 2)
      assert.equal(out, '')
    })
  }

  test('cancel takes out what waits, once; what has failed or is unknown it does not', async () => {
    const { out } = await run(['send', 'email', JSON.stringify(mail), '--json'])
    const { id } = JSON.parse(out)
    assert.equal((await run(['cancel', id])).out, `cancelled ${id} in email`)
    const again = await run(['cancel', id])
    assert.equal(again.code, 0)
    assert.match(again.out, /cancelled already/)
    const [dead] = await bury(test1.db, 'email', 1)
    const failed = await run(['cancel', `${dead?.id}`])
    assert.equal(failed.code, 1)
    assert.match(failed.err, /has failed.*failed:remove/)
    assert.equal((await run(['cancel', randomUUID()])).code, 3)
  })

  test('cancel of one that runs says what becomes of it', async () => {
    const { id } = JSON.parse((await run(['send', 'email', JSON.stringify(mail), '--json'])).out)
    await sql`update pgboss.job set state = 'active', started_on = now() where id = ${id}`.execute(
      test1.db,
    )
    const { code, out } = await run(['cancel', id])
    assert.equal(code, 0)
    assert.match(out, /A worker has it since .*told to drop it.*does not run again/s)
  })

  test('pause and resume say what was, and do it once', async () => {
    const said = []
    for (const words of ['pause email', 'pause email', 'resume email', 'resume email']) {
      const { code, out } = await run(words)
      assert.equal(code, 0)
      said.push(out.replace(/:.*/, ''))
    }
    assert.deepEqual(said, [
      'email is paused',
      'email was paused already',
      'email is resumed',
      'email was not paused',
    ])
    assert.deepEqual(JSON.parse((await run('pause email --json')).out), {
      queue: 'email',
      paused: true,
    })
  })

  const register = (name: string, startedAgo = 60) =>
    sql`insert into workers (id, name, host, pid, started_at, doing)
      values (gen_random_uuid(), ${name}, 'h1', 42, clock_timestamp() - ${startedAgo} * interval '1 s',
        '{"queues":{"email":{"active":3,"handled":120}},"rssBytes":83886080}')`.execute(test1.db)

  test('workers lists who is alive and what each has in hand', async () => {
    const none = await run('workers')
    assert.equal(none.code, 3)
    await register('email')
    const { code, out } = await run('workers')
    assert.equal(code, 0)
    assert.match(out, /^email +h1 +42 +1m\b.* yes +80 MB +email: 3 active, 120 handled$/m)
    assert.equal(JSON.parse((await run('workers --json')).out).length, 1)
  })

  test('stop-workers asks all, and with --wait tells when they are gone or which are not', async () => {
    await register('email')
    await register('inbox')
    assert.match((await run('stop-workers')).out, /^asked 2 workers/)
    const late = await run('stop-workers --wait --timeout 1', { answers: [] })
    assert.equal(late.code, 1)
    assert.match(late.err, /still there after 1 s: email \(pid 42 on h1\), inbox/)
    assert.ok(late.shown.some((line) => line.startsWith('0 of 2 have stopped; waiting for email')))
    const [waiting] = await Promise.all([
      run('stop-workers --wait --json'),
      sql`delete from workers`.execute(test1.db),
    ])
    assert.equal(waiting.code, 0)
    assert.equal(JSON.parse(waiting.out).left, 0)
  })

  for (const { words, says } of [
    { words: 'list', says: /an argument is missing\n.*jobs list <queue>/ },
    { words: 'list email --state lost', says: /no state "lost"; known: ready, delayed/ },
    { words: 'list email --max none', says: /--max must be a whole number from 1 to 10000/ },
    { words: 'list email --max 0', says: /--max must be a whole number from 1/ },
    { words: 'list email --max 1 --max 2', says: /--max was given 2 times/ },
    { words: 'list email more', says: /more\njobs list --help/ },
    { words: 'list email --nope', says: /nope\njobs list --help/ },
    { words: 'list nope', says: /no queue "nope"; known: / },
    { words: 'show', says: /an argument is missing/ },
    { words: 'show 1234', says: /"1234" is no id of a job: it must be a UUID/ },
    { words: 'failed:show --queue nope', says: /no queue "nope"; known: / },
    { words: 'failed:show --max -1', says: /--max must be/ },
    { words: 'failed:show abcdef01 --stats', says: /an id and --stats do not go together/ },
    { words: 'failed:retry', says: /which jobs\? jobs failed:retry <id…>, or .*--all/ },
    { words: 'failed:retry --queue email', says: /which jobs\?.* --all --queue email$/m },
    { words: 'failed:retry --all abcdef01', says: /ids and --all do not go together/ },
    { words: 'failed:remove', says: /which jobs\?/ },
    { words: 'failed:remove --queue push --all', says: /--all --queue push --force removes/ },
    { words: 'failed:remove nope', says: /"nope" is no id/ },
    { words: 'send email', says: /an argument is missing/ },
    { words: 'send email {} --delay soon', says: /--delay must be a whole number/ },
    { words: 'pause', says: /an argument is missing/ },
    { words: 'resume nope', says: /no queue "nope"; known: / },
    { words: 'cancel', says: /an argument is missing/ },
    { words: 'stop-workers --timeout never', says: /--timeout must be a whole number/ },
    { words: 'nope', says: /nope\nknown commands: stats, list, show/ },
  ]) {
    test(`wrong usage: jobs ${words} ends with 2 and says what is right`, async () => {
      const { code, out, err } = await run(words)
      assert.match(err, says)
      assert.equal(code, 2)
      assert.equal(out, '')
    })
  }

  test('with --json stdout is one document also when nothing matched, and nothing at all on failure', async () => {
    for (const words of ['list email', 'failed:show', 'failed:retry --all', 'workers']) {
      const { code, out } = await run(`${words} --json`)
      assert.equal(code, 3)
      JSON.parse(out)
    }
    const env = { DATABASE_URL: 'postgres://me:hidden@127.0.0.1:1/none' }
    const { code, out, err } = await run('failed:show --json', { env })
    assert.equal(code, 1)
    assert.equal(out, '')
    assert.doesNotMatch(err, /hidden/)
  })

  test('fleet check: all is well, and then names the queue and the Redis that are not there', async () => {
    const good = await run('check --json', {}, 'fleet')
    assert.equal(good.code, 0, good.out)
    const { findings } = JSON.parse(good.out)
    assert.deepEqual(
      findings.map(({ about }: { about: string }) => about),
      ['settings', 'postgres', 'schema', 'job table'],
    )
    const other = await testDatabase()
    await sql`update pgboss.queue set dead_letter = null where name = 'email'`.execute(other.db)
    await sql`delete from pgboss.queue where name in ('email.dead', 'commands')`.execute(other.db)
    await sql`delete from schema_migrations where name = '0003_jobs'`.execute(other.db)
    const env = { DATABASE_URL: other.url, REDIS_URL: 'redis://me:hidden@127.0.0.1:1' }
    const { code, out, err } = await run('check', { env }, 'fleet')
    assert.equal(code, 1)
    assert.match(out, /^FAIL {2}schema +lacks 0003_jobs: run `fleet migrate`$/m)
    assert.match(out, /^FAIL {2}job table lacks the queues commands, email, email\.dead: run/m)
    assert.match(out, /^FAIL {2}redis +127\.0\.0\.1:1 .*ECONNREFUSED/m)
    assert.equal(err, 'fleet: 3 of 5 checks failed: schema, job table, redis')
    assert.doesNotMatch(out, /hidden/)
  })

  test('fleet check: a database without the schema, and a broker of no known kind', async () => {
    const { url } = await testDatabase({ empty: true })
    const env = { DATABASE_URL: url, BROKER_URL: 'http://127.0.0.1' }
    const { code, out } = await run('check', { env }, 'fleet')
    assert.equal(code, 1)
    assert.match(out, /^FAIL {2}schema +lacks 0001_foundation, .*: run `fleet migrate`$/m)
    assert.match(out, /^FAIL {2}job table is not there: run `fleet migrate`$/m)
    assert.match(out, /^FAIL {2}settings +BROKER_URL must begin with amqp:.* \(outbox, inbox\)$/m)
  })

  test('as a process: the document alone on stdout, and the exit code', async () => {
    await bury(test1.db, 'email', 1)
    const env = { PATH: process.env.PATH, DATABASE_URL: test1.url }
    const main = [join(cli, 'fleet.js'), 'jobs', 'failed:retry', '--all', '--json']
    const shell = () =>
      new Promise<{ code: number; out: string; err: string }>((resolve) => {
        execFile(process.execPath, main, { env }, (error, out, err) =>
          resolve({ code: Number(error?.code ?? 0), out, err }),
        )
      })
    const first = await shell()
    assert.equal(first.err, '')
    assert.equal(first.code, 0)
    assert.equal(JSON.parse(first.out).retried, 1)
    const second = await shell()
    assert.equal(second.code, 3)
    assert.equal(second.err, 'fleet jobs: no failed job\n')
  })
})

test('a terminal takes answers typed ahead, and none after the end of the input', async () => {
  const [input, output] = [new PassThrough(), new PassThrough()]
  const terminal = openTerminal(input, output)
  const first = choose(terminal, 'What now?', ['retry', 'delete', 'skip'])
  input.write('x\nD\n')
  assert.equal(await first, 'delete')
  input.write('skip\n')
  input.end()
  assert.equal(await choose(terminal, 'What now?', ['retry', 'delete', 'skip']), 'skip')
  assert.equal(await terminal.ask('And now? '), undefined)
  terminal.show('half done')
  terminal.close()
  assert.match(String(output.read()), /What now\? \(retry\/delete\/skip\)/)
})

test('the TAB key is offered queues, states and workers where they belong', () => {
  const values = (line: string) => offer(line.split(' ')).values
  assert.ok(values('jobs list ').includes('email'))
  assert.deepEqual(values('jobs list email '), [])
  assert.ok(!values('jobs stats email ').includes('email'))
  assert.ok(values('jobs stats email ').includes('inbox'))
  assert.ok(values('jobs list email --state ').includes('delayed'))
  assert.ok(values('jobs failed:retry --queue e').includes('email'))
  assert.ok(values('fleet run ').includes('outbox'))
  assert.deepEqual(values('jobs fa'), [])
})

test('in a shell: jobs is the program for what is ours, and the builtin for what is its own', async () => {
  const fake = join(folder, 'jobs.js')
  const fleet = join(folder, 'fleet.js')
  for (const file of [fake, fleet]) {
    writeFileSync(file, '#!/bin/sh\necho "program $*"\n', { mode: 0o755 })
  }
  const script = `${shellLines(folder)}
    sleep 100 & sleeper=$!
    jobs stats email; jobs; jobs -p >/dev/null && echo listed; jobs %1; jobs --help
    COMP_LINE='jobs failed:sh' COMP_POINT=14 _flotilla 2>&1
    kill $sleeper`
  const out = await new Promise<string>((resolve, reject) => {
    execFile('bash', ['-c', script], (error, out) => (error ? reject(error) : resolve(out)))
  })
  const running = String.raw`\[1\]\+ +Running +sleep 100 &`
  assert.match(
    out,
    new RegExp(`^program stats email\n${running}\nlisted\n${running}\nprogram --help\n`),
  )
})

test('in a shell: the TAB key completes failed:show past its colon', async () => {
  const script = `${shellLines(cli)}
    COMP_LINE='jobs failed:s' COMP_POINT=13; COMP_WORDBREAKS=' :'
    _flotilla; echo "\${COMPREPLY[@]}"
    COMP_LINE='fleet jobs list ema' COMP_POINT=19
    _flotilla; echo "\${COMPREPLY[@]}"`
  const env = { PATH: process.env.PATH }
  const out = await new Promise<string>((resolve, reject) => {
    execFile('bash', ['-c', script], { env }, (error, out) =>
      error ? reject(error) : resolve(out),
    )
  })
  assert.equal(out, 'show\nemail\n')
})
