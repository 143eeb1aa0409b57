// What stands around every page: the head, the ways to the other pages, who is signed in and how fresh what is shown is.
// Styles and the script are files of their own: the page's policy allows nothing that stands in it.

import { type Html, html, nothing, type Part } from './html.ts'
import type { Answer, Page, Signed } from './visit.ts'
import { iso } from './words.ts'

const pages = [
  ['', 'Overview'],
  ['failures', 'Failures'],
  ['queues', 'Queues'],
  ['workers', 'Workers'],
  ['sources', 'Sources'],
  ['rooms', 'Waiting rooms'],
  ['flags', 'Flags'],
  ['history', 'History'],
] as const

export const securityHeaders: Readonly<Record<string, string>> = {
  'content-security-policy':
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
  'cache-control': 'no-store',
  // Not no-referrer: with that, browsers send `Origin: null` with forms.
  'referrer-policy': 'same-origin',
  'x-content-type-options': 'nosniff',
  'cross-origin-opener-policy': 'same-origin',
  'cross-origin-resource-policy': 'same-origin',
}

export const htmlAnswer = (body: string, status = 200): Answer => ({
  status,
  headers: { ...securityHeaders, 'content-type': 'text/html; charset=utf-8' },
  body,
})

export const redirect = (to: string): Answer => ({
  status: 303,
  headers: { ...securityHeaders, location: to },
  body: '',
})

const document = (title: string, body: Html): string =>
  html`<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="robots" content="noindex">
<title>${title} · Flotilla console</title>
<link rel="icon" href="/console/icon.svg" type="image/svg+xml">
<link rel="stylesheet" href="/console/console.css">
<script src="/console/console.js" defer></script>
</head>
<body>
${body}
</body>
</html>
`.html

const section = (path: string): string => {
  const first = path.split('/', 1)[0] ?? ''
  return first === 'jobs' ? 'queues' : first
}

function ways(path: string): Html {
  const here = section(path)
  return html`<nav aria-label="Console"><ul>${pages.map(
    ([to, name]) =>
      html`<li><a href="/console${to && `/${to}`}" ${to === here ? html`aria-current="page"` : nothing}>${name}</a></li>`,
  )}</ul></nav>`
}

export function signedPage(visit: Signed, { title, live, still }: Page, notice?: Html): string {
  return document(
    title,
    html`<a class="skip" href="#main">Skip to the content</a>
<header class="top">
<a class="brand" href="/console">Flotilla</a>
${ways(visit.path)}
${form(visit, 'logout', html`<button class="plain">Sign out</button>`)}
</header>
<main id="main" tabindex="-1">
<div class="title"><h1>${title}</h1>
<p id="status" data-state="still"><span id="state" role="status">As of</span> <time id="asof" datetime="${iso(new Date())}">${iso(new Date()).slice(11, 19)} UTC</time></p></div>
${notice}
<div id="live" data-live="${live ? 'yes' : 'no'}">${live}</div>
${still}
</main>`,
  )
}

/** What the script asks for: the live part alone. */
export const livePart = ({ live = nothing }: Page): string => live.html

/** For who is not signed in: to sign in, or to be told what is wrong. */
export const plainPage = (title: string, body: Part): string =>
  document(title, html`<main id="main" class="alone"><h1>${title}</h1>${body}</main>`)

/** A form with the token of its session; the button says what it does. */
export const form = (
  visit: Signed,
  to: string,
  body: Part,
  hidden: Record<string, string> = {},
): Html =>
  html`<form method="post" action="/console/${to}"><input type="hidden" name="csrf" value="${visit.session.csrf}">${Object.entries(
    hidden,
  ).map(
    ([name, value]) => html`<input type="hidden" name="${name}" value="${value}">`,
  )}${body}</form>`
