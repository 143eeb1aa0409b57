// How somebody signs in and out: the page for it, the cookie, the way back to where they wanted to go, and the rows of the
// history that tell of it. Whether the password is right is decided in console.ts.

import { beginAction, endAction, endSession } from '../../../db/operatorActions.ts'
import { operatorOf } from './act.ts'
import { type Html, html, link } from './html.ts'
import { htmlAnswer, plainPage, redirect } from './layout.ts'
import { type Session, setCookie } from './session.ts'
import type { Answer, ConsoleParts, Signed, Visit } from './visit.ts'

export async function signedIn(
  parts: ConsoleParts,
  visit: Visit,
  { session, token }: { session: Session; token: string },
  to: string,
): Promise<Answer> {
  await note(parts, { ...visit, session }, 'session.begin', 'signed in')
  const answer = redirect(to)
  answer.headers['set-cookie'] = setCookie(token, visit.secure)
  return answer
}

export async function signOut(parts: ConsoleParts, visit: Signed): Promise<Answer> {
  await endSession(parts.db, visit.session.id, new Date(visit.session.expiresAtMs))
  await note(parts, visit, 'session.end', 'signed out')
  const answer = redirect('/console/login?out=yes')
  answer.headers['set-cookie'] = setCookie(undefined, visit.secure)
  return answer
}

async function note({ db }: ConsoleParts, visit: Signed, action: string, says: string) {
  const id = await beginAction(db, { ...operatorOf(visit), action, subject: 'console' })
  await endAction(db, id, 'done', says)
}

/** A page of the console, and no other place. */
export const within = (to: string | null): string =>
  to !== null &&
  /^\/console([/?][\w\-./?=&%:+]*)?$/.test(to) &&
  !to.includes('//') &&
  // As the browser will have it, without its `..`.
  /^\/console(\/|$)/.test(new URL(to, 'http://console').pathname)
    ? to
    : '/console'

export function notSignedIn(visit: Visit): Answer {
  if (visit.headers['x-console-part'] !== undefined) return htmlAnswer('', 401)
  if (visit.method === 'POST') {
    return signInPage(visit, 'You are not signed in any more; nothing was done.')
  }
  const query = visit.query.toString()
  const here = visit.path && `/console/${visit.path}${query && `?${query}`}`
  return redirect(link('/console/login', { to: here }))
}

export function signInPage(
  visit: Visit,
  fault?: string,
  to = within(visit.query.get('to')),
): Answer {
  const said: Html | undefined = fault
    ? html`<p class="notice bad" role="alert" id="fault">${fault}</p>`
    : visit.query.has('out')
      ? html`<p class="notice good" role="status">You are signed out.</p>`
      : undefined
  const body = html`${said}
<form method="post" action="/console/login" class="card">
<input type="hidden" name="to" value="${to}">
<input type="text" name="username" value="console" autocomplete="username" hidden>
<label for="password">Password of the console</label>
<input id="password" name="password" type="password" autocomplete="current-password" required autofocus aria-describedby="${fault && 'fault'}">
<button class="strong">Sign in</button>
</form>
<p class="soft">It is the setting CONSOLE_PASSWORD. In development it is made at random and kept in <code>.fleet/secrets/CONSOLE_PASSWORD</code>.</p>`
  return htmlAnswer(plainPage('Sign in', body), fault ? 403 : 200)
}
