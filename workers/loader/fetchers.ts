// The fetchers by type of source, with what they share: the memory for replies, and the environment for secrets.

import { readFileSync } from 'node:fs'
import type { EventFetcher, SourceType } from '../../domain/loader.ts'
import type { Environment } from '../config.ts'
import { createBudget } from './budget.ts'
import type { LoaderConfig } from './config.ts'
import { openFileFetcher } from './file.ts'
import { openHttpFetcher } from './http.ts'

type Limits = Pick<LoaderConfig, 'LOADER_BODY_MAX' | 'LOADER_BUFFER_MAX'>

export function openFetchers(config: Limits, env: Environment) {
  const bytesMax = config.LOADER_BODY_MAX
  const budget = createBudget(config.LOADER_BUFFER_MAX)
  const http = openHttpFetcher({ bytesMax, budget, secretOf: (name) => secretOf(env, name) })
  const byType: Record<SourceType, EventFetcher> = {
    http,
    ndjson: http,
    file: openFileFetcher({ bytesMax }),
  }
  return { byType, close: async () => await http.close?.() }
}

/** NAME, or the text of the file that NAME_FILE names, read anew: a secret may be changed. */
function secretOf(env: Environment, name: string): string | undefined {
  const direct = env[name] || undefined
  const file = env[`${name}_FILE`]
  if (direct !== undefined || !file) return direct
  try {
    return readFileSync(file, 'utf8').trim()
  } catch {
    return undefined
  }
}
