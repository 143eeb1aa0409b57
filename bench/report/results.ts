// What a bench measured, handed to whoever gathers it (bench/all.ts): a line of JSON for each table, in the file that
// BENCH_RESULTS names. Run by itself, a bench only prints.

import { appendFileSync } from 'node:fs'

export type Figure = {
  name: string
  value: number
  /** Of several rounds, of which `value` is the median. */
  low?: number
  high?: number
  /** Somebody else's, measured in the same run. */
  peer?: boolean
  /** What is to be reached: so many times the better peer's, or that of one, or so much of the unit. Left out: only shown. */
  target?: { ratio: number; of?: string } | { value: number } | undefined
}

export type Result = {
  title: string
  unit: string
  better: 'more' | 'less'
  figures: Figure[]
}

export function noteResult(result: Result): void {
  const file = process.env.BENCH_RESULTS
  if (file) appendFileSync(file, `${JSON.stringify(result)}\n`)
}

/** The better peer's; undefined: there is none. */
export function bestPeer({ better, figures }: Result): Figure | undefined {
  const peers = figures.filter(({ peer }) => peer)
  const sorted = peers.toSorted((a, b) =>
    better === 'more' ? b.value - a.value : a.value - b.value,
  )
  return sorted[0]
}

/** Of ours to the better peer: above 1 we have more, which is good or bad by `better`. */
export function ratioOf(result: Result, figure: Figure): number | undefined {
  const peer = bestPeer(result)
  if (figure.peer || peer === undefined || peer.value === 0) return undefined
  return figure.value / peer.value
}

/** Undefined: there was no target for it. */
export function isReached(result: Result, figure: Figure): boolean | undefined {
  const { better, figures } = result
  const { target } = figure
  if (target === undefined) return undefined
  const peer = 'of' in target ? figures.find(({ name }) => name === target.of) : bestPeer(result)
  const [is, wanted] =
    'ratio' in target
      ? [figure.value / (peer?.value ?? Number.NaN), target.ratio]
      : [figure.value, target.value]
  return better === 'more' ? is >= wanted : is <= wanted
}
