// Every comparison, one after the other on an otherwise idle machine; then one table of all, and the report: docs/benchmarks.md
// with its pictures. Usage: fleet bench all [--quick] [--only jobs,holds] [--write]. --quick: minutes instead of an hour, for
// a look; without --write the report is only printed as a table, with --only the others' last figures stay in it. Exit 1 when a bench found something wrong (lost, twice,
// out of order); a ratio that was missed is told, and is no fault.

import { spawn } from 'node:child_process'
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { loadavg, tmpdir } from 'node:os'
import { join } from 'node:path'
import { parseArgs } from 'node:util'
import { table } from '../cli/table.ts'
import { benchOf, here, type Run, toReport, whole } from './report/page.ts'
import { isReached, type Result, ratioOf } from './report/results.ts'

const { values: options } = parseArgs({
  options: {
    quick: { type: 'boolean', default: false },
    only: { type: 'string' },
    write: { type: 'boolean', default: false },
  },
})

type Planned = { name: string; args: string[]; quick: string[] }

const plan: Planned[] = [
  {
    name: 'jobs',
    args: ['--jobs', '60000', '--rounds', '3'],
    quick: ['--jobs', '8000', '--rounds', '1'],
  },
  { name: 'holds', args: [], quick: ['--seconds', '3', '--connections', '64'] },
  {
    name: 'outbox',
    args: ['--full', '--rounds', '2'],
    quick: ['--events', '5000', '--rounds', '1'],
  },
  {
    name: 'loader',
    args: [],
    quick: ['--rows', '100000', '--rounds', '1', '--seconds', '3', '--sources', '100'],
  },
  { name: 'email', args: [], quick: ['--jobs', '1500'] },
  { name: 'push', args: [], quick: ['--devices', '10000'] },
  {
    name: 'waitingroom',
    args: [],
    quick: [
      '--people',
      '10000',
      '--fair',
      '2000',
      '--seconds',
      '10',
      '--herd',
      '2000',
      '--crowds',
      '2',
      '--servers',
      '2',
    ],
  },
  { name: 'items', args: ['--full'], quick: ['--items', '2000'] },
  {
    name: 'outage',
    args: ['--minutes', '10', '--events', '500'],
    quick: ['--minutes', '0.3', '--events', '300'],
  },
]

const root = join(import.meta.dirname, '..')
const folder = mkdtempSync(join(tmpdir(), 'flotilla-bench-'))

async function runOne({ name, args, quick }: Planned): Promise<Run> {
  const given = options.quick ? quick : args
  const command = ['fleet bench', name, ...given].join(' ')
  console.log(`\n── ${command}\n`)
  const file = join(folder, `${name}.jsonl`)
  writeFileSync(file, '')
  const [load = 0] = loadavg()
  const begun = performance.now()
  const child = spawn(process.execPath, [join(root, 'bench', `${name}.ts`), ...given], {
    stdio: ['ignore', 'pipe', 'inherit'],
    env: { ...process.env, BENCH_RESULTS: file },
  })
  const forward = (signal: NodeJS.Signals) => void child.kill(signal)
  process.on('SIGINT', forward).on('SIGTERM', forward)
  let said = ''
  for await (const chunk of child.stdout.setEncoding('utf8') as AsyncIterable<string>) {
    process.stdout.write(chunk)
    said = (said + chunk).slice(-2000)
  }
  const exit =
    child.exitCode ??
    (await new Promise<number>((resolve) => child.once('exit', (code) => resolve(code ?? 1))))
  process.off('SIGINT', forward).off('SIGTERM', forward)
  const lines = readFileSync(file, 'utf8').split('\n').filter(Boolean)
  return {
    command,
    on: here(),
    load,
    seconds: (performance.now() - begun) / 1000,
    exit,
    results: lines.map((line) => JSON.parse(line) as Result),
    said: said.trim().split('\n').at(-1) ?? '',
  }
}

function summary(runs: readonly Run[]): string[] {
  const rows = runs.flatMap(({ results }) =>
    results.flatMap((result) =>
      result.figures.map((figure) => [
        result.title.slice(0, 52),
        figure.name,
        `${whole(figure.value)} ${result.unit}`,
        ratioOf(result, figure)?.toFixed(2) ?? '',
        { true: 'reached', false: 'NOT reached', undefined: '' }[
          String(isReached(result, figure)) as 'true'
        ],
      ]),
    ),
  )
  return table(['what', 'who', 'figure', 'of the peer’s', 'target'], rows)
}

const only = options.only?.split(',')
const unknown = only?.filter((name) => !plan.some((one) => one.name === name)) ?? []
if (unknown.length > 0) {
  console.error(
    `no such bench: ${unknown.join(', ')}; there are ${plan.map(({ name }) => name).join(', ')}`,
  )
  process.exit(2)
}
const runs: Run[] = []
try {
  for (const one of plan) if (only?.includes(one.name) ?? true) runs.push(await runOne(one))
} finally {
  rmSync(folder, { recursive: true, force: true })
}
console.log(`\n${summary(runs).join('\n')}`)
if (options.write) {
  const to = join(root, 'docs', 'benchmarks')
  const kept = join(to, 'runs.json')
  const before: Run[] = existsSync(kept) ? JSON.parse(readFileSync(kept, 'utf8')) : []
  const all = plan.flatMap(({ name }) => {
    const isIts = (run: Run) => benchOf(run) === name
    return runs.find(isIts) ?? before.find(isIts) ?? []
  })
  const { page, pictures } = toReport(all)
  rmSync(to, { recursive: true, force: true })
  mkdirSync(to)
  writeFileSync(kept, `${JSON.stringify(all, null, 1)}\n`)
  writeFileSync(join(root, 'docs', 'benchmarks.md'), page)
  for (const [name, picture] of pictures) writeFileSync(join(to, name), picture)
  console.log('\nwritten: docs/benchmarks.md')
}
const wrong = runs.filter(({ exit }) => exit !== 0)
for (const { command, said } of wrong) console.log(`${command}: ${said}`)
if (wrong.length > 0) process.exitCode = 1
