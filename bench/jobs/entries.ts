// Who is measured: ours in its kinds, and the peers, each a program that bench/jobs/contender.ts talks to.

import { execFileSync, spawnSync } from 'node:child_process'
import { existsSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { type Child, startChild } from './child.ts'
import type { RedisServer } from './servers.ts'

const bench = join(import.meta.dirname, '..')

export type Entry = {
  name: string
  file: string
  env?: Record<string, string>
  /** Ours is compared with the best of these. */
  peer?: true
  redis?: true
  php?: true
  /** So slow that it gets but this share of the jobs. */
  share?: number
}

const ours = (name: string, queue: string, pass: 'job' | 'batch'): Entry => ({
  name,
  file: 'jobs/flotilla.ts',
  env: { BENCH_QUEUE: queue, BENCH_PASS: pass },
})

/**
 * `batch`: the handler gets a whole batch, in the transaction that completes it. `kept`: finished jobs stay for a day,
 * as pg-boss's do; graphile-worker's and BullMQ's are gone when they are done, and so are those of the plain `flotilla`.
 */
export const entries: Entry[] = [
  ours('flotilla', 'inbox', 'job'),
  ours('flotilla batch', 'inbox', 'batch'),
  ours('flotilla kept', 'email', 'job'),
  { name: 'graphile-worker', file: 'peers/graphile.js', peer: true },
  { name: 'BullMQ', file: 'peers/bullmq.js', peer: true, redis: true },
  { name: 'pg-boss', file: 'jobs/pgboss.ts', peer: true },
  { name: 'Symfony Messenger', file: 'peers/symfony.js', peer: true, php: true, share: 1 / 20 },
]

export type Contender = {
  name: string
  peer: boolean
  share: number
  /** Makes the tables, fills and empties them. */
  driver: Child
  startWorker(): Promise<Child>
  /** What the work costs the server is read from this process and its children. */
  serverPid: number
}

export type Servers = {
  url: string
  postmaster: number
  redis: RedisServer | undefined
  /** Where its classes are loaded from. */
  symfony: string | undefined
}

/** Debian's packages php-cli, php-pgsql, php-symfony-doctrine-messenger and php-doctrine-dbal, or what Composer put here. */
export function findSymfony(): string | undefined {
  if (spawnSync('php', ['--version']).error) return undefined
  const places = [
    join(bench, 'peers', 'vendor', 'autoload.php'),
    '/usr/share/php/Symfony/Component/Messenger/autoload.php',
  ]
  return places.find((place) => existsSync(place))
}

export async function openContender(entry: Entry, servers: Servers): Promise<Contender> {
  const { url, postmaster, redis } = servers
  const others = { REDIS_URL: redis?.url ?? '', SYMFONY_AUTOLOAD: servers.symfony ?? '' }
  const env = { ...entry.env, DATABASE_URL: url, ...others }
  const share = entry.share ?? 1
  const path = join(bench, entry.file)
  const driver = await startChild(path, { ...env, BENCH_ROLE: 'driver' })
  await driver.call('install')
  // What is loaded, compiled and looked up once is no part of an insert.
  await driver.call('insert', 5000 * share, 0)
  return {
    name: entry.name,
    peer: entry.peer ?? false,
    share,
    driver,
    startWorker: () => startChild(path, { ...env, BENCH_ROLE: 'worker' }),
    serverPid: entry.redis ? (redis?.pid ?? 0) : postmaster,
  }
}

/** Into bench/peers/node_modules, so that the fleet's own install does without them. */
export function installPeers(): void {
  const folder = join(bench, 'peers')
  const read = (path: string) =>
    JSON.parse(readFileSync(join(folder, path, 'package.json'), 'utf8'))
  const isThere = Object.entries(read('.').dependencies).every(([name, version]) => {
    const path = join('node_modules', name)
    return existsSync(join(folder, path)) && read(path).version === version
  })
  if (isThere) return
  console.log('installing the peers into bench/peers')
  execFileSync('npm', ['ci', '--ignore-scripts', '--prefix', folder], { stdio: 'inherit' })
}
