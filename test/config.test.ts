// Settings: all faults at once, secrets that are made, kept and never told.

import assert from 'node:assert/strict'
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, test } from 'node:test'
import {
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
