// The settings of the push worker.

import {
  ConfigError,
  commonSettings,
  type Environment,
  int,
  oneOf,
  readConfig,
  type Setting,
  url,
  type Values,
} from '../config.ts'
import { type Credentials, readCredentials } from './credentials.ts'

export const pushSettings = {
  ...commonSettings,
  PUSH_PROVIDER: oneOf({
    doc: 'who takes the pushes; log: each is written into a file, and sent to nobody',
    fallback: 'log',
    values: ['log', 'fcm'],
  }),
  PUSH_RATE: int({
    doc: 'requests a second over all instances, one a device',
    fallback: 1000,
    min: 1,
    max: 100_000,
  }),
  PUSH_RAMP: int({
    doc: 'how long it takes from nothing to PUSH_RATE after idle times, seconds; 0: at once',
    fallback: 60,
    max: 3600,
  }),
  PUSH_BATCH: int({ doc: 'devices taken at once', fallback: 500, min: 1, max: 1000 }),
  PUSH_TTL: int({
    doc: 'how long a push is kept for a phone that is off, seconds',
    fallback: 86_400,
    max: 2_419_200,
  }),
  PUSH_POLL_MS: int({ doc: 'how often an idle worker looks again, ms', fallback: 500, min: 10 }),
  FCM_URL: url({
    doc: 'Firebase Cloud Messaging; http:// speaks HTTP/2 without TLS, for tests',
    fallback: 'https://fcm.googleapis.com',
    schemes: ['https', 'http'],
  }) as Setting<string>,
  FCM_CREDENTIALS: {
    doc: 'file with the JSON key of a service account; its token_uri is used',
    parse: readCredentials,
  } satisfies Setting<Credentials> as Setting<Credentials | undefined>,
  FCM_TIMEOUT_MS: int({
    doc: 'how long an answer of FCM may take, ms; Google asks for 10 s at least',
    fallback: 15_000,
    min: 100,
    max: 60_000,
  }),
  FCM_VALIDATE_ONLY: oneOf({
    doc: 'dry run: FCM checks each push and delivers none',
    fallback: 'false',
    values: ['false', 'true'],
  }),
} as const

export type PushConfig = Values<typeof pushSettings>

/** @throws ConfigError with every fault, also those between settings */
export function readPushConfig(env: Environment): PushConfig {
  const config = readConfig(pushSettings, env)
  if (config.PUSH_PROVIDER === 'fcm' && config.FCM_CREDENTIALS === undefined) {
    throw new ConfigError(['FCM_CREDENTIALS is not set, and PUSH_PROVIDER is fcm'])
  }
  return config
}
