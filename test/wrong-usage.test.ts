// Every command of `jobs` and `fleet`, called wrongly in every way there is: it ends with 2 before it touches anything,
// and says what was wrong and what is right.

import assert from 'node:assert/strict'
import { test } from 'node:test'
import { jobsCommands } from '../cli/jobs/commands.ts'
import { execute } from '../cli/main.ts'
import type { Context } from '../cli/program.ts'

type Program = 'jobs' | 'fleet'

function contextOf(program: Program, words: string): { context: Context; err: string[] } {
  const err: string[] = []
  const context: Context = {
    program,
    // Nothing listens there: what gets so far ends with 1.
    env: { DATABASE_URL: 'postgres://127.0.0.1:1/none' },
    argv: words.split(' ').filter(Boolean),
    say: (line) => err.push(`on stdout: ${line}`),
    warn: (line) => err.push(line),
    input: async () => '{}',
    columns: undefined,
    terminal: undefined,
    onStop: () => {},
    become: () => assert.fail('becomes a worker'),
  }
  return { context, err }
}

async function refused(program: Program, words: string, says: RegExp): Promise<void> {
  const { context, err } = contextOf(program, words)
  const code = await execute(program, context)
  const told = err.join('\n')
  assert.match(told, says, words)
  assert.doesNotMatch(told, /on stdout/, words)
  assert.equal(code, 2, `${words}: ${told}`)
}

/** Good arguments of each, which are then spoilt; and its options with wrong values. */
const id = '0194f3c0-0000-7000-8000-000000000001'
const number = (
  name: string,
  right: string,
  wrong = ['0', '-1', 'x', '1.5', '1e3', '99999999999'],
) => wrong.map((value) => [`--${name}=${value}`, `--${name} must be a whole number from ${right}`])
const queue = [['--queue=nope', 'there is no queue "nope"; known: commands, ']]
const jobs: Record<string, { good: string; wrong: string[][] }> = {
  stats: { good: '', wrong: [['nope', 'there is no queue "nope"; known: commands, ']] },
  list: {
    good: 'email',
    wrong: [
      ...number('max', '1 to 10000'),
      ['--state=lost', 'there is no state "lost"; known: ready, '],
    ],
  },
  show: { good: id, wrong: queue },
  'failed:show': { good: '', wrong: [...number('max', '1 to 10000'), ...queue] },
  'failed:retry': { good: '--all', wrong: queue },
  'failed:remove': { good: '--all --force', wrong: queue },
  send: {
    good: 'email {}',
    wrong: [
      ...number('delay', '0 to', ['-1', 'x', '1.5', '99999999999']),
      ...number('priority', '0 to', ['-1', 'x', '1.5', '99999999999']),
    ],
  },
  pause: { good: 'email', wrong: [] },
  resume: { good: 'email', wrong: [] },
  cancel: { good: id, wrong: queue },
  workers: { good: '', wrong: [] },
  'stop-workers': { good: '', wrong: number('timeout', '1 to 86400') },
}

test('every command of jobs is called wrongly here', () => {
  const names = jobsCommands
    .map((entry) => entry(contextOf('jobs', '').context).name)
    .filter((name) => name !== 'completion')
  assert.deepEqual(names, Object.keys(jobs))
})

