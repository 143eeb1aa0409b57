// What mails look like: their words in each language, money and times, and what may not happen to a value on its way.

import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { describe, test } from 'node:test'
import { decodeEmailJob, emailTemplates } from '../domain/emails.ts'
import { formatMoney, formatTime } from '../workers/email/format.ts'
import { createRenderer } from '../workers/email/templates.ts'
import { mailJob, values } from './emailJobs.ts'

describe('a mail', async () => {
  const render = await createRenderer()

  test('tells what was bought, as text and as HTML', () => {
    const { subject, text, html } = render(mailJob())
    assert.equal(subject, 'Your order for Opening night is confirmed')
    assert.equal(
      text,
      `Thank you for your order.

Event:    Opening night
When:     Friday, January 1, 2027 at 7:00 PM UTC
Section:  Stalls
Seats:    Stalls-1-1 and Stalls-1-2
Tickets:  2
Total:    €1,234.50

Your tickets come in a second e-mail.

Order 0190a1b2-0000-7000-8000-000000000001
`,
    )
    for (const part of ['Opening night', '€1,234.50', 'Stalls-1-1 and Stalls-1-2', 'lang="en"']) {
      assert.ok(html.includes(part), part)
    }
  })

  test('brings each ticket with its seat and code', () => {
    const { subject, text, html } = render(mailJob('ticket_delivery'))
    assert.equal(subject, 'Your tickets for Opening night')
    assert.match(text, /^Stalls, row 1, seat 1: K7QF-22\nStalls, row 1, seat 2: M3XD-91$/m)
    assert.equal(html.match(/K7QF-22|M3XD-91/g)?.length, 2)
    assert.match(html, />Stalls, row 1, seat 2</)
  })

  test('does without seats in a standing section', () => {
    const { seats, ...standing } = values
    const job = mailJob('ticket_delivery')
    job.payload = { ...standing, tickets: [{ ticket_id: randomUUID(), code: 'K7QF-22' }] }
    const { subject, text } = render(job)
    assert.equal(subject, 'Your ticket for Opening night')
    assert.match(text, /^Stalls: K7QF-22$/m)
  })

  test('escapes values in HTML, and lets none make a line of its own', () => {
    const event_name = '<script>alert(1)</script>\r\nBcc: all@example.org'
    const { subject, text, html } = render(mailJob('order_confirmation', { event_name }))
    assert.ok(!html.includes('<script>'))
    assert.ok(html.includes('&lt;script&gt;'))
    assert.ok(!subject.includes('\n'))
    assert.ok(text.includes('<script>alert(1)</script> Bcc: all@example.org\n'))
  })

  test('falls back to English, with its dates too, and to British ones for a Briton', () => {
    for (const locale of ['fr-CA', 'nonsense!!', '']) {
      const { language, text } = render(mailJob('order_confirmation', { locale }))
      assert.equal(language, 'en')
      assert.match(text, /Friday, January 1, 2027/)
    }
    assert.match(
      render(mailJob('order_confirmation', { locale: 'en-GB' })).text,
      /Friday,? 1 January 2027/,
    )
  })

  test('is written in the reader’s language, each with every word', () => {
    const tickets = values.tickets
    const seen = new Set<string>()
    for (const template of emailTemplates) {
      for (const locale of ['en', 'de', 'de-AT', 'hr', 'ja', 'ja-JP']) {
        const quota = { quota_id: 'q-1', expires_at: '2026-12-24T18:00:00Z' }
        const alert = { title: 'the mail is away', facts: [{ label: 'Why', value: '503' }] }
        const job = mailJob(template, { locale, tickets, ...quota, ...alert } as never)
        const { subject, text, html, language } = render(job)
        assert.equal(language, locale.slice(0, 2))
        for (const part of [subject, text, html]) {
          assert.ok(!/undefined|\{|\[object/.test(part.replace(/style="[^"]*"/g, '')), part)
        }
        assert.ok(html.includes(`lang="${language}"`))
        seen.add(`${language} ${subject}`)
      }
    }
    assert.equal(seen.size, 16)
  })

  test('counts tickets as the language does', () => {
    const invited = (quantity: number, locale: string) =>
      render(mailJob('quota_invitation', { quota_id: 'q', quantity, locale } as never)).text.split(
        '\n',
      )[0]
    assert.match(invited(1, 'hr') ?? '', /^Za vas je odvojena 1 ulaznica/)
    assert.match(invited(3, 'hr') ?? '', /^Za vas su odvojene 3 ulaznice/)
    assert.match(invited(5, 'hr') ?? '', /^Za vas je odvojeno 5 ulaznica/)
    assert.match(invited(21, 'hr') ?? '', /^Za vas je odvojena 21 ulaznica/)
    assert.match(invited(1, 'en') ?? '', /^1 ticket for/)
    assert.match(invited(1000, 'de') ?? '', /^1\.000 Tickets für/)
  })

  test('tells the time where the event is, by the name of the zone, else in UTC', () => {
    const when = (locale: string, time_zone?: string) =>
      render(mailJob('order_confirmation', { locale, ...(time_zone && { time_zone }) } as never))
        .text
    assert.match(when('de', 'Europe/Zagreb'), /1\. Januar 2027 um 20:00 MEZ/)
    assert.match(
      when('ja', 'Asia/Tokyo'),
      /2027年1月2日土曜日 4:00 JST|2027年1月2日土曜日 4:00 GMT\+9/,
    )
    assert.match(when('hr'), /1\. siječnja 2027\. u 19:00 UTC/)
  })

  test('keeps a name from right to left apart from what is around it, and lets none turn the rest', () => {
    const rtl = 'הופעה 12'
    const { text, html, subject } = render(mailJob('order_confirmation', { event_name: rtl }))
    assert.ok(text.includes(`Event:    \u2068${rtl}\u2069\n`))
    assert.ok(html.includes(`<bdi>${rtl}</bdi>`))
    assert.equal(subject, `Your order for ${rtl} is confirmed`)
    const spoofed = render(mailJob('order_confirmation', { event_name: 'safe\u202etxt.exe' }))
    for (const part of [spoofed.text, spoofed.html, spoofed.subject]) {
      assert.ok(!part.includes('\u202e'))
    }
    const family = '👩‍👩‍👧 night'
    assert.ok(render(mailJob('order_confirmation', { event_name: family })).text.includes(family))
  })

  test('may be long, and is refused when it is no mail any more, with what is right', () => {
    const tickets = Array.from({ length: 1000 }, (_, i) => ({
      ticket_id: randomUUID(),
      seat: `Stalls-${i + 1}-1`,
      code: `C-${i}`,
    }))
    const many = mailJob('ticket_delivery', { tickets })
    const { text, html } = render(decodeEmailJob(many))
    assert.equal(text.match(/^Stalls, row \d+, seat 1: C-\d+$/gm)?.length, 1000)
    assert.ok(html.includes('C-999'))
    const megabytes = 'x'.repeat(5 * 1024 * 1024)
    assert.throws(
      () => decodeEmailJob(mailJob('order_confirmation', { event_name: megabytes })),
      /^Error: payload\.event_name must have at most 1000 characters$/,
    )
    assert.throws(
      () => decodeEmailJob(mailJob('ticket_delivery', { tickets: Array(2001).fill(tickets[0]) })),
      /payload\.tickets must have at most 2000 entries/,
    )
    assert.throws(
      () => decodeEmailJob(mailJob('order_confirmation', { time_zone: 'Mars/Base' } as never)),
      /payload\.time_zone must be a time zone/,
    )
  })

  test('writes money in the units of its currency, exactly', () => {
    const cases = [
      [5, 'EUR', '€0.05'],
      [4500, 'EUR', '€45.00'],
      [4500, 'JPY', '¥4,500'],
      [4500, 'KWD', 'KWD 4.500'],
      [Number.MAX_SAFE_INTEGER, 'USD', '$90,071,992,547,409.91'],
    ] as const
    for (const [amount_minor, currency, expected] of cases) {
      const written = formatMoney({ amount_minor, currency }, 'en')
      assert.equal(written.replace(/\u00a0/g, ' '), expected)
    }
    assert.equal(formatMoney({ amount_minor: 4500, currency: 'JPY' }, 'ja'), '￥4,500')
    assert.match(formatTime(values.starts_at, 'de'), /Freitag, 1\. Januar 2027/)
  })

  test('is refused when its job is none, with what is wrong', () => {
    const job = mailJob()
    const wrong: [object, RegExp][] = [
      [{ ...job, template: 'spam' }, /template must be one of order_confirmation, ticket_del/],
      [{ ...job, recipient: 'a@b.c, d@e.f' }, /one e-mail address/],
      [{ ...job, recipient: 'a@b.c\r\nBcc: x@y.z' }, /one e-mail address/],
      [{ ...job, job_id: '../../etc/passwd' }, /job_id must be/],
      [{ ...job, payload: { ...values, starts_at: 'soon' } }, /starts_at must be a time/],
      [{ ...job, payload: { ...values, total: 5 } }, /payload\.total must be an object/],
      // Intl would count to it.
      [{ ...job, payload: { ...values, locale: { length: 2 ** 53 } } }, /locale must be a text/],
    ]
    assert.deepEqual(decodeEmailJob(job), job)
    for (const [data, message] of wrong) assert.throws(() => decodeEmailJob(data), message)
  })
})
