// The providers against real servers: Mailgun's API as a process of its own, a mail server that parses what it gets.
// What goes out, and what each answer is taken for.

import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { after, before, beforeEach, describe, test } from 'node:test'
import { decodeEmailJob } from '../domain/emails.ts'
import { createMailgun } from '../workers/email/mailgun.ts'
import { answerOf } from '../workers/email/mailgunAnswers.ts'
import type { Mail } from '../workers/email/provider.ts'
import { createSmtp } from '../workers/email/smtp.ts'
import { parseSmtpUrl } from '../workers/email/smtpUrl.ts'
import { createRenderer } from '../workers/email/templates.ts'
import { mailJob, type Tickets } from './emailJobs.ts'
import { type Answer, apiKey, domain, type Mailgun, startMailgun } from './servers/mailgun.ts'
import { type MailServer, openMailServer } from './servers/mailServer.ts'

const signal = new AbortController().signal
const render = await createRenderer()
const from = 'Tickets <tickets@shop.example>'

function mailOf(changed: Partial<Tickets> & { locale?: string } = {}): Mail {
  const job = decodeEmailJob(mailJob('ticket_delivery', changed))
  const { subject, html, text } = render(job)
  const { job_id: id, template, recipient: to, created_at } = job
  return { id, template, from, to, subject, html, text, date: new Date(String(created_at)) }
}

describe('mailgun', () => {
  let server: Mailgun
  const open = (over: object = {}) =>
    createMailgun({ url: server.url, domain, apiKey, timeoutMs: 10_000, ...over })
  const answers = (answer: Answer) => server.mood({ answer, latencyMs: 0 })

  before(async () => {
    server = await startMailgun()
  })
  after(() => server.stop())
  beforeEach(() => server.reset())

  test('is given the mail with our id as Message-Id and as custom variable, and says that it has it', async () => {
    const mail = mailOf()
    assert.deepEqual(await open().send(mail, signal), { is: 'sent' })
    const [message] = (await server.seen()).messages
    const { fields } = message!
    assert.equal(fields['h:Message-Id'], `<${mail.id}@shop.example>`)
    assert.equal(fields['v:flotilla-job'], mail.id)
    assert.equal(fields['o:tag'], 'ticket_delivery')
    assert.equal(fields['o:testmode'], undefined)
    assert.deepEqual(
      [fields.from, fields.to, fields.subject, fields.text, fields.html],
      [from, mail.to, mail.subject, mail.text, mail.html],
    )
  })

  test('is asked for a mail, which it shows as late as it does', async () => {
    const mail = mailOf()
    const provider = open()
    assert.deepEqual(await provider.find?.(mail, 0, signal), { is: 'absent' })
    await server.mood({ visibleAfterMs: 3_600_000 })
    await provider.send(mail, signal)
    assert.deepEqual(await provider.find?.(mail, 0, signal), { is: 'absent' })
    await server.mood({ visibleAfterMs: 0 })
    assert.deepEqual(await provider.find?.(mail, 0, signal), { is: 'there' })
    assert.deepEqual(await provider.find?.(mailOf(), 0, signal), { is: 'absent' })
    await server.mood({ event: 'rejected' })
    assert.deepEqual((await provider.find?.(mail, 0, signal))?.is, 'rejected')
    await server.mood({ eventsStatus: 503 })
    assert.deepEqual((await provider.find?.(mail, 0, signal))?.is, 'cannot')
  })

  test('may have it after a 5xx, a timeout and a broken connection, and not when nobody listens', async () => {
    for (const accepts of [true, false]) {
      await answers({ is: 'fault', accepts })
      assert.equal((await open().send(mailOf(), signal)).is, 'unknown')
      await answers({ is: 'hang-up', accepts })
      assert.equal((await open().send(mailOf(), signal)).is, 'unknown')
      await answers({ is: 'silence', accepts })
      assert.equal((await open({ timeoutMs: 200 }).send(mailOf(), signal)).is, 'unknown')
    }
    await server.stop()
    const outcome = await open().send(mailOf(), signal)
    await server.start()
    assert.equal(outcome.is, 'down')
    const nowhere = open({ url: 'http://no-such-host.invalid' })
    assert.equal((await nowhere.send(mailOf(), signal)).is, 'down')
  })

  test('does not let us in with a wrong key or a strange domain: that is no mail’s fault', async () => {
    const wrong = await open({ apiKey: 'wrong' }).send(mailOf(), signal)
    assert.deepEqual(wrong, {
      is: 'down',
      why: 'Mailgun answered 401: Forbidden (is MAILGUN_API_KEY right?)',
    })
    const strange = await open({ domain: 'other.example' }).send(mailOf(), signal)
    assert.equal(strange.is, 'down')
    assert.match('why' in strange ? strange.why : '', /MAILGUN_DOMAIN/)
  })

  test('is told in a dry run to deliver to nobody', async () => {
    await open({ testMode: true }).send(mailOf(), signal)
    assert.equal((await server.seen()).messages[0]?.fields['o:testmode'], 'yes')
  })

  test('takes a mail of a thousand tickets', async () => {
    const tickets = Array.from({ length: 1000 }, (_, i) => ({
      ticket_id: randomUUID(),
      seat: `Stalls-${i}-1`,
      code: `CODE-${i}`,
    }))
    assert.equal((await open().send(mailOf({ tickets }), signal)).is, 'sent')
    assert.match((await server.seen()).messages[0]?.fields.text ?? '', /seat 1: CODE-999\n/)
  })
})

