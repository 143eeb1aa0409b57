// One trace from the request to the mail, through real workers and a collector that speaks OTLP; and what is carried
// along when nobody records. Nothing that befalls the collector befalls the work.

import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, before, describe, test } from 'node:test'
import { sql } from 'kysely'
import { openJobs } from '../db/jobs.ts'
import { parseTraceparent, traceIdOf, traceparentIn } from '../domain/traces.ts'
import { ConfigError, commonSettings, readConfig } from '../workers/config.ts'
import { createLog } from '../workers/log.ts'
import { beginSpan, openTracing, withSpan } from '../workers/trace.ts'
import { newKey, openApi } from './api.ts'
import { type TestDatabase, testDatabase } from './database.ts'
import { everyJob } from './jobRows.ts'
import { type CollectedSpan, type Collector, openCollector } from './servers/otlp.ts'
import { endWorkers, exited, startWorker, until, type WorkerProcess } from './worker.ts'

const newTraceparent = () =>
  `00-${randomBytes(16).toString('hex')}-${randomBytes(8).toString('hex')}-01`

describe('a traceparent', () => {
  const traceparent = '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01'

  test('is read as the standard says', () => {
    assert.equal(parseTraceparent(traceparent), traceparent)
    assert.equal(traceIdOf(traceparent), '0af7651916cd43dd8448eb211c80319c')
    assert.equal(parseTraceparent(traceparent.replace(/^00/, 'cc')), traceparent)
    assert.equal(parseTraceparent(`${traceparent.replace(/^00/, 'cc')}-more`), traceparent)
    assert.equal(traceparentIn({ traceparent }), traceparent)
  })

  test('that is malformed is none', () => {
    const none = [
      undefined,
      null,
      7,
      '',
      `${traceparent}-more`,
      `${traceparent}, ${traceparent}`,
      traceparent.toUpperCase(),
      traceparent.slice(0, -1),
      traceparent.replace(/^00/, 'ff'),
      '00-00000000000000000000000000000000-b7ad6b7169203331-01',
      '00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01',
      `00-${'0'.repeat(100_000)}`,
    ]
    for (const given of none) assert.equal(parseTraceparent(given), undefined)
    for (const data of [undefined, null, 'text', 7, {}])
      assert.equal(traceparentIn(data), undefined)
  })
})

