// The settings of the intake worker.

import { redisUrl } from '../../redis/address.ts'
import { commonSettings, int, text, type Values } from '../config.ts'

export const intakeSettings = {
  ...commonSettings,
  REDIS_URL: text({
    doc: 'where the lists are that other systems push jobs on; unset: the worker has nothing to do',
    secret: true,
    parse: redisUrl,
  }),
  INTAKE_BATCH: int({ doc: 'items moved in one transaction', fallback: 500, min: 1, max: 5000 }),
} as const

export type IntakeConfig = Values<typeof intakeSettings>