test('what Mailgun refuses is told apart by its words as well as its status', () => {
  const no = new Headers()
  const limit = 'Domain mg.shop.example is not allowed to send: recipient limit exceeded'
  const cases: [number, string, string][] = [
    [429, JSON.stringify({ message: limit }), 'limits'],
    [420, JSON.stringify({ message: limit }), 'limits'],
    [400, JSON.stringify({ message: limit }), 'limits'],
    [
      403,
      'You are sending too fast. Your account is on probation and the account has been temporarily disabled.',
      'limits',
    ],
    [402, JSON.stringify({ message: 'request limit exceeded' }), 'limits'],
    [402, '', 'down'],
    [403, JSON.stringify({ message: 'Domain mg.shop.example is disabled' }), 'down'],
    [
      400,
      JSON.stringify({
        message: 'Domain mg.shop.example is not allowed to send: The domain is unverified',
      }),
      'down',
    ],
    [
      400,
      JSON.stringify({
        message:
          'Sandbox subdomains are for test purposes only. Please add the address to authorized recipients',
      }),
      'rejected',
    ],
    [
      400,
      JSON.stringify({
        message: 'to parameter is not a valid address. please check documentation',
      }),
      'rejected',
    ],
    [413, JSON.stringify({ message: 'request size exceeds 52.4MiB limit' }), 'rejected'],
    [301, '', 'down'],
    [408, '', 'retry'],
    [500, '<html>', 'unknown'],
    [502, '', 'unknown'],
    [503, JSON.stringify({ message: limit }), 'unknown'],
    [200, JSON.stringify({ id: '<1@mg.shop.example>', message: 'Queued. Thank you.' }), 'sent'],
    // Asked for: a proxy says so as well.
    [200, '<html>', 'unknown'],
  ]
  for (const [status, body, expected] of cases) {
    const outcome = answerOf(status, no, body)
    const is = outcome.is === 'retry' && outcome.limits ? 'limits' : outcome.is
    assert.equal(is, expected, `${status} ${body}`)
  }
})

test('how long Mailgun wants to be left alone is read from its words and its headers', () => {
  const waits = (headers: Record<string, string>, body = '') => {
    const outcome = answerOf(429, new Headers(headers), body)
    return outcome.is === 'retry' ? Math.round(outcome.afterMs / 1000) : undefined
  }
  const date = new Date(Date.now() + 90_000).toUTCString().replace('GMT', 'UTC')
  const near = (seconds: number | undefined, expected: number) =>
    assert.ok(Math.abs(Number(seconds) - expected) <= 2, `${seconds} s, not ${expected}`)
  near(waits({}, JSON.stringify({ message: `limit exceeded, try again after ${date}` })), 90)
  near(waits({ 'x-ratelimit-reset': String(Date.now() / 1000 + 45.5) }), 45)
  near(waits({ 'retry-after': '30' }), 30)
  near(waits({ 'retry-after': new Date(Date.now() + 60_000).toUTCString() }), 60)
  near(waits({}, '{"message":"rate limited","retry-seconds":75}'), 75)
  near(waits({}), 0)
  near(waits({}, 'limit exceeded, try again after Mon, 20 Dec 2021 20:33:21 UTC'), 0)
  near(waits({ 'retry-after': '99999999' }), 86_400)
})

