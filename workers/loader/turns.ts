// Locks and gates where LOADER_LOCKS says. The Redis client is loaded only where it is used. While that Redis is away
// nothing is loaded: to go on by other locks would be two instances at one source.

import { openLoaderTurns } from '../../db/loaderTurns.ts'
import type { LockFactory, SourceGate } from '../../domain/loader.ts'
import type { Worker } from '../worker.ts'
import type { LoaderConfig } from './config.ts'

export type Turns = { locks: LockFactory; gate: SourceGate; close(): Promise<void> }

/** Longer than for a limit that an HTTP request waits for. */
const answerMs = 2000

export async function openTurns({ config, database, log }: Worker<LoaderConfig>): Promise<Turns> {
  const { db } = database
  if (config.LOADER_LOCKS === 'postgres' || config.REDIS_URL === undefined) {
    return { ...openLoaderTurns(db), close: async () => {} }
  }
  const { openRedis } = await import('../../redis/open.ts')
  const { openRedisLoaderGate, openRedisLoaderLocks } = await import('../../redis/loaderTurns.ts')
  const opened = openRedis({
    url: config.REDIS_URL,
    name: 'loader',
    commandTimeoutMs: answerMs,
    onError: (error) => log.debug({ err: error }, 'no connection to Redis'),
  })
  await opened.ready(500).catch(() => {})
  const { redis, close } = opened
  const locks = openRedisLoaderLocks(redis, answerMs)
  return { locks, gate: openRedisLoaderGate(redis, answerMs), close }
}
