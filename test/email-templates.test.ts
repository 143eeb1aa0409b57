// What mails look like: their words in each language, money and times, and what may not happen to a value on its way.

import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { describe, test } from 'node:test'
import { decodeEmailJob } from '../domain/emails.ts'
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
    ]
    assert.deepEqual(decodeEmailJob(job), job)
    for (const [data, message] of wrong) assert.throws(() => decodeEmailJob(data), message)
  })
})