describe('smtp', () => {
  let server: MailServer
  const providers: { close?(): Promise<void> }[] = []
  const open = (url = `smtp://127.0.0.1:${server.port}`, timeoutMs = 10_000) => {
    const provider = createSmtp({ server: parseSmtpUrl(url), timeoutMs })
    providers.push(provider)
    return provider
  }

  before(async () => {
    server = await openMailServer()
  })
  beforeEach(() => {
    server.mails.length = 0
    server.mishap = undefined
  })
  after(async () => {
    for (const provider of providers) await provider.close?.()
  })

  test('brings a mail whole: long lines, emoji, a name from right to left, both parts', async () => {
    const event_name = `حفلة موسيقية 🎸 ${'very '.repeat(150)}long`
    const mail = mailOf({ event_name, locale: 'ja' })
    assert.deepEqual(await open().send(mail, signal), { is: 'sent' })
    const [{ parsed, raw, to }] = server.mails as [MailServer['mails'][0]]
    assert.deepEqual(to, [mail.to])
    assert.equal(parsed.messageId, `<${mail.id}@shop.example>`)
    assert.equal(parsed.headers.get('x-flotilla-job'), mail.id)
    assert.equal(parsed.subject, mail.subject)
    assert.equal(parsed.text?.trim(), mail.text.trim())
    assert.equal(String(parsed.html).trim(), mail.html.trim())
    assert.ok(
      parsed.text?.includes(`\u2068${event_name}\u2069`),
      'kept apart from what is around it',
    )
    assert.ok(String(parsed.html).includes(`<bdi>${event_name}</bdi>`))
    for (const line of raw.split('\r\n')) assert.ok(line.length <= 998, 'RFC 5322 2.1.1')
    assert.ok(!/[^ -~\r\n]/.test(raw), 'seven bits')
  })

  test('lets no value into the head or the markup', async () => {
    const event_name = 'x\r\nBcc: all@example.org\r\n\r\n<img src=x onerror=alert(1)>'
    await open().send(mailOf({ event_name }), signal)
    const [{ parsed }] = server.mails as [MailServer['mails'][0]]
    assert.equal(parsed.headers.get('bcc'), undefined)
    assert.match(parsed.subject ?? '', /Bcc: all@example\.org <img/)
    assert.ok(!String(parsed.html).includes('<img'))
  })

  test('uses a connection again, and another when the server has ended it', async () => {
    const provider = open()
    const before = server.connections
    for (let i = 0; i < 3; i++) await provider.send(mailOf(), signal)
    assert.equal(server.connections - before, 1)
    server.mishap = { at: 'end', does: 'hang-up', takes: true }
    assert.equal((await provider.send(mailOf(), signal)).is, 'unknown')
    server.mishap = undefined
    assert.equal((await provider.send(mailOf(), signal)).is, 'sent')
    assert.equal(server.connections - before, 2)
  })

  test('tells refusals apart: for now, for good, of this mail, of all', async () => {
    const cases = [
      [{ at: 'connect', code: 421, text: 'busy' }, 'down'],
      [{ at: 'connect', code: 554, text: 'no' }, 'down'],
      [{ at: 'from', code: 451, text: 'try later' }, 'retry'],
      [{ at: 'from', code: 550, text: 'who are you' }, 'down'],
      [{ at: 'from', code: 552, text: 'too large' }, 'rejected'],
      [{ at: 'to', code: 450, text: 'greylisted' }, 'retry'],
      [{ at: 'to', code: 550, text: 'no such user' }, 'rejected'],
      [{ at: 'data', code: 451, text: '4.7.28 rate limited' }, 'limits'],
      [{ at: 'data', code: 452, text: 'no room' }, 'retry'],
      [{ at: 'data', code: 554, text: 'spam' }, 'rejected'],
      [{ at: 'data', code: 421, text: 'going down' }, 'down'],
    ] as const
    for (const [mishap, expected] of cases) {
      server.mishap = mishap
      const outcome = await open().send(mailOf(), signal)
      const is = outcome.is === 'retry' && outcome.limits ? 'limits' : outcome.is
      assert.equal(is, expected, JSON.stringify([mishap, outcome]))
    }
    assert.equal(server.mails.length, 0)
  })

  test('does not know of a mail whose text had left when the answer did not come', async () => {
    server.mishap = { at: 'end', does: 'silence', takes: true }
    assert.equal((await open(undefined, 700).send(mailOf(), signal)).is, 'unknown')
    server.mishap = { at: 'end', does: 'hang-up', takes: false }
    assert.equal((await open().send(mailOf(), signal)).is, 'unknown')
    const nobody = open('smtp://127.0.0.1:1')
    assert.equal((await nobody.send(mailOf(), signal)).is, 'down')
    assert.equal(nobody.find, undefined)
  })

  test('refuses what is larger than the server takes, and what follows goes out over the same connection', async () => {
    const small = await openMailServer({ size: 20_000 })
    const provider = open(`smtp://127.0.0.1:${small.port}`)
    const large = { ...mailOf(), text: 'x'.repeat(30_000) }
    assert.equal((await provider.send(mailOf(), signal)).is, 'sent')
    assert.equal((await provider.send(large, signal)).is, 'rejected')
    assert.equal((await provider.send(mailOf(), signal)).is, 'sent')
    assert.deepEqual([small.mails.length, small.connections], [2, 1])
  })

  test('keeps no listener of a mail that is gone', async () => {
    const warned: Error[] = []
    const note = (warning: Error) => warned.push(warning)
    process.on('warning', note)
    const provider = open()
    for (let i = 0; i < 15; i++) await provider.send(mailOf(), signal)
    await new Promise(setImmediate)
    process.off('warning', note)
    assert.deepEqual(warned, [])
  })

  test('speaks TLS from the start, knows a strange certificate, and logs in', async () => {
    const tls = await openMailServer({ secure: true, authOptional: false })
    const at = `127.0.0.1:${tls.port}`
    const strange = await open(`smtps://ann:right@${at}`).send(mailOf(), signal)
    assert.equal(strange.is, 'down')
    assert.match('why' in strange ? strange.why : '', /certificate/i)
    const any = '?tls.rejectUnauthorized=false'
    assert.equal((await open(`smtps://ann:right@${at}${any}`).send(mailOf(), signal)).is, 'sent')
    assert.deepEqual([tls.mails[0]?.secure, tls.mails[0]?.user], [true, 'ann'])
    const wrong = await open(`smtps://ann:wrong@${at}${any}`).send(mailOf(), signal)
    assert.equal(wrong.is, 'down')
    assert.ok(!JSON.stringify(wrong).includes('wrong@'))
  })

  test('changes over to TLS when the server offers it, and insists on it where a password would be read', async () => {
    const offers = await openMailServer({ disabledCommands: [] })
    const url = `smtp://127.0.0.1:${offers.port}?tls.rejectUnauthorized=false`
    assert.equal((await open(url).send(mailOf(), signal)).is, 'sent')
    assert.equal(offers.mails[0]?.secure, true)
    const insists = open(`smtp://127.0.0.1:${server.port}?requireTLS=true`)
    assert.equal((await insists.send(mailOf(), signal)).is, 'down')
    const server_ = (text: string) => parseSmtpUrl(text).connection
    assert.equal(server_('smtp://a:b@mail.example.com').requireTLS, true)
    assert.equal(server_('smtp://a:b@localhost.example.com').requireTLS, true)
    assert.equal(server_('smtp://a:b@localhost').requireTLS, false)
    assert.equal(server_('smtp://mail.example.com').requireTLS, false)
    assert.deepEqual([server_('smtp://h').port, server_('smtps://h').port], [587, 465])
  })

  test('SMTP_URL is refused with what is right, and without its password', () => {
    const options = ['smtp://u:hush@h?pool=true', 'smtp://u:hush@h?requireTLS=1']
    for (const text of ['http://h', 'smtp://', 'mail.example.com', ...options]) {
      assert.throws(
        () => parseSmtpUrl(text),
        (error: Error) =>
          /^(must be smtp|may have only)/.test(error.message) && !/hush/.test(error.message),
      )
    }
  })
})
