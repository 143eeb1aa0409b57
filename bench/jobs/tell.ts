// The tables of bench/jobs.ts: medians with their spread, and what ours is of the better peer's.

import { type Figure, noteResult } from '../report/results.ts'
import type { Sample } from './measure.ts'

export type Row<T> = { name: string; peer: boolean; of: T[] }

const nameWidth = 18

export function tellThroughput(title: string, rows: Row<Sample>[]): void {
  console.log(`\n${title}: jobs/s, median (lowest to highest)`)
  const rates = rows.map((row) => ({ ...row, of: row.of.map(({ perSecond }) => perSecond) }))
  noteRates(title, rates)
  for (const [i, { name, of }] of rows.entries()) {
    if (of.length === 0) {
      console.log(`  ${name.padEnd(nameWidth)}keeps no finished jobs`)
      continue
    }
    const perSecond = rates[i]?.of ?? []
    const spread = `(${whole(Math.min(...perSecond))} to ${whole(Math.max(...perSecond))})`
    const middle = (field: 'workerCpu' | 'serverCpu' | 'peakBytes') =>
      median(of.map((sample) => sample[field]))
    const cpu = `worker ${whole(middle('workerCpu'))}, server ${whole(middle('serverCpu'))} µs a job`
    const memory = `${whole(middle('peakBytes') / 2 ** 20)} MB`
    const figures = `${whole(median(perSecond)).padStart(8)} ${spread.padEnd(18)} ${cpu}, ${memory}`
    console.log(`  ${name.padEnd(nameWidth)}${figures}${ratio(rates, i, Math.max)}`)
  }
}

export function tellRates(title: string, rows: Row<number>[]): void {
  console.log(`\n${title}: jobs/s, median`)
  noteRates(title, rows)
  for (const [i, { name, of }] of rows.entries()) {
    const figure = whole(median(of)).padStart(8)
    console.log(`  ${name.padEnd(nameWidth)}${figure}${ratio(rows, i, Math.max)}`)
  }
}

export function tellLatencies(title: string, rows: Row<number>[]): void {
  console.log(`\n${title}: sent until begun, ms`)
  for (const [share, name] of [
    [0.5, 'p50'],
    [0.99, 'p99'],
  ] as const) {
    const figures = rows
      .filter(({ of }) => of.length > 0)
      .map(({ name, peer, of }) => ({
        name,
        peer,
        value: of[Math.floor(of.length * share)] ?? Number.NaN,
        target: peer ? undefined : { ratio: 1, of: 'graphile-worker' },
      }))
    noteResult({
      title: `${title}, sent until begun, ${name}`,
      unit: 'ms',
      better: 'less',
      figures,
    })
  }
  for (const [i, { name, of }] of rows.entries()) {
    const at = (share: number) => `${(of[Math.floor(of.length * share)] ?? Number.NaN).toFixed(1)}`
    const figures = `p50 ${at(0.5).padStart(6)}, p99 ${at(0.99).padStart(6)}`
    console.log(`  ${name.padEnd(nameWidth)}${figures}${ratio(rows, i, Math.min)}`)
  }
}

/** A queue that keeps its finished jobs does more for each. */
const targetOf = (name: string) => ({ ratio: name.endsWith('kept') ? 1.4 : 2 })

function noteRates(title: string, rows: readonly Row<number>[]): void {
  const figures: Figure[] = rows
    .filter(({ of }) => of.length > 0)
    .map(({ name, peer, of }) => ({
      name,
      peer,
      value: median(of),
      low: Math.min(...of),
      high: Math.max(...of),
      target: peer || title.startsWith('bulk') ? undefined : targetOf(name),
    }))
  noteResult({ title, unit: 'jobs/s', better: 'more', figures })
}

/** Of ours to the better peer. */
function ratio(rows: Row<number>[], i: number, better: (...numbers: number[]) => number): string {
  const peers = rows.filter(({ peer, of }) => peer && of.length > 0)
  const figure = better(...peers.map(({ of }) => median(of)))
  const best = peers.find(({ of }) => median(of) === figure)
  const row = rows[i]
  if (!row || row.peer || !best) return ''
  return `   ${(median(row.of) / figure).toFixed(2)} × ${best.name}`
}

const median = (numbers: number[]): number =>
  numbers.toSorted((a, b) => a - b)[numbers.length >> 1] ?? Number.NaN

const whole = (number: number): string => number.toFixed(0)
