// The settings of the similar worker: those that all have.

import { commonSettings } from '../config.ts'

export const similarSettings = { ...commonSettings } as const
