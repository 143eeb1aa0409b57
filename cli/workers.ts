// The workers of the fleet: the one list that `fleet up`, `run` and `check` go by, with the V8 flags each runs under.

import { join } from 'node:path'
import { ConfigError, type Environment, readConfig, type Settings } from '../workers/config.ts'

export type WorkerName = 'http' | 'outbox' | 'inbox' | 'email' | 'expiry'

export type Worker = {
  name: WorkerName
  /** One line for people. */
  purpose: string
  flags: readonly string[]
}

/** A worker that waits most of its time: a small heap before speed. Not for the API, which answers people. */
const lean = ['--optimize-for-size', '--max-semi-space-size=1']

export const workers: readonly Worker[] = [
  { name: 'http', purpose: 'the API', flags: ['--max-semi-space-size=16'] },
  { name: 'outbox', purpose: 'relays domain events to the broker', flags: lean },
  { name: 'inbox', purpose: 'turns domain events into jobs', flags: lean },
  { name: 'email', purpose: 'sends mails', flags: lean },
  { name: 'expiry', purpose: 'frees holds whose time is over', flags: lean },
]

export const root = join(import.meta.dirname, '..')

export const mainOf = ({ name }: Worker): string => join(root, 'workers', name, 'main.ts')

/** The faults of a worker's settings; none when they are good. */
export async function faultsOf({ name }: Worker, env: Environment): Promise<string[]> {
  const module: Record<string, unknown> = await import(`../workers/${name}/config.ts`)
  const title = name.charAt(0).toUpperCase() + name.slice(1)
  // A worker whose settings have rules between them brings its own reader.
  const read = module[`read${title}Config`] as ((env: Environment) => unknown) | undefined
  try {
    if (read) read(env)
    else readConfig(module[`${name}Settings`] as Settings, env)
    return []
  } catch (error) {
    if (error instanceof ConfigError) return error.faults
    throw error
  }
}

/** Each fault once, with the workers that have it. */
export async function allFaults(chosen: readonly Worker[], env: Environment): Promise<string[]> {
  const byFault = new Map<string, string[]>()
  for (const worker of chosen) {
    for (const fault of await faultsOf(worker, env)) {
      byFault.set(fault, [...(byFault.get(fault) ?? []), worker.name])
    }
  }
  return [...byFault].map(([fault, names]) =>
    names.length === chosen.length ? fault : `${fault} (${names.join(', ')})`,
  )
}
