// The systemd units: systemd's own checker has nothing against them, they are hardened, they name every worker of the
// fleet, and what they start becomes the worker with its secrets from files.

import assert from 'node:assert/strict'
import { execFileSync, spawnSync } from 'node:child_process'
import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, describe, test } from 'node:test'
import { workers } from '../cli/workers.ts'
import { exitCodes } from '../workers/worker.ts'
import { testDatabase } from './database.ts'
import { missing } from './programs.ts'
import { exited, startCommand, until } from './worker.ts'

const root = join(import.meta.dirname, '..')
const folder = join(root, 'deploy', 'systemd')
const units = readdirSync(folder).filter((name) => name !== 'start')
const read = (unit: string) => readFileSync(join(folder, unit), 'utf8')
const services = units.filter((name) => name.endsWith('.service'))

/** All values of a setting of a unit, in their order. */
const valuesOf = (unit: string, key: string): string[] =>
  [...read(unit).matchAll(new RegExp(`^${key}=(.*)$`, 'gm'))].map(([, value]) => value as string)

describe('to systemd', { skip: missing('systemd-analyze', 'systemd') }, () => {
  if (missing('systemd-analyze', 'systemd')) return
  // Where this tree lies, since the checker looks whether what is started is there.
  const copies = mkdtempSync(join(tmpdir(), 'flotilla-systemd-'))
  after(() => rmSync(copies, { recursive: true, force: true }))
  for (const unit of units) {
    writeFileSync(join(copies, unit), read(unit).replaceAll('/opt/flotilla', root))
  }
  const version = Number(
    /^systemd (\d+)/.exec(
      execFileSync('systemd-analyze', ['--version'], { encoding: 'utf8' }),
    )?.[1],
  )
  /** Those it came to know later: until then they change nothing. */
  const later = version < 254 ? /Unknown key '(RestartSteps|RestartMaxDelaySec)'/ : /^$/

  function analyze(...words: string[]): { status: number | null; said: string[] } {
    const { status, stdout, stderr } = spawnSync('systemd-analyze', words, {
      cwd: copies,
      encoding: 'utf8',
    })
    const said = `${stdout}${stderr}`.split('\n').filter((line) => line && !later.test(line))
    return { status, said }
  }

  test('every unit is in order', () => {
    for (const unit of units) {
      assert.deepEqual(analyze('verify', '--man=no', `./${unit}`), { status: 0, said: [] }, unit)
    }
  })

  test('every service is hardened: an exposure of at most 1.5', () => {
    for (const unit of services) {
      const options = ['security', '--offline=true', '--threshold=15', '--no-pager']
      const { status, said } = analyze(...options, `./${unit}`)
      assert.equal(status, 0, `${unit}: ${said.join('\n')}`)
    }
  })
})

test('the target starts every worker, expiry by its timer', () => {
  const wanted = valuesOf('flotilla.target', 'Wants')
  for (const { name } of workers) {
    const unit = name === 'expiry' ? 'flotilla-expiry.timer' : `flotilla@${name}.service`
    assert.ok(wanted.includes(unit), `deploy/systemd/flotilla.target does not want ${unit}`)
  }
  const known = new Set([
    'flotilla-migrate.service',
    'flotilla-expiry.timer',
    ...workers.map(({ name }) => `flotilla@${name}.service`),
  ])
  assert.deepEqual(
    wanted.filter((unit) => !known.has(unit)),
    [],
  )
})

test('the services differ in what they start, not in how they are confined', () => {
  const confined = services.map((unit) =>
    read(unit).split('\n# One user of its own')[1]?.split('\n\n')[0]?.trim(),
  )
  assert.equal(new Set(confined).size, 1)
  assert.match(String(confined[0]), /^NoNewPrivileges=yes$/m)
})

test('a worker is waited for as long as its grace, and left down when a restart does not mend it', () => {
  const template = 'flotilla@.service'
  const [, grace] = /--grace=(\d+)/.exec(String(valuesOf(template, 'ExecStart'))) ?? []
  assert.ok(Number(valuesOf(template, 'TimeoutStopSec')[0]) > Number(grace) + 5)
  assert.deepEqual(valuesOf(template, 'Restart'), ['always'])
  assert.deepEqual(valuesOf(template, 'RestartPreventExitStatus'), [
    `${exitCodes.usage} ${exitCodes.config}`,
  ])
  assert.deepEqual(valuesOf('flotilla-expiry.timer', 'OnUnitActiveSec'), ['30'])
})

describe('what a unit starts', () => {
  const secrets = mkdtempSync(join(tmpdir(), 'flotilla-secrets-'))
  after(() => rmSync(secrets, { recursive: true, force: true }))

  test('becomes the worker of its instance, with the secrets of its credentials', async () => {
    const { url } = await testDatabase()
    // As LoadCredential=secret:<folder> lays them down.
    writeFileSync(join(secrets, 'secret_DATABASE_URL'), `${url}\n`)
    const env = {
      PATH: process.env.PATH ?? '',
      CREDENTIALS_DIRECTORY: secrets,
      FLEET_DATA_DIR: secrets,
      METRICS_PORT: '0',
    }
    const worker = startCommand(join(folder, 'start'), ['expiry-2', '--grace=25'], env)
    await until(() => worker.output().includes('runs until it is told to stop'))
    assert.equal(worker.lines()[0]?.worker, 'expiry')
    assert.equal(worker.lines()[0]?.pid, worker.process.pid)
    worker.process.kill('SIGTERM')
    assert.equal(await exited(worker), 0, worker.output())

    const migrate = startCommand(join(folder, 'start'), ['migrate'], env)
    assert.equal(await exited(migrate), 0, migrate.output())
    assert.match(migrate.output(), /was current already/)
  })
})
