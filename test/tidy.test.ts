// Holds the layout: who may import whom, where SQL and the environment may be read, how a file opens. What stands
// here is the table of AGENTS.md; whoever wants to break it changes it here first.

import assert from 'node:assert/strict'
import { globSync, readFileSync } from 'node:fs'
import { dirname, join, normalize } from 'node:path'
import { test } from 'node:test'

const root = join(import.meta.dirname, '..')
const folders = ['domain', 'db', 'redis', 'consumer', 'workers', 'cli', 'test', 'bench']
// bench/peers has packages of its own.
const paths = globSync(`{${folders}}/**/*.{ts,js,sql}`, {
  cwd: root,
  exclude: (name) => name === 'node_modules' || name.endsWith('/node_modules'),
})
const files = paths.map((path) => ({ path, text: readFileSync(join(root, path), 'utf8') }))

/** `workers/http/…` is `workers/http`, `workers/config.ts` is `workers`, `db/migrations/…` is `db`. */
const areaOf = (path: string): string =>
  /^workers\/[^/]+(?=\/)/.exec(path)?.[0] ?? path.slice(0, path.indexOf('/'))

/** What an area may import: areas, `npm`, `node`; and packages it may not. */
function allowed(area: string): { from: string[]; never: string[] } {
  const library = ['npm', 'node', 'domain']
  // What other services take has nothing of ours in it.
  if (area === 'domain' || area === 'consumer') return { from: [area], never: [] }
  if (area === 'db') return { from: [area, ...library], never: ['pino', 'ioredis'] }
  if (area === 'redis') return { from: [area, ...library], never: ['pino', 'pg', 'kysely'] }
  const never = ['pg', 'kysely', 'pg-boss', 'ioredis']
  if (area === 'workers') return { from: [area, ...library, 'db'], never }
  if (area.startsWith('workers/')) {
    return { from: [area, 'workers', ...library, 'db', 'redis'], never }
  }
  const workers = files.map(({ path }) => areaOf(path)).filter((one) => one.startsWith('workers'))
  const from = [...library, 'db', 'redis', 'consumer', 'cli', ...workers]
  return { from: area === 'cli' ? from : [...from, 'test', 'bench'], never: [] }
}

const statement =
  /^(?:import|export|\}).*\bfrom '([^']+)'$|^import '([^']+)'$|\bimport\('([^']+)'\)/gm
const imports = files.flatMap(({ path, text }) =>
  [...text.matchAll(statement)].map((found) => ({ path, to: found.slice(1).join('') })),
)

function offences(of: (file: { path: string; text: string }) => boolean): string[] {
  return files.filter(of).map(({ path }) => path)
}

test('every folder imports only what it may', () => {
  assert.ok(imports.length > 100, 'the imports were found')
  const wrong = imports.filter(({ path, to }) => {
    const { from, never } = allowed(areaOf(path))
    if (to.startsWith('.')) return !from.includes(areaOf(normalize(join(dirname(path), to))))
    const name = to.split('/')[0] ?? ''
    return !from.includes(to.startsWith('node:') ? 'node' : 'npm') || never.includes(name)
  })
  assert.deepEqual(
    wrong.map(({ path, to }) => `${path} imports ${to}`),
    [],
  )
})

test('SQL is built in db alone', () => {
  const free = /^(db|test|bench)\//
  assert.deepEqual(
    offences(({ path, text }) => !free.test(path) && /\bsql(<[^>]*>)?`/.test(text)),
    [],
  )
})

test('the environment is read by main files, and by what people and tests start', () => {
  const free = /^(cli|test|bench)\/|^workers\/[^/]+\/main\.ts$/
  assert.deepEqual(
    offences(({ path, text }) => !free.test(path) && /\bprocess\.env\b/.test(text)),
    [],
  )
})

test('a file opens by saying what it is for', () => {
  assert.deepEqual(
    offences(({ text }) => !/^(#!.*\n)?(\/\/|--) \S/.test(text)),
    [],
  )
})

test('there is no drawer for odds and ends, and no barrel', () => {
  const drawer = /(^|\/)(utils?|common|services?|types|helpers?|lib|misc|index)(\.ts$|\/)/
  assert.deepEqual(
    offences(({ path }) => drawer.test(path)),
    [],
  )
})