for (const [name, { good, wrong }] of Object.entries(jobs)) {
  test(`jobs ${name} refuses what is wrong`, async () => {
    const { usage } = jobsCommands
      .map((entry) => entry(contextOf('jobs', '').context))
      .find((command) => command.name === name)!
    const call = `${name} ${good}`
    const hint = `\njobs ${name} --help tells how it is used: jobs ${name}`
    await refused('jobs', `${call} --nope`, new RegExp(`Unknown argument: nope${hint}`))
    await refused('jobs', `${call} --json=maybe`, /--json is a switch: it takes no value .*"maybe"/)
    await refused('jobs', `${name.slice(0, -1)} ${good}`, /known commands: stats, list, show/)
    if (!usage.includes('..')) {
      const optional = usage.includes('[id]') ? id : ''
      await refused('jobs', `${call} ${optional} more`, new RegExp(`more${hint}`))
    }
    if (usage.includes('<')) {
      await refused('jobs', name, new RegExp(`an argument is missing${hint}`))
    }
    if (/<queue>/.test(usage)) {
      await refused('jobs', `${name} ${good.replace('email', 'nope')}`, /no queue "nope"; known: /)
    }
    if (/[<[]id/.test(usage)) {
      const only = `${name} ${good === id ? '' : good.replace('--all', '')}`
      for (const bad of ['1234567', 'zzzzzzzz', `${id}0`]) {
        await refused('jobs', `${only} ${bad}`, /is no id of a job: it must be a UUID, or at least/)
      }
    }
    for (const [option = '', says = ''] of wrong) {
      await refused('jobs', `${call} ${option}`, new RegExp(says))
      const [flag] = option.split('=')
      if (!option.startsWith('--')) continue
      await refused('jobs', `${call} ${flag}`, new RegExp(`${flag} needs a value${hint}`))
      await refused('jobs', `${call} ${flag} 1 ${flag} 2`, new RegExp(`${flag} was given 2 times`))
    }
  })
}

test('jobs and fleet without a command, or with a misspelt one, name those there are', async () => {
  await refused('jobs', '', /which command\?\nknown commands: stats, /)
  await refused('jobs', 'failed:retyr --all', /known commands: stats, .*failed:retry/)
  await refused('fleet', '', /which command\?\nknown commands: up, run, /)
  await refused('fleet', 'urn email', /known commands: up, run, /)
  await refused('fleet', 'jobs lits email', /known commands: stats, /)
})

test('fleet run refuses limits that are none, as they were typed', async () => {
  await refused('fleet', 'run', /which worker\? known: http, /)
  await refused('fleet', 'run emial', /no worker "emial"; known: http, /)
  await refused('fleet', 'run email more', /more\nfleet run --help tells how it is used/)
  await refused('fleet', 'run email --limits=5', /Unknown argument: limits\nfleet run --help/)
  for (const name of ['limit', 'time-limit', 'failure-limit', 'concurrency', 'grace']) {
    const right = name === 'grace' ? 'a whole number, 0 or more' : 'a whole number above 0'
    for (const value of [...(name === 'grace' ? [] : ['0']), '-1', 'many', '1.5', '1e3']) {
      const says = new RegExp(`^fleet: --${name} must be ${right} \\(it is "${value}"\\)$`)
      await refused('fleet', `run email --${name}=${value}`, says)
    }
  }
  for (const value of ['0', 'much', '128X', '-1M']) {
    const says = /^fleet: --memory-limit must be a size such as 128M or 1G \(it is "/
    await refused('fleet', `run email --memory-limit=${value}`, says)
  }
  for (const name of ['limit', 'time-limit', 'memory-limit', 'failure-limit', 'concurrency']) {
    await refused('fleet', `run email --${name}`, new RegExp(`--${name} needs a value`))
    const twice = `run email --${name} 5 --${name} 6`
    await refused('fleet', twice, new RegExp(`--${name} was given 2 times: give it once`))
  }
  await refused('fleet', 'run email --once=maybe', /--once is a switch: it takes no value/)
})

test('the other commands of fleet refuse what they do not know', async () => {
  await refused('fleet', 'up --only=nope', /no worker "nope"; known: http, /)
  await refused('fleet', 'up --only', /--only needs a value/)
  await refused('fleet', 'up --only email --only http', /--only was given 2 times: give it once/)
  for (const name of ['up', 'migrate', 'check', 'demo']) {
    const hint = `\nfleet ${name} --help tells how it is used`
    await refused('fleet', `${name} more`, new RegExp(`more${hint}`))
    await refused('fleet', `${name} --nope`, new RegExp(`nope${hint}`))
  }
  await refused('fleet', 'bench nope', /there is no bench "nope"; known: /)
})

test('a database that is away is named, without its password, with what names it', async () => {
  for (const [program, words] of [
    ['jobs', 'stats'],
    ['fleet', 'migrate'],
  ] as const) {
    const { context, err } = contextOf(program, words)
    const env = { DATABASE_URL: 'postgres://me:hidden@127.0.0.1:1/none' }
    assert.equal(await execute(program, { ...context, env }), 1)
    assert.match(err.join(), /Postgres at me@127\.0\.0\.1:1\/none does not answer .*DATABASE_URL/)
    assert.doesNotMatch(err.join(), /hidden/)
  }
})
