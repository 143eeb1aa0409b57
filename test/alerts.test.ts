// The alerts and the operator's handbook: Prometheus's own tool raises each alert in a fleet that is unwell and none in
// one that is well, every metric is one of docs/metrics.md, every alert has its part of the handbook, and the handbook
// names commands that there are.

import assert from 'node:assert/strict'
import { spawnSync } from 'node:child_process'
import { existsSync, globSync, readFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { describe, test } from 'node:test'
import { parse } from 'yaml'
import { programs } from '../cli/main.ts'
import type { Context } from '../cli/program.ts'
import { workers } from '../cli/workers.ts'
import { exitCodes } from '../workers/worker.ts'
import { missing } from './programs.ts'
import { metricsOf } from './promql.ts'

const root = join(import.meta.dirname, '..')
const read = (path: string) => readFileSync(join(root, path), 'utf8')
const folder = join(root, 'deploy', 'prometheus')

type Rule = { alert: string; expr: string; labels: object; annotations: Record<string, string> }
const { groups } = parse(read('deploy/prometheus/alerts.yml')) as { groups: { rules: Rule[] }[] }
const rules = groups.flatMap((group) => group.rules)
const handbook = read('docs/operations.md')

describe('to Prometheus', { skip: missing('promtool', 'prometheus') }, () => {
  if (missing('promtool', 'prometheus')) return
  const promtool = (...words: string[]) => {
    const { status, stdout, stderr } = spawnSync('promtool', words, {
      cwd: folder,
      encoding: 'utf8',
    })
    return { status, said: stdout + stderr }
  }

  test('the rules are in order, and raise what they should', () => {
    const checked = promtool('check', 'rules', 'alerts.yml')
    assert.equal(checked.status, 0, checked.said)
    const tested = promtool('test', 'rules', 'alerts.test.yml')
    assert.equal(tested.status, 0, tested.said)
  })
})

test('every alert is raised in the rules’ own test', () => {
  const raised = [...read('deploy/prometheus/alerts.test.yml').matchAll(/alertname="(\w+)"/g)]
  assert.deepEqual(
    raised.map(([, name]) => name),
    rules.map(({ alert }) => alert),
  )
})

test('every metric of a rule is one of docs/metrics.md, and what that page calls worth an alert has one', () => {
  const page = read('docs/metrics.md')
  const known = new Set([...page.matchAll(/^\| `(\w+)` \|/gm)].map(([, name]) => name))
  const asked = new Set(
    rules.flatMap(({ expr }) => metricsOf(expr)).map((name) => name.replace(/_count$/, '')),
  )
  for (const name of asked) assert.ok(known.has(name), `no worker serves ${name}`)
  const [, worth = ''] = /^Worth an alert: ((?:.+\n)+)/m.exec(page) ?? []
  const named = [...worth.matchAll(/`([^`]+)`/g)].flatMap(([, expr = '']) => metricsOf(expr))
  assert.ok(named.length > 8)
  for (const name of named.filter((one) => known.has(one))) {
    assert.ok(asked.has(name), `deploy/prometheus/alerts.yml has no alert of ${name}`)
  }
})

test('every alert leads to its part of the handbook, and every part belongs to an alert', () => {
  const [, alerts = ''] = /\n## Alerts\n([\s\S]*?)\n## /.exec(handbook) ?? []
  const parts = [...alerts.matchAll(/^### (.+)$/gm)].map(([, title]) => title as string)
  assert.deepEqual(
    parts,
    rules.map(({ alert }) => alert),
  )
  for (const { alert, annotations } of rules) {
    assert.equal(annotations.runbook_url, `docs/operations.md#${alert.toLowerCase()}`)
    assert.ok(annotations.summary && annotations.description)
  }
})

/** Commands of a program, by name. */
const commandsOf = (program: 'fleet' | 'jobs'): Set<string> =>
  new Set(
    programs[program].map(
      (entry) => entry({ program, argv: [], env: {} } as unknown as Context).name,
    ),
  )

test('the documents name commands, workers and files that there are', () => {
  const [fleet, jobs] = [commandsOf('fleet'), commandsOf('jobs')]
  const names = new Set(workers.map(({ name }) => name))
  for (const page of ['README.md', ...globSync('docs/*.md', { cwd: root })]) {
    const text = read(page)
    for (const [, words = ''] of text.matchAll(/(?:npx fleet|cli\/fleet\.js) ([\w:<>. -]+)/g)) {
      const [command = '', next = ''] = words.split(' ')
      if (command.startsWith('-')) continue
      assert.ok(fleet.has(command), `${page}: there is no fleet ${command}`)
      if (command === 'jobs') assert.ok(jobs.has(next), `${page}: there is no jobs ${next}`)
      if (command === 'run' && /^\w/.test(next))
        assert.ok(names.has(next), `${page}: no worker ${next}`)
    }
    for (const [, path = ''] of text.matchAll(/\]\(([^)#:]+)(?:#[^)]*)?\)/g)) {
      assert.ok(existsSync(join(root, dirname(page), path)), `${page} leads to ${path}`)
    }
    for (const [path] of text.matchAll(/\bdeploy\/[\w./@-]*\w/g)) {
      // Made by whoever deploys.
      if (/\/(secrets|mine)\b/.test(path)) continue
      assert.ok(existsSync(join(root, path)), `${page} tells of ${path}`)
    }
  }
})

test('the handbook has the exit codes of the workers, and who may be multiplied', () => {
  const [, table = ''] = /\n\| exit \|.*\n([\s\S]*?)\n\n/.exec(handbook) ?? []
  const told = [...table.matchAll(/^\| (\d+) \|/gm)].map(([, code]) => Number(code))
  assert.deepEqual(told, Object.values(exitCodes))
  const [, scale = ''] = /\n## Scale\n([\s\S]*?)\n## /.exec(handbook) ?? []
  for (const { name } of workers) assert.ok(scale.includes(`\`${name}\``), name)
})
