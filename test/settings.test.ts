// docs/settings.md: written from the workers' config.ts, and with every setting that the code reads.

import assert from 'node:assert/strict'
import { globSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { test } from 'node:test'
import { listSettings, settingsPage, settingsText } from '../cli/exportSettings.ts'
import { workers } from '../cli/workers.ts'
import { errorCodes } from '../domain/errors.ts'

const root = join(import.meta.dirname, '..')
const listed = listSettings()

test('docs/settings.md is as the code has it: node cli/exportSettings.ts writes it', () => {
  assert.equal(readFileSync(settingsPage, 'utf8'), settingsText())
})

test('has every setting of every config.ts, and no other', () => {
  const written = globSync('workers/**/{config,*[sS]ettings}.ts', { cwd: root }).flatMap((path) =>
    [...readFileSync(join(root, path), 'utf8').matchAll(/^ {2}([A-Z][A-Z0-9_]+):/gm)].map(
      ([, name]) => name as string,
    ),
  )
  assert.ok(written.length > 30)
  assert.deepEqual(listed.map(({ name }) => name).sort(), [...new Set(written)].sort())
})

test('names who reads a setting', () => {
  const by = (name: string) => listed.find((one) => one.name === name)?.by
  assert.deepEqual(
    by('DATABASE_URL'),
    workers.map(({ name }) => name),
  )
  assert.deepEqual(by('RESERVATION_TTL'), ['http'])
  assert.match(settingsText(), /^\| `EXPIRY_BATCH` \| expiry \| `200` \| .+ \|$/m)
  assert.match(settingsText(), /^\| `INTERNAL_AUTH_SECRET` \| .+ \| \*made\* \| \*secret\*: /m)
})

test('what tells people of a setting elsewhere names one that there is', () => {
  const names = new Set<string>([...listed.map(({ name }) => name), ...errorCodes])
  // Of Postgres, npm, Node, the tests and the tools around; and the forms that stand for names.
  const others =
    /^(FLOTILLA_|TEST_|PG|NODE_(COMPILE|OPTIONS)|NAME_FILE|NAME$|SASO_|SO_|GOMAXPROCS|MALLOC_ARENA_MAX)/
  for (const page of globSync('{README,AGENTS,docs/*}.md', { cwd: root })) {
    const text = readFileSync(join(root, page), 'utf8')
    for (const [, name = ''] of text.matchAll(/`([A-Z][A-Z0-9]*_[A-Z0-9_]+)(?:=[^`]*)?`/g)) {
      const setting = names.has(name) ? name : name.replace(/_FILE$/, '')
      assert.ok(names.has(setting) || others.test(name), `${page} tells of ${name}`)
    }
  }
})
