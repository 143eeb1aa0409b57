// What the torture tells people at its end: what struck, what the buyers were answered, what the workers logged.

import type { Buyers } from './buyers.ts'
import type { Write } from './client.ts'
import type { Faults } from './faults.ts'
import type { Machine } from './machines.ts'

export function describeRun(
  buyers: Buyers,
  faults: Faults,
  machines: readonly Machine[],
): string[] {
  const { writes, counts } = buyers
  const errors = machines.flatMap((machine) => [...machine.errors])
  const mails = sumUp(machines.flatMap((machine) => [...machine.sent]))
  const twice = [...mails.values()].filter((times) => times > 1).length
  return [
    `${counts.sent} requests, ${counts.lost} without an answer, ${counts.busy} told to come back`,
    ...table('faults', faults.counts),
    ...table('answers', sumUp(writes.map((write) => [describe(write), 1]))),
    ...table('errors the workers logged', sumUp(errors)),
    `${mails.size} mails, ${twice} of them sent again because the worker died before it could note it`,
  ]
}

export function sumUp<K>(counts: Iterable<readonly [K, number]>): Map<K, number> {
  const sums = new Map<K, number>()
  for (const [key, count] of counts) sums.set(key, (sums.get(key) ?? 0) + count)
  return sums
}

const table = (title: string, counts: ReadonlyMap<string, number>): string[] => [
  title,
  ...[...counts].sort(([a], [b]) => a.localeCompare(b)).map(([name, n]) => `  ${n} × ${name}`),
]

const describe = ({ what, later, answer, outcome }: Write): string =>
  `${what}${later ? ' later' : ''}: ${(outcome ?? answer)?.status ?? 'none'}`
