// The settings of the loader, and whether the file of sources can be used: a bad one is told at the start.

import { readFileSync } from 'node:fs'
import { parseSources } from '../../domain/sources.ts'
import { redisUrl } from '../../redis/address.ts'
import {
  ConfigError,
  commonSettings,
  type Environment,
  int,
  oneOf,
  readConfig,
  text,
  type Values,
} from '../config.ts'

export const loaderSettings = {
  ...commonSettings,
  LOADER_SOURCES: text({
    doc: 'JSON file of the sources, read again when it changes; unset: those of fleet loader:add',
    parse: (path) => {
      parseSources(readFileSync(path, 'utf8'))
      return path
    },
  }),
  LOADER_GAP_MS: int({
    doc: 'least time between two requests to one source over all instances, ms; 0: none',
    fallback: 200,
    max: 3_600_000,
  }),
  LOADER_BATCH: int({ doc: 'events of one request', fallback: 1000, min: 1, max: 100_000 }),
  LOADER_IDLE_MAX_MS: int({
    doc: 'how long a source rests at most while it has nothing new, ms',
    fallback: 1000,
    max: 3_600_000,
  }),
  LOADER_BODY_MAX: int({
    doc: 'bytes of one reply at most, unpacked',
    fallback: 16_777_216,
    min: 1024,
    max: 268_435_456,
  }),
  LOADER_BUFFER_MAX: int({
    doc: 'bytes of all replies in memory at once; one reply may go beyond',
    fallback: 33_554_432,
    min: 1_048_576,
    max: 4_294_967_296,
  }),
  LOADER_KEEP_DAYS: int({
    doc: 'days that loaded events are kept; 0: for ever',
    fallback: 0,
    max: 36_500,
  }),
  LOADER_LOCKS: oneOf({
    doc: 'where locks and gates are; the same for all instances. redis needs REDIS_URL',
    fallback: 'postgres',
    values: ['postgres', 'redis'],
  }),
  REDIS_URL: text({
    doc: 'where LOADER_LOCKS=redis has locks and gates',
    secret: true,
    parse: redisUrl,
  }),
} as const

export type LoaderConfig = Values<typeof loaderSettings>

/** @throws ConfigError */
export function readLoaderConfig(env: Environment): LoaderConfig {
  const config = readConfig(loaderSettings, env)
  if (config.LOADER_LOCKS === 'redis' && config.REDIS_URL === undefined) {
    throw new ConfigError(['LOADER_LOCKS is redis, and REDIS_URL is not set'])
  }
  return config
}
