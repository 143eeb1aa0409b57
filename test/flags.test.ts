// Feature flags on a real database: what a circuit does to its flags, what a person does, who wins, and that each opening
// is told once over two instances.

import assert from 'node:assert/strict'
import { before, beforeEach, describe, test } from 'node:test'
import { sql } from 'kysely'
import { execute } from '../cli/main.ts'
import type { Context } from '../cli/program.ts'
import { closeCircuit, openCircuit } from '../db/circuits.ts'
import { circuitsSwitchedOff, isEnabled, readFlagChanges, readFlags, setFlag } from '../db/flags.ts'
import { decodeAlert } from '../domain/alerts.ts'
import { flags } from '../domain/flags.ts'
import type { EmailProvider } from '../workers/email/provider.ts'
import { createProviders } from '../workers/email/providers.ts'
import { createLog } from '../workers/log.ts'
import { type TestDatabase, testDatabase } from './database.ts'
import { emptyJobs, everyJob } from './jobRows.ts'

const opening = { why: 'HTTP 503', waitMs: () => 5000, wasProbe: false }
const byAnn = { reason: 'the vendor bills double', by: 'ann' }

describe('a flag', () => {
  let fresh: TestDatabase
  before(async () => {
    fresh = await testDatabase()
  })
  beforeEach(async () => {
    await emptyJobs(fresh.db)
    await sql`truncate flags, flag_changes, circuits, circuit_changes`.execute(fresh.db)
  })

  const alerts = async () => {
    const { rows } = await sql<{ data: { type: string; flag: string; reason?: string } }>`
      select data from ${everyJob} where name = 'alert' order by id`.execute(fresh.db)
    return rows.map(({ data }) => data)
  }
  const changes = async () =>
    (await readFlagChanges(fresh.db, 100))
      .reverse()
      .map(({ name, enabled, changed_by }) => [name, enabled, changed_by])

  test('is on until somebody says otherwise', async () => {
    assert.equal(await isEnabled(fresh.db, 'embeddings'), true)
    const rows = await readFlags(fresh.db)
    assert.deepEqual(
      rows.map(({ name, enabled, changed_by }) => [name, enabled, changed_by]),
      flags.map(({ name }) => [name, true, null]),
    )
    assert.equal(await setFlag(fresh.db, 'embeddings', true, byAnn), false)
    assert.deepEqual(await readFlags(fresh.db), rows)
    assert.deepEqual(await changes(), [])
  })

  test('is switched off by its circuit, with one alert, and on again when that closes', async () => {
    assert.equal(await openCircuit(fresh.db, 'embedding', opening), true)
    assert.equal(await isEnabled(fresh.db, 'embeddings'), false)
    assert.equal(await isEnabled(fresh.db, 'search_index'), true)
    // Failing on while it is open tells nothing new.
    await openCircuit(fresh.db, 'embedding', { ...opening, wasProbe: true })
    assert.equal((await alerts()).length, 1)
    await closeCircuit(fresh.db, 'embedding')
    assert.equal(await isEnabled(fresh.db, 'embeddings'), true)
    const told = await alerts()
    assert.deepEqual(
      told.map(({ type, flag }) => [type, flag]),
      [
        ['NotifyFlagAutoDisabled', 'embeddings'],
        ['NotifyFlagRecovered', 'embeddings'],
      ],
    )
    for (const alert of told) assert.deepEqual(decodeAlert(alert), alert)
    assert.deepEqual(await changes(), [
      ['embeddings', false, 'circuit embedding'],
      ['embeddings', true, 'circuit embedding'],
    ])
  })

  test('makes one alert an opening when many instances see the failure at once', async () => {
    const pools = [fresh, fresh.open('one'), fresh.open('two')]
    const news = await Promise.all(
      Array.from({ length: 30 }, (_, i) => openCircuit(pools[i % 3]!.db, 'opensearch', opening)),
    )
    assert.equal(news.filter(Boolean).length, 1)
    assert.equal((await alerts()).length, 1)
    const closings = await Promise.all(pools.map(({ db }) => closeCircuit(db, 'opensearch')))
    assert.equal(closings.filter((seconds) => seconds !== undefined).length, 1)
    assert.equal((await alerts()).length, 2)
  })

  test('stays off when a person switched it off, whatever its circuit does', async () => {
    assert.equal(await setFlag(fresh.db, 'embeddings', false, byAnn), true)
    await openCircuit(fresh.db, 'embedding', opening)
    await closeCircuit(fresh.db, 'embedding')
    assert.equal(await isEnabled(fresh.db, 'embeddings'), false)
    assert.deepEqual(await changes(), [['embeddings', false, 'ann']])
    // It was off: nothing changed that people should hear of.
    assert.deepEqual(await alerts(), [])
    assert.deepEqual(
      await circuitsSwitchedOff(fresh.db, ['embedding', 'opensearch']),
      new Set(['embedding']),
    )
  })

  test('that its circuit switched off is a person’s once he says so', async () => {
    await openCircuit(fresh.db, 'embedding', opening)
    assert.deepEqual(await circuitsSwitchedOff(fresh.db, ['embedding']), new Set())
    assert.equal(await setFlag(fresh.db, 'embeddings', false, byAnn), true)
    assert.equal(await setFlag(fresh.db, 'embeddings', false, byAnn), false)
    await closeCircuit(fresh.db, 'embedding')
    assert.equal(await isEnabled(fresh.db, 'embeddings'), false)
    assert.equal(await setFlag(fresh.db, 'embeddings', true, byAnn), true)
    assert.equal(await isEnabled(fresh.db, 'embeddings'), true)
    // The next opening is news again.
    await openCircuit(fresh.db, 'embedding', opening)
    assert.equal(await isEnabled(fresh.db, 'embeddings'), false)
  })

  test('is no one’s for a circuit without a flag: no alert', async () => {
    await openCircuit(fresh.db, 'somebody', opening)
    await closeCircuit(fresh.db, 'somebody')
    assert.deepEqual(await alerts(), [])
  })

  test('tells a vendor’s words without secrets, and bears what Postgres does not', async () => {
    const why = `401 for Bearer sk-abcdefghijklmnop\0 ${'x'.repeat(3000)}`
    await openCircuit(fresh.db, 'embedding', { ...opening, why })
    const [{ reason = '' } = {}] = await alerts()
    assert.match(reason, /^401 for Bearer \*\*\* x+$/)
    assert.equal(reason.length, 500)
  })

  test('of a mail provider sends mails to the next while a person has it off, and no mail tries it', async () => {
    const provider = (name: string): EmailProvider => ({ name, send: async () => ({ is: 'sent' }) })
    const providers = createProviders({
      db: fresh.db,
      providers: [provider('mailgun'), provider('smtp')],
      worker: { log: createLog('test', 'silent') },
      waitsMs: { first: 0, most: 0 },
    })
    const next = async () => {
      await providers.refresh()
      return providers.next()?.provider.name
    }
    assert.equal(await next(), 'mailgun')
    await setFlag(fresh.db, 'mail_mailgun', false, byAnn)
    assert.equal(await next(), 'smtp')
    await setFlag(fresh.db, 'mail_smtp', false, byAnn)
    assert.equal(await next(), undefined)
    assert.ok(providers.awayMs() > 1000)
    // The circuit's own word lets one mail try it, once its wait is over.
    await setFlag(fresh.db, 'mail_smtp', true, byAnn)
    await openCircuit(fresh.db, 'email:smtp', { ...opening, waitMs: () => 0 })
    assert.equal(await isEnabled(fresh.db, 'mail_smtp'), false)
    assert.equal(await next(), 'smtp')
    await setFlag(fresh.db, 'mail_mailgun', true, byAnn)
    assert.equal(await next(), 'mailgun')
  })

  async function fleet(words: string[]) {
    const out: string[] = []
    const err: string[] = []
    const context: Context = {
      program: 'fleet',
      env: { DATABASE_URL: fresh.url, SUDO_USER: 'bea' },
      argv: words,
      say: (line) => out.push(line),
      warn: (line) => err.push(line),
      input: async () => '',
      columns: undefined,
      terminal: undefined,
      onStop: () => {},
      become: () => assert.fail('becomes nothing'),
    }
    return { code: await execute('fleet', context), out: out.join('\n'), err: err.join('\n') }
  }

  test('is seen and switched from the shell', async () => {
    const off = await fleet(['flags:set', 'embeddings', 'off', '--reason', 'too dear'])
    assert.deepEqual(off, { code: 0, out: 'embeddings is off', err: '' })
    const again = await fleet(['flags:set', 'embeddings', 'off', '--reason', 'too dear'])
    assert.equal(again.out, 'embeddings was off already')
    const listed = await fleet(['flags'])
    assert.match(listed.out, /^embeddings +off +embedding closed +bea +\S+ +too dear/m)
    assert.match(listed.out, /^search_index +on +opensearch closed +- +-/m)
    const [first] = JSON.parse((await fleet(['flags', '--json'])).out)
    assert.deepEqual([first.name, first.enabled, first.reason], ['embeddings', false, 'too dear'])
  })

  test('says what is right when it is asked wrongly', async () => {
    const cases: [string[], RegExp][] = [
      [['flags:set', 'nothing', 'off', '--reason', 'x'], /known: embeddings, search_index/],
      [['flags:set', 'embeddings', 'maybe', '--reason', 'x'], /known: on, off/],
      [['flags:set', 'embeddings', 'off'], /--reason must say why/],
      [['flags:set', 'embeddings', 'off', '--reason', ' '], /--reason must say why/],
    ]
    for (const [words, right] of cases) {
      const { code, err } = await fleet(words)
      assert.equal(code, 2)
      assert.match(err, right)
    }
    assert.deepEqual(await changes(), [])
  })
})
