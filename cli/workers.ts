// The workers of the fleet: the one list that `fleet up`, `run` and `check` go by, with the V8 flags each runs under.

import { join } from 'node:path'
import { ConfigError, type Environment, readConfig } from '../workers/config.ts'
import { emailSettings } from '../workers/email/config.ts'
import { expirySettings } from '../workers/expiry/config.ts'
import { readHttpConfig } from '../workers/http/config.ts'
import { inboxSettings } from '../workers/inbox/config.ts'
import { outboxSettings } from '../workers/outbox/config.ts'

export type Worker = {
  name: string
  /** One line for people. */
  purpose: string
  flags: readonly string[]
  /** Reads its settings. @throws ConfigError */
  read(env: Environment): unknown
}

/** A worker that waits most of its time: a small heap before speed. Not for the API, which answers people. */
const lean = ['--optimize-for-size', '--max-semi-space-size=1']

export const workers: readonly Worker[] = [
  { name: 'http', purpose: 'the API', flags: [], read: readHttpConfig },
  {
    name: 'outbox',
    purpose: 'relays domain events to the broker',
    flags: lean,
    read: (env) => readConfig(outboxSettings, env),
  },
  {
    name: 'inbox',
    purpose: 'turns domain events into jobs',
    flags: lean,
    read: (env) => readConfig(inboxSettings, env),
  },
  {
    name: 'email',
    purpose: 'sends mails',
    flags: lean,
    read: (env) => readConfig(emailSettings, env),
  },
  {
    name: 'expiry',
    purpose: 'frees holds whose time is over',
    flags: lean,
    read: (env) => readConfig(expirySettings, env),
  },
]

export const root = join(import.meta.dirname, '..')

export const mainOf = ({ name }: Worker): string => join(root, 'workers', name, 'main.ts')

/** Each fault once, with the workers that have it. */
export function allFaults(chosen: readonly Worker[], env: Environment): string[] {
  const byFault = new Map<string, string[]>()
  for (const worker of chosen) {
    for (const fault of faultsOf(worker, env)) {
      byFault.set(fault, [...(byFault.get(fault) ?? []), worker.name])
    }
  }
  return [...byFault].map(([fault, names]) =>
    names.length === chosen.length ? fault : `${fault} (${names.join(', ')})`,
  )
}

function faultsOf({ read }: Worker, env: Environment): string[] {
  try {
    read(env)
    return []
  } catch (error) {
    if (error instanceof ConfigError) return error.faults
    throw error
  }
}
