// The console: who may come in, which page an address is, and what becomes of errors. Loaded when somebody first asks
// for it (workers/http/console.ts), so that it costs nothing before.

import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import {
  beginAction,
  endAction,
  endSession,
  isSessionEnded,
  readAction,
} from '../../../db/operatorActions.ts'
import { AppError } from '../../../domain/errors.ts'
import type { RateLimiter } from '../../../domain/limits.ts'
import { problems, toAppError } from '../../problem.ts'
import { operatorOf } from './act.ts'
import { failures } from './failures.ts'
import { askFailures, doFailures } from './failureForms.ts'
import { flagForm, flags } from './flags.ts'
import { countTry, refuseOtherSites } from './gate.ts'
import { history, historyForm, noticeOf } from './history.ts'
import { type Html, html, link } from './html.ts'
import { findJob, job, jobForm } from './job.ts'
import { livePart, plainPage, securityHeaders, signedPage } from './layout.ts'
import { overview } from './overview.ts'
import { queue, queueForm, queues } from './queues.ts'
import { rooms } from './rooms.ts'
import { isSame, type Session, type Sessions, setCookie } from './session.ts'
import { sourceForm, sources } from './sources.ts'
import type { Answer, ConsoleParts, PageOf, Signed, Visit } from './visit.ts'
import { workers } from './workers.ts'

