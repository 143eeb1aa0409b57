// A request to the console and what is answered, as its pages see them: nothing of Fastify is in it, so that a page is a
// function from one to the other. And what all pages are given to work with.

import type { IncomingHttpHeaders } from 'node:http'
import type { FastifyBaseLogger } from 'fastify'
import type { Db } from '../../../db/schema.ts'
import type { Bulk } from './bulk.ts'
import type { Figures } from './figures.ts'
import type { Html } from './html.ts'
import type { Session } from './session.ts'

export type Visit = {
  method: string
  /** Below /console: `failures`; nothing: the overview. */
  path: string
  query: URLSearchParams
  /** Of a form that was sent. */
  form: URLSearchParams
  headers: IncomingHttpHeaders
  /** With the port. */
  host: string
  secure: boolean
  address: string
  requestId: string
}

/** A visit by somebody who is signed in. */
export type Signed = Visit & { session: Session }

export type Answer = {
  status: number
  headers: Record<string, string>
  body: string | Buffer
}

/** A page: `live` is what its script asks for again and again, `still` what stays as it is until it is loaded again. */
export type Page = { title: string; status?: number; live?: Html; still?: Html }
/** After a form: where to go on. */
export type Redirect = { to: string }

export type ConsoleParts = {
  db: Db
  log: FastifyBaseLogger
  figures: Figures
  bulk: Bulk
  /** How many wait, by match, where Redis knows; undefined: the database does. */
  lengths: ((matchIds: readonly string[]) => Promise<Map<string, number>>) | undefined
  /** Where people reach the waiting room. */
  waitingroomUrl(visit: Visit): string
}

/** One address of the console. Both may throw AppError. */
export type PageOf = (parts: ConsoleParts, visit: Signed, id: string) => Promise<Page | Redirect>
