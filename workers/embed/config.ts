// The settings of the embed worker.

import {
  ConfigError,
  commonSettings,
  type Environment,
  int,
  oneOf,
  readConfig,
  text,
  url,
  type Values,
} from '../config.ts'

export const embedSettings = {
  ...commonSettings,
  EMBEDDING_URL: url({
    doc: 'base of an OpenAI-compatible API, such as https://api.openai.com/v1; unset: items are not embedded',
    schemes: ['https', 'http'],
  }),
  EMBEDDING_API_KEY: text({ doc: 'its key; unset: none is sent', secret: true }),
  EMBEDDING_MODEL: text({ doc: 'its model; vectors of different models are not compared' }),
  EMBEDDING_IMAGES: oneOf({
    doc: 'on: images go along, as messages with image_url; off: the texts alone, as input',
    fallback: 'on',
    values: ['on', 'off'],
  }),
  EMBEDDING_TIMEOUT_MS: int({
    doc: 'how long an answer may take, ms',
    fallback: 30_000,
    min: 100,
    max: 60_000,
  }),
  EMBEDDING_WINDOW_MS: int({
    doc: 'how long the vendor’s limits are for, ms',
    fallback: 60_000,
    min: 100,
    max: 3_600_000,
  }),
} as const

export type EmbedConfig = Values<typeof embedSettings>

/** @throws ConfigError with every fault, also those between settings */
export function readEmbedConfig(env: Environment): EmbedConfig {
  const config = readConfig(embedSettings, env)
  const { EMBEDDING_URL, EMBEDDING_MODEL, EMBEDDING_API_KEY, NODE_ENV } = config
  const faults: string[] = []
  if (EMBEDDING_URL !== undefined && EMBEDDING_MODEL === undefined) {
    faults.push('EMBEDDING_MODEL is not set, and EMBEDDING_URL is')
  }
  if (EMBEDDING_URL !== undefined && new URL(EMBEDDING_URL).username !== '') {
    faults.push('EMBEDDING_URL must not hold a user or password: EMBEDDING_API_KEY is for the key')
  }
  const isPlain = EMBEDDING_URL?.startsWith('http:') && EMBEDDING_API_KEY !== undefined
  if (isPlain && NODE_ENV === 'production') {
    faults.push(
      'EMBEDDING_URL must begin with https:// when there is a key and NODE_ENV is production',
    )
  }
  if (faults.length > 0) throw new ConfigError(faults)
  return config
}