const pages: Record<string, PageOf> = {
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

const forms: Record<string, PageOf> = {
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

export type Console = {
  answer(visit: Visit): Promise<Answer>
  /** For what failed before it came here. */
  refuse(visit: Visit, error: unknown): Answer
  close(): Promise<void>
}

export type ConsoleOptions = ConsoleParts & { sessions: Sessions; limits: RateLimiter }

export function createConsole(options: ConsoleOptions): Console {
  const { db, log, sessions } = options

  async function answer(visit: Visit): Promise<Answer> {
    try {
      return asset(visit) ?? (await route(visit))
    } catch (error) {
      return refuse(visit, error)
    }
  }

  async function route(visit: Visit): Promise<Answer> {
    if (visit.method === 'POST') refuseOtherSites(visit)
    if (visit.path === 'login') return visit.method === 'POST' ? signIn(visit) : signInPage(visit)
    const session = await sessionOf(visit)
    if (session === undefined) return notSignedIn(visit)
    const signed = { ...visit, session }
    if (visit.method !== 'POST') return await show(signed, find(pages, visit.path))
    if (!isSame(visit.form.get('csrf') ?? '', session.csrf)) {
      throw new AppError('FORBIDDEN', 'this form is not of your session: load its page again')
    }
    if (visit.path === 'logout') return signOut(signed)
    return await show(signed, find(forms, visit.path))
  }

  async function sessionOf({ headers }: Visit): Promise<Session | undefined> {
    const session = sessions.find(headers.cookie)
    if (session === undefined || (await isSessionEnded(db, session.id))) return undefined
    return session
  }

  async function show(visit: Signed, found: Found): Promise<Answer> {
    const page = await found.page(options, visit, found.id)
    if ('to' in page) return redirect(page.to)
    if (visit.headers['x-console-part'] === 'live') return { ...htmlAnswer(livePart(page)) }
    const did = visit.query.get('did')
    const action = did && isId(did) ? await readAction(db, did) : undefined
    const notice = action && noticeOf(action)
    return htmlAnswer(signedPage(visit, page, notice), page.status)
  }

  async function signIn(visit: Visit): Promise<Answer> {
    const to = within(visit.form.get('to'))
    await countTry(options.limits, visit.address)
    if (!sessions.isPassword(visit.form.get('password') ?? '')) {
      log.warn({ ip: visit.address, request_id: visit.requestId }, 'a wrong password at the console')
      return signInPage(visit, 'This is not the password of the console.', to)
    }
    const { session, token } = sessions.begin()
    const operator = operatorOf({ ...visit, session })
    const id = await beginAction(db, { ...operator, action: 'session.begin', subject: 'console' })
    await endAction(db, id, 'done', 'signed in')
    const answer = redirect(to)
    answer.headers['set-cookie'] = setCookie(token, visit.secure)
    return answer
  }

  async function signOut(visit: Signed): Promise<Answer> {
    await endSession(db, visit.session.id, new Date(visit.session.expiresAtMs))
    const id = await beginAction(db, {
      ...operatorOf(visit),
      action: 'session.end',
      subject: 'console',
    })
    await endAction(db, id, 'done', 'signed out')
    const answer = redirect('/console/login?out=yes')
    answer.headers['set-cookie'] = setCookie(undefined, visit.secure)
    return answer
  }

  function refuse(visit: Visit, thrown: unknown): Answer {
    const error = toAppError(thrown)
    const { status, title } = problems[error.code]
    if (status >= 500) {
      const request_id = visit.requestId
      log.error({ err: error.cause ?? error, code: error.code, request_id }, error.message)
    }
    const body = html`<p>${sentence(error.message)}</p>
<p class="soft">${error.code} · request ${visit.requestId}</p>
<p><a class="button" href="/console">To the overview</a></p>`
    const answer = htmlAnswer(plainPage(title, body), status)
    const waitMs = error.extra.retryAfterMs ?? (status === 503 ? 2000 : undefined)
    if (waitMs !== undefined) answer.headers['retry-after'] = String(Math.ceil(waitMs / 1000))
    return answer
  }

  return { answer, refuse, close: () => options.bulk.close() }
}

const sentence = (text: string): string => `${text.charAt(0).toUpperCase()}${text.slice(1)}.`

const htmlAnswer = (body: string, status = 200): Answer => ({
  status,
  headers: { ...securityHeaders, 'content-type': 'text/html; charset=utf-8' },
  body,
})

const redirect = (to: string): Answer => ({
  status: 303,
  headers: { ...securityHeaders, location: to },
  body: '',
})

type Found = { page: PageOf; id: string }

/** @throws AppError NOT_FOUND */
function find(table: Record<string, PageOf>, path: string): Found {
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

const isId = (text: string): boolean => /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/.test(text)

/** A page of the console, and no other place. */
function within(to: string | null): string {
  return to !== null && /^\/console([/?][\w\-./?=&%:+]*)?$/.test(to) && !to.includes('//')
    ? to
    : '/console'
}

function notSignedIn(visit: Visit): Answer {
  if (visit.headers['x-console-part'] !== undefined) {
    return { ...htmlAnswer('', 401) }
  }
  if (visit.method === 'POST') {
    return signInPage(visit, 'You are not signed in any more; nothing was done.')
  }
  const query = visit.query.toString()
  const here = visit.path && `/console/${visit.path}${query && `?${query}`}`
  return redirect(link('/console/login', { to: here }))
}

function signInPage(visit: Visit, fault?: string, to = within(visit.query.get('to'))): Answer {
  const said: Html | undefined = fault
    ? html`<p class="notice bad" role="alert" id="fault">${fault}</p>`
    : visit.query.has('out')
      ? html`<p class="notice good" role="status">You are signed out.</p>`
      : undefined
  const body = html`${said}
<form method="post" action="/console/login">
<input type="hidden" name="to" value="${to}">
<input type="text" name="username" value="console" autocomplete="username" hidden>
<label for="password">Password of the console</label>
<input id="password" name="password" type="password" autocomplete="current-password" required autofocus aria-describedby="${fault && 'fault'}">
<button class="strong">Sign in</button>
</form>
<p class="soft">It is the setting CONSOLE_PASSWORD; in development it is made at random and kept in <code>.fleet/secrets/CONSOLE_PASSWORD</code>.</p>`
  return htmlAnswer(plainPage('Sign in', body), fault ? 403 : 200)
}

function asset({ path, method }: Visit): Answer | undefined {
  const type = Object.hasOwn(assets, path) ? assets[path] : undefined
  if (type === undefined || method === 'POST') return undefined
  return {
    status: 200,
    headers: { ...securityHeaders, 'cache-control': 'no-cache', 'content-type': type },
    body: readFileSync(join(import.meta.dirname, 'page', path)),
  }
}
