// The settings of the alert worker: who is told, and how often of dead letters.

import { isAddress } from '../../domain/emails.ts'
import {
  ConfigError,
  commonSettings,
  type Environment,
  int,
  readConfig,
  text,
  url,
  type Values,
} from '../config.ts'

export const alertSettings = {
  ...commonSettings,
  SLACK_WEBHOOK_URL: url({
    doc: 'Slack’s incoming webhook that alerts go to; unset: not to Slack',
    secret: true,
    schemes: ['https', 'http'],
  }),
  SLACK_TIMEOUT: int({
    doc: 'how long Slack may take to answer, s',
    fallback: 10,
    min: 1,
    max: 30,
  }),
  ALERT_EMAIL: text({
    doc: 'the address that alerts are mailed to; unset: none is',
    parse: (value) => {
      if (isAddress(value)) return value
      throw new Error('must be one e-mail address')
    },
  }),
  ALERT_DIGEST: int({
    doc: 'the dead letters of one queue are told of at most so often, s; the first at once',
    fallback: 600,
    min: 1,
    max: 86_400,
  }),
  ALERT_LOOK: int({
    doc: 'how often one of the instances looks for new dead letters, s',
    fallback: 5,
    min: 1,
    max: 3600,
  }),
  ALERT_POLL_MS: int({ doc: 'how often an idle worker looks again, ms', fallback: 1000, min: 10 }),
} as const

export type AlertConfig = Values<typeof alertSettings>

/** @throws ConfigError with every fault */
export function readAlertConfig(env: Environment): AlertConfig {
  const config = readConfig(alertSettings, env)
  const isPlain = config.SLACK_WEBHOOK_URL?.startsWith('http:') === true
  if (isPlain && config.NODE_ENV === 'production') {
    const right = 'SLACK_WEBHOOK_URL must begin with https:// when NODE_ENV is production'
    throw new ConfigError([right])
  }
  return config
}
