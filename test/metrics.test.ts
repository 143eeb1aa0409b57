// What the workers serve on /metrics, scraped from all of them as processes: how the queues stand, and that the page
// that describes the metrics and the dashboard that shows them name what is really there.

import assert from 'node:assert/strict'
import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, before, describe, test } from 'node:test'
import { sql } from 'kysely'
import { workers } from '../cli/workers.ts'
import { levelMax, readQueueLevels, readQueueStats } from '../db/jobStats.ts'
import { openJobs } from '../db/jobs.ts'
import { pauseQueue } from '../db/pauses.ts'
import { queues } from '../domain/queues.ts'
import { readSeldom } from '../workers/metrics.ts'
import { newKey, openApi } from './api.ts'
import { type TestDatabase, testDatabase } from './database.ts'
import { metricsOf } from './promql.ts'
import { endWorkers, exited, scrape, startWorker, until, type WorkerProcess } from './worker.ts'

const root = join(import.meta.dirname, '..')
const read = (path: string) => readFileSync(join(root, path), 'utf8')

let database: TestDatabase
const dataDir = mkdtempSync(join(tmpdir(), 'flotilla-metrics-'))
const running = new Map<string, WorkerProcess>()
/** /metrics of each worker, by its name. */
const pages = new Map<string, string>()
const all = () => [...pages.values()].join('\n')

