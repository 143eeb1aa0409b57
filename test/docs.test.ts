// The documents as a whole: each is reached from the README, no link leads nowhere, every worker has its page, and the
// architecture knows every table and process. What single pages say is held by the tests of their subject.

import assert from 'node:assert/strict'
import { existsSync, globSync, readFileSync } from 'node:fs'
import { dirname, join, normalize } from 'node:path'
import { test } from 'node:test'
import { workers } from '../cli/workers.ts'

const root = join(import.meta.dirname, '..')
const read = (path: string) => readFileSync(join(root, path), 'utf8')
const pages = ['README.md', 'AGENTS.md', ...globSync('docs/*.md', { cwd: root })]
const withoutCode = (text: string) => text.replaceAll(/^```.*?^```/gms, '')

/** As GitHub makes them of headings. */
const anchorsOf = (text: string): string[] =>
  [...withoutCode(text).matchAll(/^#+ (.*)$/gm)].map(([, heading = '']) =>
    heading
      .toLowerCase()
      .replaceAll(/[^\p{L}\p{N}_ -]/gu, '')
      .replaceAll(' ', '-'),
  )

/** Of a page: where its links to our own files lead. */
const linksOf = (page: string) =>
  [...withoutCode(read(page)).matchAll(/\]\(([^)\s]+)\)/g)]
    .map(([, to = '']) => to)
    .filter((to) => !/^[a-z]+:/.test(to))
    .map((to) => {
      const [file = '', anchor] = to.split('#')
      return { to, path: file === '' ? page : normalize(join(dirname(page), file)), anchor }
    })

test('no link leads nowhere', () => {
  const broken = pages.flatMap((page) =>
    linksOf(page)
      .filter(({ path, anchor }) => {
        if (!existsSync(join(root, path))) return true
        return anchor !== undefined && !anchorsOf(read(path)).includes(anchor)
      })
      .map(({ to }) => `${page}: ${to}`),
  )
  assert.deepEqual(broken, [])
  assert.ok(pages.flatMap(linksOf).length > 50, 'the links were found')
})

test('what is to be run where nobody may be there to be asked names the jobs', () => {
  const asking = pages.flatMap((page) =>
    [...read(page).matchAll(/^ {4}.*failed:(?:retry|remove)(?! <id| --all).*$/gm)].map(String),
  )
  assert.deepEqual(asking, [])
})

test('the README leads to every page', () => {
  const linked = new Set(linksOf('README.md').map(({ path }) => path))
  assert.deepEqual(
    pages.filter((page) => page !== 'README.md' && !linked.has(page)),
    [],
  )
})

test('the README has a row for every worker, and in it the link to its page', () => {
  const rows = read('README.md').split('\n')
  const lacking = workers.filter(
    ({ name }) => !rows.some((row) => row.startsWith(`| [\`${name}\`](docs/`)),
  )
  assert.deepEqual(
    lacking.map(({ name }) => name),
    [],
  )
})

test('the architecture names every worker and every table', () => {
  const words = read('docs/architecture.md')
  const picture = read('docs/architecture.svg')
  const tables = globSync('db/migrations/*.sql', { cwd: root })
    .flatMap((path) => [...read(path).matchAll(/^create (?:unlogged )?table (\w+)/gm)])
    .map(([, name = '']) => name)
    // Thirty-two that hold nothing.
    .filter((name) => !/^turn_\d/.test(name))
  assert.ok(tables.length > 40, 'the tables were found')
  assert.deepEqual(
    tables.filter((name) => !words.includes(`\`${name}\``)),
    [],
  )
  assert.deepEqual(
    workers.filter(({ name }) => !words.includes(`\`${name}\``) || !picture.includes(`>${name}<`)),
    [],
  )
})
