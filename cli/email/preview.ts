// fleet email:preview: what a reader would see of a template, with made-up values: the page, the text, and the whole mail as
// a file that a mail program opens. --open shows the page in the browser.

import { spawn } from 'node:child_process'
import { mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import type { EmailJob, EmailTemplate } from '../../domain/emails.ts'
import { emailTemplates } from '../../domain/emails.ts'
import { readConfig } from '../../workers/config.ts'
import { emailSettings } from '../../workers/email/config.ts'
import { composeMail } from '../../workers/email/mime.ts'
import { createRenderer, languages } from '../../workers/email/templates.ts'
import { type Command, dataDirOf, Exit, givenOnce, known } from '../program.ts'

type Arguments = { template?: string; locale: string; out?: string; open: boolean }

const templates = emailTemplates.map((name) => ({ name }))

export const emailPreview: Command<Arguments> = (context) => ({
  command: 'email:preview [template]',
  describe: 'write what a reader of a mail would see: page, text and the mail itself',
  builder: (yargs) =>
    yargs
      .positional('template', { type: 'string', describe: emailTemplates.join(', ') })
      .option('locale', {
        type: 'string',
        default: 'en',
        requiresArg: true,
        describe: `the reader’s: ${languages.join(', ')}, or any other such as de-AT`,
      })
      .option('out', {
        type: 'string',
        requiresArg: true,
        describe: 'folder to write to; else preview in the data folder',
      })
      .option('open', {
        type: 'boolean',
        default: false,
        describe: 'show the page in the browser',
      }),
  handler: async (args) => {
    const { name: template } = known('template', args.template, templates)
    const locale = localeOf(givenOnce('locale', args.locale) ?? 'en')
    const folder = givenOnce('out', args.out) ?? join(dataDirOf(context.env), 'preview')
    const { EMAIL_FROM: from } = readConfig({ EMAIL_FROM: emailSettings.EMAIL_FROM }, context.env)
    const job = sample(template, locale)
    const rendered = (await createRenderer())(job)
    const { job_id: id, recipient: to, created_at } = job
    const mail = { id, template, from, to, ...rendered, date: new Date(String(created_at)) }
    mkdirSync(folder, { recursive: true })
    const write = (kind: string, text: string | Buffer) => {
      const path = join(folder, `${template}.${locale}.${kind}`)
      writeFileSync(path, text)
      context.say(path)
      return path
    }
    context.say(`Subject: ${rendered.subject}`)
    const page = write('html', rendered.html)
    write('txt', rendered.text)
    write('eml', await composeMail(mail))
    if (args.open) await show(page)
  },
})

/** @throws Exit 2 */
function localeOf(given: string): string {
  try {
    return Intl.getCanonicalLocales(given)[0] ?? 'en'
  } catch {
    throw new Exit(
      'usage',
      `--locale must be a language tag such as en or de-AT (it is ${JSON.stringify(given)})`,
    )
  }
}

const openers: Partial<Record<NodeJS.Platform, string>> = { darwin: 'open', win32: 'explorer' }

async function show(path: string): Promise<void> {
  const program = openers[process.platform] ?? 'xdg-open'
  const child = spawn(program, [path], { stdio: 'ignore', detached: true })
  await new Promise<void>((resolve, reject) => {
    child.once('error', () => reject(new Exit('failed', `${program} is not there: open ${path}`)))
    child.once('spawn', resolve)
  })
  child.unref()
}

/** With what is hard to show: an accent, an ampersand, an emoji, a name from right to left, seats in two rows. */
function sample(template: EmailTemplate, locale: string): EmailJob {
  const seats = ['Parkett-12-7', 'Parkett-12-8', 'Parkett-13-1']
  const currency = locale.startsWith('ja') ? 'JPY' : 'EUR'
  const order = {
    order_id: '0190a1b2-7c3d-7e4f-8a5b-6c7d8e9f0a1b',
    event_name: 'Tom & Zoë 🎻 live — عمر خيرت',
    starts_at: '2027-05-01T17:30:00.000Z',
    time_zone: 'Europe/Zagreb',
    section: 'Parkett',
    quantity: seats.length,
    seats,
    total: { amount_minor: 123_450, currency },
    locale,
  }
  const tickets = seats.map((seat, i) => ({
    ticket_id: `0190a1b2-7c3d-7e4f-8a5b-6c7d8e9f0a2${i}`,
    seat,
    code: `K7QF-22XM-${i + 1}`,
  }))
  const { event_name, starts_at, time_zone } = order
  const invitation = { event_name, starts_at, time_zone, quantity: 3, locale }
  const payloads = {
    order_confirmation: order,
    ticket_delivery: { ...order, tickets },
    quota_invitation: {
      ...invitation,
      quota_id: '0190a1b2-7c3d-7e4f-8a5b-6c7d8e9f0a3c',
      expires_at: '2027-04-24T21:59:00.000Z',
    },
    alert: {
      title: 'mail_mailgun was switched off: email:mailgun is away',
      facts: [
        { label: 'Why', value: 'HTTP 503 <html>…' },
        { label: 'At', value: '2027-03-01T09:59:58.123Z' },
      ],
      locale,
    },
  }
  return {
    job_id: 'preview',
    type: 'email',
    template,
    recipient: 'reader@example.org',
    payload: payloads[template],
    created_at: '2027-03-01T10:00:00.000Z',
    attempts: 0,
    max_attempts: 3,
  } as EmailJob
}
