// The provider `mailgun`: its HTTP API, with the fetch of Node. Our id goes out as Message-Id and as the custom variable
// `flotilla-job`; by either the events API finds the mail again. What answers mean stands in mailgunAnswers.ts.
// https://documentation.mailgun.com/docs/mailgun/api-reference/send/mailgun/messages and …/events

import { answerOf, faultOf } from './mailgunAnswers.ts'
import { type EmailProvider, type Found, headersOf, type Mail, messageIdOf } from './provider.ts'

export type MailgunOptions = {
  /** https://api.mailgun.net, or https://api.eu.mailgun.net where the domain is in the EU. */
  url: string
  domain: string
  apiKey: string
  timeoutMs: number
  /** Mailgun accepts the mail and delivers it to nobody. */
  testMode?: boolean
}

/** Events of a mail at most: it has one recipient, and a handful of attempts. */
const eventsMax = 100
/** Mailgun's clock and ours, and the time a mail took to be handed over. */
const marginMs = 300_000

export function createMailgun(options: MailgunOptions): EmailProvider {
  const { url, domain, apiKey, timeoutMs } = options
  const base = `${url.replace(/\/+$/, '')}/v3/${encodeURIComponent(domain)}`
  const authorization = `Basic ${Buffer.from(`api:${apiKey}`).toString('base64')}`

  async function call(path: string, init: RequestInit, signal: AbortSignal) {
    const response = await fetch(`${base}${path}`, {
      ...init,
      headers: { authorization, 'user-agent': 'flotilla' },
      // A redirected POST would be a GET, and the key is for this host.
      redirect: 'manual',
      signal: AbortSignal.any([signal, AbortSignal.timeout(timeoutMs)]),
    })
    return { status: response.status, headers: response.headers, body: await response.text() }
  }

  return {
    name: 'mailgun',
    async send(mail, signal) {
      try {
        const { status, headers, body } = await call(
          '/messages',
          { method: 'POST', body: formOf(mail, options.testMode === true) },
          signal,
        )
        return answerOf(status, headers, body)
      } catch (error) {
        return faultOf(error)
      }
    },
    async find(mail, ageMs, signal) {
      const id = messageIdOf(mail).slice(1, -1)
      const query = new URLSearchParams({
        'message-id': id,
        begin: String((Date.now() - ageMs - marginMs) / 1000),
        ascending: 'yes',
        limit: String(eventsMax),
      })
      try {
        const { status, body } = await call(`/events?${query}`, {}, signal)
        if (status !== 200) return { is: 'cannot', why: `the events API answered ${status}` }
        return foundIn(JSON.parse(body), id, mail.id)
      } catch (error) {
        return { is: 'cannot', why: faultOf(error).why }
      }
    },
  }
}

/** Urlencoded: FormData goes out as a stream, which takes twice the processor time. */
function formOf(mail: Mail, testMode: boolean): URLSearchParams {
  const fields: Record<string, string> = {
    from: mail.from,
    to: mail.to,
    subject: mail.subject,
    text: mail.text,
    html: mail.html,
    'h:Message-Id': messageIdOf(mail),
    'h:Date': mail.date.toUTCString(),
    'v:flotilla-job': mail.id,
    'o:tag': mail.template,
    // Links in tickets are not rewritten, and readers not watched.
    'o:tracking': 'no',
    ...(testMode && { 'o:testmode': 'yes' }),
  }
  for (const [name, value] of Object.entries(headersOf(mail))) fields[`h:${name}`] = value
  return new URLSearchParams(fields)
}

type Event = {
  event?: string
  reason?: string
  message?: { headers?: { 'message-id'?: string } }
  'user-variables'?: Record<string, string>
  'delivery-status'?: { message?: string; description?: string }
}

function foundIn(answer: { items?: Event[] }, messageId: string, jobId: string): Found {
  // The filter is Mailgun's; that these are ours is seen here.
  const ours = (answer.items ?? []).filter(
    (one) =>
      one.message?.headers?.['message-id'] === messageId ||
      one['user-variables']?.['flotilla-job'] === jobId,
  )
  // `rejected` is Mailgun's own refusal; `failed`, the receiver's, is told by webhook and suppresses the address.
  const taken = ours.some(({ event }) => event !== 'rejected')
  if (taken) return { is: 'there' }
  const [refused] = ours
  if (refused === undefined) return { is: 'absent' }
  return { is: 'rejected', why: `Mailgun rejected it: ${refused.reason ?? 'it does not say why'}` }
}
