// The console: who may come in, what a page or a form is answered with, and what becomes of errors. Loaded when somebody
// first asks for it (workers/http/console.ts), so that it costs nothing before.

import { isSessionEnded, readAction } from '../../../db/operatorActions.ts'
import { AppError } from '../../../domain/errors.ts'
import type { RateLimiter } from '../../../domain/limits.ts'
import { problems, toAppError } from '../../problem.ts'
import { isId } from './act.ts'
import { countTry, refuseOtherSites } from './gate.ts'
import { noticeOf } from './history.ts'
import { html } from './html.ts'
import { htmlAnswer, livePart, plainPage, redirect, signedPage } from './layout.ts'
import { asset, type Found, find, forms, pages } from './routes.ts'
import { isSame, type Session, type Sessions } from './session.ts'
import { notSignedIn, signedIn, signInPage, signOut, within } from './signIn.ts'
import type { Answer, ConsoleParts, Signed, Visit } from './visit.ts'

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
    if (visit.path === 'login') {
      return visit.method === 'POST' ? await signIn(visit) : signInPage(visit)
    }
    const session = await sessionOf(visit)
    if (session === undefined) return notSignedIn(visit)
    const signed = { ...visit, session }
    if (visit.method !== 'POST') return await show(signed, find(pages, visit.path))
    if (!isSame(visit.form.get('csrf') ?? '', session.csrf)) {
      throw new AppError('FORBIDDEN', 'this form is not of your session: load its page again')
    }
    if (visit.path === 'logout') return await signOut(options, signed)
    return await show(signed, find(forms, visit.path))
  }

  async function sessionOf({ headers }: Visit): Promise<Session | undefined> {
    const session = sessions.find(headers.cookie)
    if (session === undefined || (await isSessionEnded(db, session.id))) return undefined
    return session
  }

  /** A form gives a page as well: one that asks. */
  async function show(visit: Signed, found: Found): Promise<Answer> {
    const page = await found.page(options, visit, found.id)
    if ('to' in page) return redirect(page.to)
    if (visit.headers['x-console-part'] === 'live') return htmlAnswer(livePart(page))
    const did = visit.query.get('did') ?? ''
    const action = isId(did) ? await readAction(db, did) : undefined
    return htmlAnswer(signedPage(visit, page, action && noticeOf(action)), page.status)
  }

  async function signIn(visit: Visit): Promise<Answer> {
    const to = within(visit.form.get('to'))
    await countTry(options.limits, visit.address)
    if (sessions.isPassword(visit.form.get('password') ?? '')) {
      return await signedIn(options, visit, sessions.begin(), to)
    }
    log.warn({ ip: visit.address, request_id: visit.requestId }, 'a wrong password at the console')
    return signInPage(visit, 'This is not the password of the console.', to)
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
    const refused = htmlAnswer(plainPage(title, body), status)
    const waitMs = error.extra.retryAfterMs ?? (status === 503 ? 2000 : undefined)
    if (waitMs !== undefined) refused.headers['retry-after'] = String(Math.ceil(waitMs / 1000))
    return refused
  }

  return { answer, refuse, close: () => options.bulk.close() }
}

const sentence = (text: string): string => `${text.charAt(0).toUpperCase()}${text.slice(1)}.`
