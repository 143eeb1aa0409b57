// The workers of the fleet: the one list that `fleet up`, `run` and `check` go by, with the V8 flags each runs under.

import { join } from 'node:path'
import { ConfigError, type Environment, readConfig } from '../workers/config.ts'
import { readEmailConfig } from '../workers/email/config.ts'
import { expirySettings } from '../workers/expiry/config.ts'
import { readHttpConfig } from '../workers/http/config.ts'
import { inboxSettings } from '../workers/inbox/config.ts'
import { intakeSettings } from '../workers/intake/config.ts'
import { readLoaderConfig } from '../workers/loader/config.ts'
import { outboxSettings } from '../workers/outbox/config.ts'
import { readPushConfig } from '../workers/push/config.ts'

export type Worker = {
  name: string
  /** One line for people. */
  purpose: string
  memory: keyof typeof flags
  /** Reads its settings. @throws ConfigError */
  read(env: Environment): unknown
}

/** V8's. A worker that waits most of its time has a small heap before speed; the API answers people. */
const flags = {
  small: ['--optimize-for-size', '--max-semi-space-size=1'],
  /** Pages of events come and go: a young space of 1 MB is collected all the time. */
  steady: ['--optimize-for-size', '--max-semi-space-size=4'],
  fast: [],
} as const

export const workers: readonly Worker[] = [
  { name: 'http', purpose: 'the API', memory: 'fast', read: readHttpConfig },
  {
    name: 'outbox',
    purpose: 'relays domain events to the broker',
    memory: 'small',
    read: (env) => readConfig(outboxSettings, env),
  },
  {
    name: 'inbox',
    purpose: 'turns domain events into jobs',
    memory: 'small',
    read: (env) => readConfig(inboxSettings, env),
  },
  {
    name: 'email',
    purpose: 'sends mails',
    memory: 'small',
    read: readEmailConfig,
  },
  {
    name: 'expiry',
    purpose: 'frees holds whose time is over',
    memory: 'small',
    read: (env) => readConfig(expirySettings, env),
  },
  { name: 'push', purpose: 'sends push messages', memory: 'small', read: readPushConfig },
  {
    name: 'intake',
    purpose: 'moves jobs from Redis lists into the job table',
    memory: 'small',
    read: (env) => readConfig(intakeSettings, env),
  },
  {
    name: 'loader',
    purpose: 'loads events from remote sources',
    memory: 'steady',
    read: readLoaderConfig,
  },
]

export const root = join(import.meta.dirname, '..')

/**
 * glibc's. Replies of many sizes come and go: what is large is given back to the system at once, instead of leaving holes.
 */
const pagesGoBack = { MALLOC_MMAP_THRESHOLD_: '65536', MALLOC_TRIM_THRESHOLD_: '131072' }

/**
 * How a worker is started: arguments for node, and what its environment has besides the settings. Compiled code is kept
 * in the data folder: a start takes half the time and, as no TypeScript is stripped, 25 MB less. V8 refuses code that
 * was compiled under other flags, so each set has its own. One arena of malloc's instead of one a core saves 4 MB.
 */
export function startOf(worker: Worker, env: Environment, dataDir: string) {
  const main = join(root, 'workers', worker.name, 'main.ts')
  return {
    args: [...flags[worker.memory], main],
    env: {
      MALLOC_ARENA_MAX: '1',
      ...(worker.memory === 'steady' && pagesGoBack),
      NODE_COMPILE_CACHE: join(dataDir, 'compiled', worker.memory),
      ...env,
    },
  }
}

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
