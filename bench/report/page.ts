// The report of all benches as a page: a table and a picture for each result, with what was to be reached and whether it
// was, and on what machine. Written as it came out: what was missed says so.

import { availableParallelism, cpus, totalmem } from 'node:os'
import { drawBars } from './bars.ts'
import { bestPeer, type Figure, isReached, type Result, ratioOf } from './results.ts'

export type Run = {
  /** As it is typed: `fleet bench jobs`. */
  command: string
  /** The day, and what it ran on. */
  on: string
  /** The machine's, when it began. */
  load: number
  seconds: number
  /** 0: it found nothing wrong. */
  exit: number
  results: Result[]
  /** Its last line, when it failed. */
  said: string
}

export type Report = { page: string; pictures: Map<string, string> }

/** The name of the bench. */
export const benchOf = ({ command }: Pick<Run, 'command'>): string => command.split(' ')[2] ?? ''

export function here(): string {
  const cores = `${availableParallelism()} cores (${cpus()[0]?.model.trim() ?? 'unknown'})`
  const memory = `${Math.round(totalmem() / 2 ** 30)} GiB`
  return `${new Date().toISOString().slice(0, 10)}, ${cores}, ${memory}, Node ${process.version}, Postgres with fsync`
}

export function toReport(runs: readonly Run[]): Report {
  const pictures = new Map<string, string>()
  const parts = runs.map((run) => toPart(run, pictures))
  const page = `# Benchmarks

Written by \`npx fleet bench all\`: each of ours beside its peer in the same run, on one machine. Figures of another day or
machine differ, ratios less so. Clients, servers and peers share the machine.

${parts.join('\n')}`
  return { page, pictures }
}

function toPart(
  { command, on, load, seconds, exit, results, said }: Run,
  pictures: Map<string, string>,
) {
  const took = `${on}; load ${load.toFixed(1)} before it, ${Math.round(seconds)} s`
  const fault = exit === 0 ? '' : `\nIt ended with: ${said}\n`
  const tables = results.map((result, i) => {
    const name = `${benchOf({ command })}-${i + 1}.svg`
    pictures.set(name, drawBars(result))
    return toTable(result, name)
  })
  return `## \`${command}\`\n\n${took}\n${fault}\n${tables.join('\n')}`
}

function toTable(result: Result, picture: string): string {
  const { title, unit, better, figures } = result
  const peer = bestPeer(result)
  const lines = figures.map((figure) => {
    const ratio = ratioOf(result, figure)
    const spread =
      figure.low === undefined ? '' : ` (${whole(figure.low)} to ${whole(figure.high ?? 0)})`
    const beside = ratio === undefined ? '' : `${ratio.toFixed(2)} ×`
    return `| ${figure.name} | ${whole(figure.value)}${spread} | ${beside} | ${wanted(result, figure)} |`
  })
  return `### ${title}

${better === 'more' ? 'More is better.' : 'Less is better.'}

| | ${unit} | ${peer === undefined ? '' : `beside ${peer.name}`} | target |
| --- | ---: | ---: | --- |
${lines.join('\n')}

![${title}](benchmarks/${picture})
`
}

function wanted(result: Result, figure: Figure): string {
  const { target } = figure
  if (target === undefined) return ''
  const sign = result.better === 'more' ? '≥' : '≤'
  const of = 'of' in target ? ` ${target.of}` : ''
  const what = 'ratio' in target ? `${target.ratio} ×${of}` : whole(target.value)
  return `${sign} ${what}: ${isReached(result, figure) ? 'reached' : '**not reached**'}`
}

export function whole(value: number): string {
  if (!Number.isFinite(value)) return '–'
  const digits = Math.abs(value) >= 100 ? 0 : Math.abs(value) >= 10 ? 1 : 2
  return value.toLocaleString('en', { maximumFractionDigits: digits })
}