before(async () => {
  database = await testDatabase()
  const { db } = database
  const jobs = openJobs(database.database)
  await pauseQueue(db, 'email')
  await jobs.send(db, 'email', [{ data: {} }, { data: {} }, { data: {}, delayMs: 3_600_000 }])
  await sql`update pgboss.job set start_after = now() - interval '1 hour'
    where name = 'email' and start_after <= now()`.execute(db)
  await sql`insert into pgboss.job (name) values ('email.dead')`.execute(db)
  await jobs.close()
  const api = await openApi(database.database)
  const eventId = await api.makeEvent()
  await api.close()
  const env = {
    METRICS_PORT: '',
    HTTP_PORT: '0',
    WAITINGROOM_PORT: '0',
    FLEET_DATA_DIR: dataDir,
  }
  for (const { name } of workers) running.set(name, startWorker(name, database.url, [], env))
  const http = running.get('http') as WorkerProcess
  const base = () => /listening at (http:[^"]+)"/.exec(http.output())?.[1]
  await until(() => base() !== undefined)
  const held = await fetch(`${base()}/api/v1/reservations`, {
    method: 'POST',
    headers: {
      'content-type': 'application/json',
      'x-mock-user-id': 'ann',
      'idempotency-key': newKey(),
    },
    body: JSON.stringify({ event_id: eventId, quantity: 1 }),
  })
  assert.equal(held.status, 201)
  for (const [name, worker] of running) pages.set(name, await scrape(worker))
})
after(async () => {
  await endWorkers()
  rmSync(dataDir, { recursive: true, force: true })
})

/** Labels of all samples of a metric, those of a histogram's parts too. */
function labelsOf(metric: string): Set<string> {
  const samples = all().matchAll(
    new RegExp(`^${metric}(?:_bucket|_sum|_count)?\\{([^}]*)\\} `, 'gm'),
  )
  return new Set(
    [...samples].flatMap(([, labels = '']) =>
      [...labels.matchAll(/(\w+)="/g)].map(([, name]) => name as string),
    ),
  )
}

const served = (): Map<string, string> =>
  new Map([...all().matchAll(/^# TYPE (\S+) (\S+)$/gm)].map(([, name, type]) => [name!, type!]))

const isNodes = (name: string) => /^(process|nodejs)_/.test(name)

describe('the queues', () => {
  test('are told by the outbox worker, idle ones with zeros', async () => {
    const page = pages.get('outbox') ?? ''
    const value = (metric: string, queue: string) =>
      Number(new RegExp(`^${metric}\\{queue="${queue}"\\} (\\S+)$`, 'm').exec(page)?.[1])
    const levels = ['ready', 'delayed', 'active', 'failed', 'paused']
    const email = levels.map((level) => value(`jobs_${level}`, 'email'))
    assert.deepEqual(email, [2, 1, 0, 1, 1])
    assert.ok(value('jobs_oldest_seconds', 'email') >= 3600)
    for (const name of ['commands', 'inbox']) {
      const idle = [...levels, 'oldest_seconds'].map((level) => value(`jobs_${level}`, name))
      assert.deepEqual(idle, [0, 0, 0, 0, 0, 0])
    }
    assert.match(page, /^workers_alive\{worker="outbox"\} 1$/m)
  })

  test('have their counters from the start, in the worker that runs their jobs', () => {
    for (const [worker, queue] of [
      ['http', 'commands'],
      ['inbox', 'inbox'],
      ['email', 'email'],
      ['push', 'push'],
      ['push', 'push:priority'],
      ['alert', 'alert'],
      ['inbox', 'payments'],
      ['search', 'search'],
      ['embed', 'embed'],
      ['similar', 'similar'],
    ] as const) {
      const page = pages.get(worker) ?? ''
      const has = (sample: string) => assert.ok(page.includes(`\n${sample} 0\n`), sample)
      has(`jobs_completed_total{queue="${queue}"}`)
      has(`jobs_duration_seconds_count{queue="${queue}"}`)
      has(`jobs_dead_total{queue="${queue}"}`)
      for (const kind of ['failed', 'died', 'late']) {
        has(`jobs_retries_total{queue="${queue}",kind="${kind}"}`)
      }
    }
    assert.match(pages.get('email') ?? '', /^notification_email_queue_size 3$/m)
  })

  test('are counted the same by those who ask often, up to a bound', async () => {
    const own = await testDatabase()
    await sql`
      insert into pgboss.job (name, data, state, start_after, blocked)
      select name, '{}', state::pgboss.job_state, now() + due * interval '1 hour', blocked
      from unnest(array['email', 'email.dead', 'inbox', 'commands']) as name,
        unnest(array['created', 'retry', 'active', 'completed', 'failed']) as state,
        unnest(array[-2, -1, 1]) as due, unnest(array[false, true]) as blocked`.execute(own.db)
    const whole = (stats: Awaited<ReturnType<typeof readQueueStats>>) =>
      stats.map((one) => ({ ...one, oldest_seconds: Math.round((one.oldest_seconds ?? 0) / 60) }))
    const exact = whole(await readQueueStats(own.db))
    assert.deepEqual(whole(await readQueueLevels(own.db)), exact)
    const filled: Record<string, number[]> = {
      commands: [8, 4, 6, 0],
      inbox: [8, 4, 6, 0],
      email: [8, 4, 6, 18],
    }
    assert.deepEqual(
      exact.map(({ queue, ready, delayed, active, failed }) => [
        queue,
        ready,
        delayed,
        active,
        failed,
      ]),
      queues.map(({ name }) => [name, ...(filled[name] ?? [0, 0, 0, 0])]),
    )
    const jobs = openJobs(own.database)
    assert.equal((await jobs.fetch('inbox', 3)).length, 3)
    await jobs.close()
    for (const stats of [await readQueueStats(own.db), await readQueueLevels(own.db)]) {
      const inbox = stats.find(({ queue }) => queue === 'inbox')
      assert.deepEqual([inbox?.ready, inbox?.active], [5, 9])
    }
    await sql`insert into pgboss.job (name) select 'email'
      from generate_series(1, ${levelMax} + 1)`.execute(own.db)
    const email = (await readQueueLevels(own.db)).find(({ queue }) => queue === 'email')
    assert.equal(email?.ready, levelMax)
    await own.close()
  })

  test('are read once for all who ask within a while', async () => {
    let reads = 0
    const count = readSeldom(async () => ++reads, 60_000)
    assert.deepEqual(await Promise.all([count(), count(), count()]), [1, 1, 1])
    const eager = readSeldom(async () => ++reads, -1)
    assert.deepEqual([await eager(), await eager()], [2, 3])
  })
})

type Documented = { type: string; labels: string[]; by: string[] }

function documented(): Map<string, Documented> {
  const rows = read('docs/metrics.md').matchAll(
    /^\| `(\w+)` \| (\w+) \|([^|]*)\| ([^|]*) \| [^|]+ \|$/gm,
  )
  return new Map(
    [...rows].map(([, name = '', type = '', labels = '', by = '']) => [
      name,
      {
        type,
        labels: [...labels.matchAll(/`(\w+)`/g)].map(([, label]) => label as string),
        by: by === 'all' ? workers.map((worker) => worker.name) : by.split(', '),
      },
    ]),
  )
}

describe('docs/metrics.md', () => {
  test('has every metric that is served, with its type, and no other', () => {
    const described = [...documented()].map(([name, { type }]) => `${name} ${type}`)
    const real = [...served()].filter(([name]) => !isNodes(name)).map((one) => one.join(' '))
    assert.deepEqual(described.sort(), real.sort())
  })

  test('says who serves a metric, and its labels', () => {
    for (const [name, { by, labels }] of documented()) {
      const servers = [...pages].filter(([, page]) => page.includes(`\n# TYPE ${name} `))
      const found = servers.map(([worker]) => worker)
      assert.deepEqual(found.sort(), by.sort(), name)
      for (const label of labelsOf(name)) {
        assert.ok(label === 'le' || labels.includes(label), `${name} has the label ${label}`)
      }
    }
  })

  test('names every queue’s counters and no queue is forgotten', () => {
    const told = new Set(
      [...all().matchAll(/^jobs_completed_total\{queue="([\w:]+)"\}/gm)].map(([, queue]) => queue),
    )
    assert.deepEqual([...told].sort(), queues.map(({ name }) => name as string).sort())
  })
})

type Panel = {
  id: number
  type: string
  title: string
  gridPos: { x: number; y: number; w: number; h: number }
  targets?: { expr: string; datasource: { uid: string } }[]
}

describe('the dashboard', () => {
  const dashboard = JSON.parse(read('deploy/grafana/flotilla.json')) as {
    uid: string
    schemaVersion: number
    panels: Panel[]
    templating: { list: { name: string; type: string; definition?: string }[] }
  }
  const panels = dashboard.panels.filter(({ type }) => type !== 'row')
  const exprs = panels.flatMap(({ title, targets = [] }) =>
    targets.map(({ expr }) => ({ title, expr })),
  )

  /** Of a histogram's part the histogram. */
  function metricOf(name: string): string | undefined {
    const types = served()
    if (types.has(name)) return name
    const [, whole = ''] = /^(.*)_(?:bucket|sum|count)$/.exec(name) ?? []
    return types.get(whole) === 'histogram' ? whole : undefined
  }

  test('asks for nothing but metrics that a worker serves', () => {
    assert.ok(exprs.length > 30)
    for (const { title, expr } of exprs) {
      const metrics = metricsOf(expr)
      assert.ok(metrics.length > 0, `${title}: ${expr}`)
      for (const name of metrics) assert.ok(metricOf(name), `${title} asks for ${name}`)
    }
    const variable = dashboard.templating.list.find(({ name }) => name === 'job')
    const [, metric = ''] = /^label_values\((\w+), job\)$/.exec(variable?.definition ?? '') ?? []
    assert.ok(metricOf(metric))
  })

  test('groups by labels that the metrics have', () => {
    for (const { title, expr } of exprs) {
      const known = new Set(['job', 'instance', 'le'])
      for (const name of metricsOf(expr)) {
        for (const label of documented().get(String(metricOf(name)))?.labels ?? []) known.add(label)
      }
      const grouped = [...expr.matchAll(/\bby\s*\(([^)]*)\)/g)].flatMap(([, list = '']) =>
        list.split(',').map((label) => label.trim()),
      )
      const matched = [...expr.matchAll(/[{,]\s*(\w+)\s*[=!]/g)].map(([, label]) => label as string)
      for (const label of [...grouped, ...matched]) {
        assert.ok(known.has(label), `${title} knows no label ${label}`)
      }
    }
  })

  test('shows every metric of ours', () => {
    const shown = new Set(exprs.flatMap(({ expr }) => metricsOf(expr).map(metricOf)))
    // Beside the failed ones they say nothing that jobs and requests do not say better.
    const hidden = ['worker_passes_total', 'worker_pass_duration_seconds']
    const missing = [...documented().keys()].filter((name) => !shown.has(name))
    assert.deepEqual(missing, hidden)
  })

  test('asks for its data source, and its panels do not overlap', () => {
    assert.equal(dashboard.templating.list[0]?.type, 'datasource')
    const sources = panels.flatMap(({ targets = [] }) => targets.map((one) => one.datasource.uid))
    // biome-ignore lint/suspicious/noTemplateCurlyInString: Grafana's variable
    assert.deepEqual([...new Set(sources)], ['${datasource}'])
    assert.equal(new Set(dashboard.panels.map(({ id }) => id)).size, dashboard.panels.length)
    const cells = dashboard.panels.flatMap(({ gridPos: { x, y, w, h } }) =>
      Array.from({ length: w * h }, (_, i) => `${x + (i % w)} ${y + Math.floor(i / w)}`),
    )
    assert.equal(new Set(cells).size, cells.length)
  })
})

test('workers that were scraped end well', async () => {
  for (const { process: child } of running.values()) child.kill('SIGTERM')
  const codes = await Promise.all([...running.values()].map(exited))
  assert.deepEqual(new Set(codes), new Set([0]))
})
