// Settings: all faults at once, secrets that are made, kept and never told.

import assert from 'node:assert/strict'
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, test } from 'node:test'
import {
  brokerSettings,
  ConfigError,
  generatedSecret,
  int,
  oneOf,
  readConfig,
  text,
  url,
} from '../workers/config.ts'

const folder = mkdtempSync(join(tmpdir(), 'flotilla-config-'))
after(() => rmSync(folder, { recursive: true }))

const settings = {
  SIZE: int({ doc: 'size', fallback: 3, min: 1, max: 9 }),
  MODE: oneOf({ doc: 'mode', fallback: 'a', values: ['a', 'b'] }),
  PLACE: url({ doc: 'place', schemes: ['https'] }),
  TOKEN: text({
    doc: 'token',
    secret: true,
    parse: () => {
      throw new Error('must be better')
    },
  }),
}
const secret = { SECRET: generatedSecret({ doc: 'secret' }) }
const faultsOf = (read: () => unknown) => {
  try {
    read()
  } catch (error) {
    if (error instanceof ConfigError) return error.faults
    throw error
  }
  return []
}

test('what is unset has its fallback, and an empty variable is unset', () => {
  assert.deepEqual({ ...readConfig(settings, { SIZE: '', MODE: 'b' }) }, { SIZE: 3, MODE: 'b' })
})

test('all faults are named at once, with what is right, and no secret is told', () => {
  const env = { SIZE: '12', MODE: 'c', PLACE: 'http://x', TOKEN: 'hush-hush' }
  assert.deepEqual(
    faultsOf(() => readConfig(settings, env)),
    [
      'SIZE must be a whole number from 1 to 9 (it is "12")',
      'MODE must be one of a, b (it is "c")',
      'PLACE must be a URL that begins with https:// (it is "http://x")',
      'TOKEN must be better',
    ],
  )
})

test('a secret may lie in a file', () => {
  const file = join(folder, 'given')
  writeFileSync(file, 'from-a-file-0123456789\n')
  const { SECRET } = readConfig(secret, { SECRET_FILE: file, NODE_ENV: 'production' })
  assert.equal(SECRET, 'from-a-file-0123456789')
  assert.match(
    faultsOf(() => readConfig(secret, { SECRET_FILE: join(folder, 'none') }))[0]!,
    /cannot be read from SECRET_FILE/,
  )
})

test('a secret is made once and kept, but never in production', () => {
  const env = { FLEET_DATA_DIR: join(folder, 'kept') }
  const made = readConfig(secret, env).SECRET
  assert.match(made, /^[0-9a-f]{48}$/)
  assert.equal(readConfig(secret, env).SECRET, made)
  assert.deepEqual(readdirSync(join(folder, 'kept', 'secrets')), ['SECRET'])
  assert.deepEqual(
    faultsOf(() => readConfig(secret, { ...env, NODE_ENV: 'production' })),
    ['SECRET is not set'],
  )
})

test('the empty file that a full disk left is made good', () => {
  const secrets = join(folder, 'full', 'secrets')
  mkdirSync(secrets, { recursive: true })
  writeFileSync(join(secrets, 'SECRET'), '')
  const { SECRET } = readConfig(secret, { FLEET_DATA_DIR: join(folder, 'full') })
  assert.equal(readFileSync(join(secrets, 'SECRET'), 'utf8'), SECRET)
})

test('a place that takes no secret is named', () => {
  const file = join(folder, 'a-file')
  writeFileSync(file, '')
  const [fault] = faultsOf(() => readConfig(secret, { FLEET_DATA_DIR: file }))
  assert.match(fault!, /^SECRET cannot be made and kept in .*a-file\/secrets\/SECRET: /)
})

test('a BROKER_URL that no client could use is refused by name, and its password is not told', () => {
  const read = (url: string) => () => readConfig(brokerSettings, { BROKER_URL: url })
  const bad: [string, RegExp][] = [
    ['amqp://user:pa#ss@host:5672', /^BROKER_URL must be a URL: percent-encode/],
    ['amqp://us:se%cret@127.0.0.1:1', /^BROKER_URL must be a URL: percent-encode/],
    ['amqp://host:99999', /^BROKER_URL must be a URL/],
    ['nats://a:4222,b:4222', /^BROKER_URL must name one host/],
    ['kafka://host', /^BROKER_URL must begin with amqp:/],
  ]
  for (const [url, right] of bad) {
    assert.throws(read(url), ({ faults }: ConfigError) => {
      assert.match(faults[0] ?? '', right)
      assert.doesNotMatch(faults[0] ?? '', /pa#ss|se%cret/)
      return true
    })
  }
  for (const url of [
    'amqp://guest:guest@127.0.0.1:5672/vhost?heartbeat=5',
    'amqps://a:b%23c@host',
    'tls://token@nats.example.org',
    'rediss://user:se%23cret@host:6380/1',
    'redis+sentinel://a,b:26379/master',
    'redis+cluster://a:1,[::1]:2',
  ]) {
    assert.doesNotThrow(read(url), url)
  }
})
