// Which page or form an address of the console is, and the files that stand beside them.

import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { AppError } from '../../../domain/errors.ts'
import { askFailures, doFailures } from './failureForms.ts'
import { failures } from './failures.ts'
import { flagForm, flags } from './flags.ts'
import { history, historyForm } from './history.ts'
import { findJob, job, jobForm } from './job.ts'
import { securityHeaders } from './layout.ts'
import { overview } from './overview.ts'
import { queue, queueForm, queues } from './queues.ts'
import { rooms } from './rooms.ts'
import { sourceForm, sources } from './sources.ts'
import type { Answer, PageOf, Visit } from './visit.ts'
import { workers } from './workers.ts'

export const pages: Record<string, PageOf> = {
  '': overview,
  failures,
  jobs: findJob,
  'jobs/*': job,
  queues,
  'queues/*': queue,
  workers,
  sources,
  rooms,
  flags,
  history,
  'history/*': history,
}

export const forms: Record<string, PageOf> = {
  'failures/ask': askFailures,
  'failures/do': doFailures,
  'jobs/do': jobForm,
  'queues/do': queueForm,
  'sources/do': sourceForm,
  'flags/do': flagForm,
  'history/do': historyForm,
}

const assets: Record<string, string> = {
  'console.css': 'text/css; charset=utf-8',
  'console.js': 'text/javascript; charset=utf-8',
  'icon.svg': 'image/svg+xml',
}

export type Found = { page: PageOf; id: string }

/** @throws AppError NOT_FOUND */
export function find(table: Record<string, PageOf>, path: string): Found {
  const own = Object.hasOwn(table, path) ? table[path] : undefined
  if (own) return { page: own, id: '' }
  const [head = '', id = '', ...more] = path.split('/')
  const page = more.length === 0 && id !== '' ? table[`${head}/*`] : undefined
  if (page) return { page, id: decoded(id) }
  throw new AppError('NOT_FOUND', 'there is no such page in the console')
}

function decoded(text: string): string {
  try {
    return decodeURIComponent(text)
  } catch {
    throw new AppError('NOT_FOUND', 'there is no such page in the console')
  }
}

/** Undefined: it is none of the files. */
export function asset({ path, method }: Visit): Answer | undefined {
  const type = Object.hasOwn(assets, path) ? assets[path] : undefined
  if (type === undefined || method === 'POST') return undefined
  return {
    status: 200,
    headers: { ...securityHeaders, 'cache-control': 'no-cache', 'content-type': type },
    body: readFileSync(join(import.meta.dirname, 'page', path)),
  }
}
