// The settings of the search worker.

import { commonSettings, int } from '../config.ts'
import { openSearchSettings } from '../openSearchSettings.ts'

export const searchSettings = {
  ...commonSettings,
  ...openSearchSettings,
  SEARCH_BATCH: int({
    doc: 'items written to the index at once',
    fallback: 200,
    min: 1,
    max: 2000,
  }),
} as const
