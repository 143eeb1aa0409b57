// The settings of the waiting room.

import { redisUrl } from '../../redis/address.ts'
import { authFaults, authSettings } from '../authSettings.ts'
import {
  commonSettings,
  type Environment,
  generatedSecret,
  int,
  readConfig,
  requiredText,
  text,
  url,
  type Values,
} from '../config.ts'

export const waitingroomSettings = {
  ...commonSettings,
  ...authSettings,
  REDIS_URL: text({
    doc: 'where queues are kept, for any number of processes; unset: Postgres, for one process',
    secret: true,
    parse: redisUrl,
  }),
  WAITINGROOM_HOST: requiredText({
    doc: 'address the waiting room listens on',
    fallback: '127.0.0.1',
  }),
  WAITINGROOM_PORT: int({
    doc: 'port of the waiting room, shared by its processes where there is Redis; 0: any free one',
    fallback: 8090,
    max: 65535,
  }),
  WAITINGROOM_PROCESSES: int({
    doc: 'processes that `fleet up` starts, each for QUEUE_SOCKETS_MAX people; above 1 needs REDIS_URL',
    fallback: 1,
    min: 1,
    max: 64,
  }),
  WAITINGROOM_URL: url({
    doc: 'where people reach the waiting room; unset: by the Host of their request',
    schemes: ['http', 'https'],
  }),
  CHECKOUT_URL: requiredText({
    doc: 'where people buy when it is their turn; match_id and session_token are added to it',
    fallback: 'http://127.0.0.1:8080/checkout',
    parse: (value) => {
      if (URL.canParse(value) && /^https?:$/.test(new URL(value).protocol)) return value
      throw new Error('must be a URL that begins with https:// or http://')
    },
  }),
  QUEUE_WINDOW: int({
    doc: 'how long a purchase window is open, s',
    fallback: 1200,
    min: 1,
    max: 86_400,
  }),
  QUEUE_PERSISTENCE: int({
    doc: 'how long a place is kept after the last sign of life, s',
    fallback: 1800,
    min: 60,
    max: 86_400,
  }),
  QUEUE_TOKEN_SECRET: generatedSecret({ doc: 'what queue tokens are signed with' }),
  QUEUE_RATE: int({
    doc: 'users a minute that a new queue lets in; /rate changes it',
    fallback: 600,
    max: 1_000_000,
  }),
  QUEUE_CAPACITY: int({
    doc: 'purchase windows open at once at most in a new queue; /rate changes it',
    fallback: 1000,
    max: 1_000_000,
  }),
  QUEUE_JOINS_PER_USER: int({
    doc: 'joins a minute a user, and process; 0: no limit',
    fallback: 30,
    max: 1_000_000,
  }),
  QUEUE_JOINS_PER_ADDRESS: int({
    doc: 'joins a minute an address, and process; many people may share one; 0: no limit',
    fallback: 1200,
    max: 10_000_000,
  }),
  QUEUE_SOCKETS_PER_PLACE: int({
    doc: 'connections of one place to one process; one more closes the oldest',
    fallback: 5,
    min: 1,
    max: 1000,
  }),
  QUEUE_SOCKETS_MAX: int({
    doc: 'connections of one process; it needs as many descriptors, and a few hundred',
    fallback: 18_000,
    min: 1,
    max: 1_000_000,
  }),
} as const

export type WaitingroomConfig = Values<typeof waitingroomSettings>

/** @throws ConfigError with every fault, also those between settings */
export function readWaitingroomConfig(env: Environment): WaitingroomConfig {
  return readConfig(waitingroomSettings, env, (config) => [
    ...authFaults(config),
    ...(config.WAITINGROOM_PROCESSES > 1 && config.REDIS_URL === undefined
      ? ['WAITINGROOM_PROCESSES above 1 needs REDIS_URL, which is not set']
      : []),
  ])
}