describe('the settings', () => {
  const read = (env: Record<string, string>) =>
    readConfig(commonSettings, { DATABASE_URL: 'postgres://x/y', ...env })

  test('are OpenTelemetry’s', () => {
    const config = read({
      OTEL_EXPORTER_OTLP_HEADERS: 'api-key=a%20b%3D, x=y',
      OTEL_TRACES_SAMPLER_ARG: '.25',
    })
    assert.deepEqual(config.OTEL_EXPORTER_OTLP_HEADERS, { 'api-key': 'a b=', x: 'y' })
    assert.equal(config.OTEL_TRACES_SAMPLER, 'parentbased_always_on')
    assert.equal(config.OTEL_TRACES_SAMPLER_ARG, 0.25)
  })

  test('are refused when they are none, the headers without their values', () => {
    const env = {
      OTEL_EXPORTER_OTLP_ENDPOINT: 'collector:4318',
      OTEL_EXPORTER_OTLP_PROTOCOL: 'grpc',
      OTEL_EXPORTER_OTLP_HEADERS: 'x=y,topsecret',
      OTEL_TRACES_SAMPLER: 'some',
      OTEL_TRACES_SAMPLER_ARG: '2',
    }
    assert.throws(
      () => read(env),
      (error) => {
        assert.ok(error instanceof ConfigError)
        assert.equal(error.faults.length, 5)
        const text = error.faults.join('\n')
        assert.match(text, /ENDPOINT must be a URL that begins with http:\/\//)
        assert.match(text, /PROTOCOL must be one of http\/json/)
        assert.match(text, /HEADERS must be a comma list of name=value: number 2 is none$/m)
        assert.match(text, /SAMPLER must be one of always_on/)
        assert.match(text, /SAMPLER_ARG must be a number from 0 to 1/)
        assert.doesNotMatch(text, /topsecret/)
        return true
      },
    )
  })
})

describe('spans', () => {
  const open = (url: string, env: Record<string, string> = {}) =>
    openTracing(
      readConfig(commonSettings, {
        DATABASE_URL: 'postgres://x/y',
        OTEL_EXPORTER_OTLP_ENDPOINT: url,
        ...env,
      }),
      'test',
      createLog('test', 'silent'),
    )
  let collector: Collector
  before(async () => {
    collector = await openCollector()
  })
  after(() => collector.close())

  test('hand on what they were given while nobody records', () => {
    const traceparent = newTraceparent()
    const span = beginSpan('a', { kind: 'server', parent: traceparent })
    assert.equal(span.traceparent, traceparent)
    assert.equal(beginSpan('a', { kind: 'server' }).traceparent, undefined)
    assert.equal(beginSpan('a', { kind: 'server', parent: 'x' }).traceparent, undefined)
  })

  test('tell errors without personal data and secrets', async () => {
    const tracing = await open(collector.url, { OTEL_EXPORTER_OTLP_HEADERS: 'api-key=abc' })
    const fault = Object.assign(new Error('ann@example.com: password=hunter22 was refused'), {
      detail: 'Key (email)=(ann@example.com) exists',
    })
    const failing = withSpan('failing', { kind: 'internal' }, () => Promise.reject(fault))
    await assert.rejects(failing, fault)
    await tracing.close()
    const span = collector.spans.find(({ name }) => name === 'failing')
    assert.equal(span?.status.code, 2)
    assert.equal(span.attributes['error.type'], 'Error')
    assert.equal(span.events[0]?.name, 'exception')
    assert.match(String(span.status.message), /was refused/)
    assert.doesNotMatch(JSON.stringify(span), /ann@|hunter22/)
    assert.equal(collector.posts.at(-1)?.['api-key'], 'abc')
    assert.equal(beginSpan('a', { kind: 'server' }).traceparent, undefined)
  })

  test('are recorded as the sampler says, and handed on all the same', async () => {
    const tracing = await open(collector.url, { OTEL_TRACES_SAMPLER: 'parentbased_always_off' })
    const root = beginSpan('unsampled root', { kind: 'server' })
    const sampled = beginSpan('sampled', { kind: 'server', parent: newTraceparent() })
    root.end()
    sampled.end()
    sampled.end({ type: 'too late' })
    await tracing.close()
    assert.match(String(root.traceparent), /-00$/)
    assert.match(String(sampled.traceparent), /-01$/)
    const names = collector.spans.map(({ name }) => name)
    assert.ok(!names.includes('unsampled root'))
    assert.equal(collector.spans.find(({ name }) => name === 'sampled')?.status.code ?? 0, 0)
  })

  test('wait to be sent in a bounded line', async () => {
    const tracing = await open(collector.url)
    for (let i = 0; i < 20_000; i++) beginSpan('much', { kind: 'internal' }).end()
    await tracing.close()
    const sent = collector.spans.filter(({ name }) => name === 'much').length
    // Besides those that wait one batch of 512 is on its way.
    assert.ok(sent >= 512 && sent <= 4096 + 512, `${sent} of 20000 were sent`)
  })

  test('are given up at the end when the collector does not answer, before its time is over', async () => {
    collector.mood = 'silent'
    const tracing = await open(collector.url)
    beginSpan('mute', { kind: 'internal' }).end()
    await tracing.close()
    assert.equal(collector.givenUp, 0)
    collector.mood = 'well'
  })
})

/** Prints what of OpenTelemetry a process loads. */
const watchLoads = `--import=data:text/javascript,${encodeURIComponent(`
  import { registerHooks } from 'node:module'
  registerHooks({
    load(url, context, next) {
      const [found] = /@opentelemetry\\/[\\w-]+/.exec(url) ?? []
      if (found) process.stderr.write('loads ' + found + '\\n')
      return next(url, context)
    },
  })`)}`

describe('the workers', () => {
  let database: TestDatabase
  let eventId: string
  const dataDir = mkdtempSync(join(tmpdir(), 'flotilla-trace-'))
  before(async () => {
    database = await testDatabase()
    const api = await openApi(database.database)
    eventId = await api.makeEvent({
      sections: [{ name: 'A', capacity: 1000, price_minor: 2500, currency: 'EUR' }],
    })
    const body = { email: 'ann@example.com', locale: 'en' }
    assert.equal((await api.call('PUT', 'users/ann', { user: 'ann', body })).status, 200)
    await api.close()
  })
  after(async () => {
    await endWorkers()
    rmSync(dataDir, { recursive: true, force: true })
  })

  const quiet = { FLEET_DATA_DIR: dataDir, HTTP_PORT: '0', RATE_LIMIT_USER_PER_MINUTE: '0' }

  async function startFleet(env: Record<string, string>) {
    const all = ['http', 'outbox', 'inbox', 'email'].map((name) =>
      startWorker(name, database.url, [], { ...quiet, ...env }),
    )
    const http = all[0] as WorkerProcess
    const address = () => /listening at (http:[^"]+)"/.exec(http.output())?.[1]
    await until(() => address() !== undefined)
    const post = (path: string, traceparent: string, body: object, headers = {}) =>
      fetch(`${address()}/api/v1/${path}`, {
        method: 'POST',
        headers: {
          'content-type': 'application/json',
          'x-mock-user-id': 'ann',
          'idempotency-key': newKey(),
          traceparent,
          ...headers,
        },
        body: JSON.stringify(body),
      })
    /** A hold and its confirmation. */
    async function buy(traceparent: string, headers: Record<string, string> = {}) {
      const held = await post('reservations', '', { event_id: eventId, quantity: 1 })
      assert.equal(held.status, 201)
      const { reservation_id: id } = (await held.json()) as { reservation_id: string }
      return await post(`reservations/${id}/confirm`, traceparent, {}, headers)
    }
    const mailed = (traceId: string) =>
      all[3]?.lines().filter(({ msg, trace_id }) => msg === 'mail sent' && trace_id === traceId)
    async function stop() {
      for (const { process: child } of all) child.kill('SIGTERM')
      assert.deepEqual(await Promise.all(all.map(exited)), [0, 0, 0, 0])
    }
    return { all, http, post, buy, mailed, stop }
  }

  /** The names from a span up to its root. */
  function wayUp(spans: CollectedSpan[], span: CollectedSpan | undefined): string[] {
    if (span === undefined) return []
    const above = spans.find(({ spanId }) => spanId === span.parentSpanId)
    return [`${span.service}: ${span.name}`, ...wayUp(spans, above)]
  }

  test('record one trace from the request to the mail', async () => {
    const collector = await openCollector()
    const fleet = await startFleet({
      OTEL_EXPORTER_OTLP_ENDPOINT: collector.url,
      NODE_OPTIONS: watchLoads,
    })
    const [traceparent, later] = [newTraceparent(), newTraceparent()]
    assert.equal((await fleet.buy(traceparent)).status, 200)
    assert.equal((await fleet.buy(later, { prefer: 'respond-async' })).status, 202)
    const malformed = await fleet.buy('00-abc')
    assert.equal(malformed.status, 200)
    const lost = newTraceparent()
    assert.equal((await fleet.post('nowhere', lost, {})).status, 404)
    assert.equal((await fleet.post('%zz', newTraceparent(), {})).status, 400)
    const of = (parent: string) =>
      collector.spans.filter(({ traceId }) => traceId === traceIdOf(parent))
    const mails = (parent: string) => of(parent).filter(({ kind }) => kind === 3)
    await until(() => mails(traceparent).length === 2 && mails(later).length === 2)
    await fleet.stop()
    for (const worker of fleet.all)
      assert.match(worker.output(), /^loads @opentelemetry\/sdk-trace$/m)

    const ticket = mails(traceparent).find(({ name }) => name === 'send ticket_delivery')
    const fromInbox = [
      'flotilla-email: send ticket_delivery',
      'flotilla-email: process email',
      'flotilla-inbox: process inbox',
      'flotilla-outbox: send ticket.generated',
      'flotilla-http: confirmReservation',
    ]
    const request = 'flotilla-http: POST /api/v1/reservations/:id/confirm'
    assert.deepEqual(wayUp(collector.spans, ticket), [...fromInbox, request])
    assert.deepEqual(
      wayUp(
        collector.spans,
        mails(later).find(({ name }) => name === 'send ticket_delivery'),
      ),
      [...fromInbox, 'flotilla-http: process commands', 'flotilla-http: send commands', request],
    )
    const root = of(traceparent).find(({ kind }) => kind === 2)
    assert.equal(root?.parentSpanId, traceparent.split('-')[2])
    assert.equal(root?.attributes['http.response.status_code'], 200)
    assert.equal(root?.attributes['http.route'], '/api/v1/reservations/:id/confirm')
    const relayed = of(traceparent).find(({ name }) => name === 'send ticket.generated')
    assert.equal(relayed?.attributes['messaging.destination.name'], 'ticket.generated')
    assert.deepEqual(
      of(lost).map(({ name, status }) => [name, status.code ?? 0]),
      [['POST', 0]],
    )
    // The malformed one has a trace of its own, like the holds, which had none.
    const roots = collector.spans.filter(({ parentSpanId, kind }) => kind === 2 && !parentSpanId)
    assert.equal(roots.filter(({ name }) => name.endsWith('confirm')).length, 1)
    assert.doesNotMatch(JSON.stringify(collector.spans), /ann@example|"ann"/)
    await collector.close()
  })

  test('carry a trace along when nobody records, and load nothing for it', async () => {
    const fleet = await startFleet({ NODE_OPTIONS: watchLoads, LOG_LEVEL: 'debug' })
    const traceparent = newTraceparent()
    const traceId = String(traceIdOf(traceparent))
    assert.equal((await fleet.buy(traceparent)).status, 200)
    await until(() => fleet.mailed(traceId)?.length === 2)
    // What is refused and what fails is logged under its trace too.
    const [refused, hopeless] = [newTraceparent(), newTraceparent()]
    assert.equal((await fleet.post('reservations', refused, { quantity: 0 })).status, 400)
    const told = (worker: WorkerProcess | undefined, traceparent: string) =>
      worker?.lines().filter(({ trace_id }) => trace_id === traceIdOf(traceparent)) ?? []
    await until(() => told(fleet.http, refused).length === 1)
    const jobs = openJobs(database.database)
    await jobs.send(database.db, 'email', [{ data: { type: 'none', traceparent: hopeless } }])
    await jobs.close()
    await until(() => told(fleet.all[3], hopeless).some(({ code }) => code === 'SASO-INFRA-9100'))
    const { rows } = await sql<{ traceparent: string; job: string }>`
      select traceparent, (select distinct data->>'traceparent' from ${everyJob}
        where name = 'email' and data->>'traceparent' like ${`%${traceId}%`}) as job
      from outbox where type = 'ticket.generated' and traceparent = ${traceparent}`.execute(
      database.db,
    )
    assert.deepEqual(rows, [{ traceparent, job: traceparent }])
    await fleet.stop()
    const loaded = fleet.all.map((worker) => [...worker.output().matchAll(/^loads (.*)$/gm)])
    // pg-boss brings the API, which does nothing by itself.
    const names = loaded.flat().map(([, name]) => name)
    assert.deepEqual(
      names.filter((name) => name !== '@opentelemetry/api'),
      [],
    )
  })

  test('answer as ever while the collector is away or mute, and say so once', async () => {
    const collector = await openCollector()
    collector.mood = 'silent'
    const fleet = await startFleet({ OTEL_EXPORTER_OTLP_ENDPOINT: collector.url })
    assert.equal((await fleet.buy(newTraceparent())).status, 200)
    await until(() => collector.posts.length > 0)
    const traceparent = newTraceparent()
    assert.equal((await fleet.buy(traceparent)).status, 200)
    await until(() => fleet.mailed(String(traceIdOf(traceparent)))?.length === 2)
    await collector.close()
    const warnings = () =>
      fleet.http.lines().filter(({ msg }) => String(msg).startsWith('traces do not get through'))
    await until(() => warnings().length > 0)
    assert.equal((await fleet.buy(newTraceparent())).status, 200)
    await fleet.stop()
    assert.equal(warnings().length, 1)
  })
})
