// The workers of the fleet: the one list that `fleet up`, `run`, `check`, the table of settings and the tests of the
// deployment go by, with the V8 flags each runs under.

import { join } from 'node:path'
import { alertSettings, readAlertConfig } from '../workers/alert/config.ts'
import { ConfigError, type Environment, readConfig, type Settings } from '../workers/config.ts'
import { emailSettings, readEmailConfig } from '../workers/email/config.ts'
import { embedSettings, readEmbedConfig } from '../workers/embed/config.ts'
import { expirySettings } from '../workers/expiry/config.ts'
import { httpSettings, readHttpConfig } from '../workers/http/config.ts'
import { inboxSettings } from '../workers/inbox/config.ts'
import { intakeSettings } from '../workers/intake/config.ts'
import { loaderSettings, readLoaderConfig } from '../workers/loader/config.ts'
import { outboxSettings } from '../workers/outbox/config.ts'
import { pushSettings, readPushConfig } from '../workers/push/config.ts'
import { searchSettings } from '../workers/search/config.ts'
import { similarSettings } from '../workers/similar/config.ts'
import { readWaitingroomConfig, waitingroomSettings } from '../workers/waitingroom/config.ts'

export type Worker = {
  name: string
  /** One line for people. */
  purpose: string
  memory: keyof typeof flags
  settings: Settings
  /** Where there are rules between its settings: reads them. @throws ConfigError */
  read?(env: Environment): unknown
  /** Where it stands, when it has a name of its own as one of several. */
  folder?: string
  /** How many of it `fleet up` starts; left out: one. */
  processes?(env: Environment): number
}

/** V8's. A worker that waits most of its time has a small heap before speed; the API answers people. */
const flags = {
  small: ['--optimize-for-size', '--max-semi-space-size=1'],
  /** Pages of events come and go: a young space of 1 MB is collected all the time. The old one grows by a fifth at once. */
  steady: ['--max-semi-space-size=4', '--heap-growing-percent=20'],
  fast: [],
  /**
   * Most of it is connections: room for new garbage beside them would double what they take. Several of these share a
   * machine: a collection that waits for helping threads waits for the others' work.
   */
  crowd: ['--max-semi-space-size=4', '--no-parallel-scavenge'],
} as const

export const workers: readonly Worker[] = [
  {
    name: 'http',
    purpose: 'the API',
    memory: 'fast',
    settings: httpSettings,
    read: readHttpConfig,
  },
  {
    name: 'outbox',
    purpose: 'relays domain events to the broker',
    memory: 'small',
    settings: outboxSettings,
  },
  {
    name: 'inbox',
    purpose: 'turns domain events into jobs',
    memory: 'small',
    settings: inboxSettings,
  },
  {
    name: 'email',
    purpose: 'sends mails',
    memory: 'small',
    settings: emailSettings,
    read: readEmailConfig,
  },
  {
    name: 'expiry',
    purpose: 'frees holds whose time is over',
    memory: 'small',
    settings: expirySettings,
  },
  {
    name: 'push',
    purpose: 'sends push messages',
    memory: 'small',
    settings: pushSettings,
    read: readPushConfig,
  },
  {
    name: 'intake',
    purpose: 'moves jobs from Redis lists into the job table',
    memory: 'small',
    settings: intakeSettings,
  },
  {
    name: 'loader',
    purpose: 'loads events from remote sources',
    memory: 'steady',
    settings: loaderSettings,
    read: readLoaderConfig,
  },
  {
    name: 'waitingroom',
    purpose: 'the waiting room',
    memory: 'crowd',
    settings: waitingroomSettings,
    read: readWaitingroomConfig,
    processes: (env) => Number(env.WAITINGROOM_PROCESSES || 1),
  },
  {
    name: 'search',
    purpose: 'brings items to the search index',
    memory: 'small',
    settings: searchSettings,
  },
  {
    name: 'embed',
    purpose: 'has items embedded by the vendor',
    memory: 'small',
    settings: embedSettings,
    read: readEmbedConfig,
  },
  {
    name: 'similar',
    purpose: 'keeps the lists of similar items',
    memory: 'small',
    settings: similarSettings,
  },
  {
    name: 'alert',
    purpose: 'tells people what went wrong',
    memory: 'small',
    settings: alertSettings,
    read: readAlertConfig,
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
  const main = join(root, 'workers', worker.folder ?? worker.name, 'main.ts')
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

/** One entry a process: a worker that runs several times has its number in the names of all but the first. */
export const severalOf = (chosen: readonly Worker[], env: Environment): readonly Worker[] =>
  chosen.flatMap((worker) =>
    Array.from({ length: worker.processes?.(env) ?? 1 }, (_, i) =>
      i === 0 ? worker : { ...worker, name: `${worker.name}-${i + 1}`, folder: worker.name },
    ),
  )

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

function faultsOf({ settings, read }: Worker, env: Environment): string[] {
  try {
    if (read) read(env)
    else readConfig(settings, env)
    return []
  } catch (error) {
    if (error instanceof ConfigError) return error.faults
    throw error
  }
}
