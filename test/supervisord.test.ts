// deploy/supervisord.conf under a real supervisord: a killed worker is back, a stopped one ends with exit 0 and loses
// nothing, and every worker of the fleet has its program. Only the mails' workers are started: five at once are slow.

import assert from 'node:assert/strict'
import { spawn, spawnSync } from 'node:child_process'
import { randomUUID } from 'node:crypto'
import { once } from 'node:events'
import { closeSync, globSync, mkdtempSync, openSync, readFileSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, describe, test } from 'node:test'
import { sql } from 'kysely'
import { workers } from '../cli/workers.ts'
import { openJobs } from '../db/jobs.ts'
import { exitCodes } from '../workers/worker.ts'
import { testDatabase } from './database.ts'
import { everyJob, loseLife } from './jobRows.ts'
import { missing } from './programs.ts'
import { startGuard } from './setup.ts'
import { until } from './worker.ts'

const deploy = join(import.meta.dirname, '..', 'deploy')
const conf = readFileSync(join(deploy, 'supervisord.conf'), 'utf8')

/** The lines of a program's section, without its name in them. */
function programOf(name: string): string[] {
  const [, section = ''] = conf.split(`[program:${name}]\n`)
  const [own = ''] = section.split('\n[')
  return own
    .split('\n')
    .filter(Boolean)
    .map((line) => line.replace(` run ${name} `, ' run … '))
}

const mails = (count: number) =>
  Array.from({ length: count }, () => {
    const id = randomUUID()
    const payload = {
      order_id: id,
      event_name: 'Gala',
      starts_at: '2030-01-01T19:00:00Z',
      section: 'A',
      quantity: 1,
      seats: ['A-1-1'],
      total: { amount_minor: 100, currency: 'EUR' },
    }
    const template = 'order_confirmation'
    const sending = { recipient: 'anna@example.org', created_at: '2026-12-01T10:00:00.000Z' }
    const attempts = { attempts: 0, max_attempts: 3 }
    return { id, data: { job_id: id, type: 'email', template, payload, ...sending, ...attempts } }
  })

test('every worker has its program in the group, all of them alike', () => {
  const programs = [...conf.matchAll(/^\[program:(.*)\]$/gm)].map(([, name]) => name as string)
  assert.deepEqual(
    programs,
    workers.map(({ name }) => name),
  )
  assert.equal(/^programs = (.*)$/m.exec(conf)?.[1], programs.join(','))
  for (const { name } of workers) assert.deepEqual(programOf(name), programOf('http'), name)
})

test('a worker is waited for as long as its grace, and left down when a restart does not mend it', () => {
  const lines = programOf('http')
  const [, grace] = /--grace=(\d+)/.exec(lines.join('\n')) ?? []
  const [, wait] = /^stopwaitsecs = (\d+)$/m.exec(lines.join('\n')) ?? []
  assert.ok(Number(wait) > Number(grace) + 5)
  assert.ok(lines.includes('autorestart = unexpected'))
  assert.ok(lines.includes(`exitcodes = ${exitCodes.usage},${exitCodes.config}`))
})

describe('supervisord', { skip: missing('supervisord', 'supervisor') }, () => {
  if (missing('supervisord', 'supervisor')) return
  const dir = mkdtempSync(join(tmpdir(), 'flotilla-supervisord-'))
  const file = join(dir, 'supervisord.conf')
  writeFileSync(
    file,
    conf.replaceAll('%(here)s', deploy).replace(/^\[program:.*\]$/gm, '$&\nautostart = false'),
  )
  const guard = startGuard()
  guard.watch({ dir })
  after(() => guard.end())

  test('brings a killed worker back, and one it stops loses nothing', async () => {
    const { url, database, db } = await testDatabase()
    const env = {
      PATH: process.env.PATH ?? '',
      FLEET_DATA_DIR: dir,
      DATABASE_URL: url,
      METRICS_PORT: '0',
      EMAIL_RATE: '10',
    }
    // A file as `>` opens it: what Node calls a pipe is a socket, which cannot be opened again.
    const log = openSync(join(dir, 'log'), 'w')
    const output = () => readFileSync(join(dir, 'log'), 'utf8')
    const supervisord = spawn('supervisord', ['-c', file], { env, stdio: ['ignore', log, log] })
    closeSync(log)
    guard.watch({ pid: supervisord.pid, signal: 'SIGTERM' })
    const control = (...words: string[]) =>
      spawnSync('supervisorctl', ['-c', file, ...words], { env, encoding: 'utf8' }).stdout
    /** Of the one that was started last: asking supervisorctl each time would cost a Python. */
    const pid = () => [...output().matchAll(/spawned: 'email_0' with pid (\d+)/g)].at(-1)?.[1]
    const sent = () => globSync('mail/*.eml', { cwd: dir }).length
    const count = async () => {
      const { rows } = await sql<{ active: number; done: number; all: number; again: number }>`
        select count(*)::int as all, count(*) filter (where state = 'active')::int as active,
          count(*) filter (where state = 'completed')::int as done,
          count(*) filter (where retry_count > 0)::int as again
        from ${everyJob} where name = 'email'`.execute(db)
      return rows[0] ?? { active: -1, done: -1, all: -1, again: -1 }
    }
    const runs = (of: string | undefined) => output().includes(`"pid":${of},`)

    await until(() => output().includes('supervisord started'))
    const jobs = openJobs(database)
    await jobs.send(db, 'email', mails(120))
    await jobs.close()
    assert.match(control('start', 'flotilla:email_0'), /started/)
    const first = pid()
    await until(() => sent() >= 3)
    process.kill(Number(first), 'SIGKILL')
    await loseLife(db)
    await until(() => runs(pid()) && pid() !== first)

    // What the dead one had in hand is taken over, and the rest goes on.
    await until(async () => (await count()).again > 0)
    const before = sent()
    await until(() => sent() > before)
    assert.match(control('stop', 'flotilla:email_0'), /stopped/)
    assert.match(output(), /stopped: email_0 \(exit status 0\)/)
    const { active, done, all } = await count()
    assert.deepEqual([active, all], [0, 120])
    assert.ok(done < 120, 'it was stopped in the middle')
    supervisord.kill('SIGTERM')
    assert.deepEqual(await once(supervisord, 'exit'), [0, null])
    // Nobody's lines have overwritten another's.
    for (const line of output().trim().split('\n'))
      assert.match(line, /^(\{"level":.*\}|\d{4}-.*)$/)
  })
})
