// What is kept and shown of errors and payloads: no secrets, no personal data, and still something to go by.

import assert from 'node:assert/strict'
import { test } from 'node:test'
import { mask, redact } from '../domain/redact.ts'

for (const { what, text, left } of [
  {
    what: 'a mail address',
    text: 'no such user anna.b+x@mail.example.org',
    left: 'no such user ***@***',
  },
  { what: 'a mail address in brackets', text: '<anna@example.org>: 550', left: '<***@***>: 550' },
  {
    what: 'credentials in a URL',
    text: 'smtp://me:secret@host said no',
    left: 'smtp://***@host said no',
  },
  {
    what: 'a bearer token',
    text: 'Authorization: Bearer abcdefgh.12345',
    left: 'Authorization: Bearer ***',
  },
  {
    what: 'a JWT',
    text: 'got eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJ4In0.c2ln-_x, refused',
    left: 'got ***, refused',
  },
  {
    what: 'a Stripe key',
    text: 'key sk_live_51H8aaaaBBBBccccDDDD is wrong',
    left: 'key *** is wrong',
  },
  {
    what: 'a Mailgun key',
    text: `key-${'0123456789abcdef'.repeat(2)} is wrong`,
    left: '*** is wrong',
  },
  { what: 'an AWS key', text: 'AKIAIOSFODNN7EXAMPLE is wrong', left: '*** is wrong' },
  { what: 'a Slack token', text: 'xoxb-123456789012-abcdef', left: '***' },
  {
    what: 'a private key',
    text: '-----BEGIN PRIVATE KEY-----\nMII\n-----END PRIVATE KEY-----\n',
    left: '***\n',
  },
  {
    what: 'a private key that was cut',
    text: 'x -----BEGIN RSA PRIVATE KEY-----\nMII',
    left: 'x ***',
  },
  {
    what: 'a password in a query',
    text: '/x?user=1&password=hunter2&a=b',
    left: '/x?user=1&password=***&a=b',
  },
  {
    what: 'a secret in JSON',
    text: '{"client_secret":"abc123","a":1}',
    left: '{"client_secret":"***","a":1}',
  },
  { what: 'a card number', text: 'card 4242 4242 4242 4242 declined', left: 'card *** declined' },
  { what: 'a card number without blanks', text: 'card 378282246310005', left: 'card ***' },
]) {
  test(`redact takes out ${what}`, () => {
    assert.equal(redact(text), left)
    assert.equal(redact(redact(text)), left, 'what is redacted stays as it is')
  })
}

for (const text of [
  'job 019abcde-1234-7abc-8def-0123456789ab failed at 2026-01-02T03:04:05.678Z',
  'job 42424242-4242-4242-4242-424242424242 is not a card',
  'order 4242424242424241 has no check digit that fits',
  'after 1767323045678 ms at 1767323045678901 µs',
  'the provider answered 429: try again after 30 s',
  'the token is over its time',
  'connect ECONNREFUSED 127.0.0.1:5432',
]) {
  test(`redact leaves alone: ${text}`, () => assert.equal(redact(text), text))
}

test('redact takes its time with a megabyte, but not an hour', () => {
  const began = performance.now()
  for (const part of ['a', 'a.', '4 ', 'token', 'eyJaaaaaaaa', 'x://'])
    redact(part.repeat(1e6 / part.length))
  assert.ok(performance.now() - began < 10_000)
})

test('mask keeps the shape of a payload and hides persons and secrets in it', () => {
  const payload = {
    job_id: '019abcde-1234-7abc-8def-0123456789ab',
    type: 'email',
    template: 'ticket_delivery',
    recipient: 'anna@example.org',
    attempts: 0,
    payload: {
      event_name: 'Concert for Anna',
      quantity: 2,
      total: { amount_minor: 4200, currency: 'EUR' },
      tickets: [{ ticket_id: 't1', seat: 'A-1-2', code: 'opens-the-door' }],
      note: 'call anna@example.org or charge 4242424242424242',
      card_number: 4242424242424242,
      odd: 5555555555554444,
      fcm_tokens: ['abc', 'def'],
      first_name: 'Anna',
      devices: { phone: 'x' },
      gone: null,
      sent: true,
    },
  }
  assert.deepEqual(mask(payload), {
    job_id: '019abcde-1234-7abc-8def-0123456789ab',
    type: 'email',
    template: 'ticket_delivery',
    recipient: '***',
    attempts: 0,
    payload: {
      event_name: 'Concert for Anna',
      quantity: 2,
      total: { amount_minor: 4200, currency: 'EUR' },
      tickets: [{ ticket_id: 't1', seat: 'A-1-2', code: '***' }],
      note: 'call ***@*** or charge ***',
      card_number: '***',
      odd: '***',
      fcm_tokens: '***',
      first_name: '***',
      devices: '***',
      gone: null,
      sent: true,
    },
  })
})

test('mask takes what is no object as well', () => {
  assert.deepEqual(
    [null, 7, 'anna@example.org', [true]].map((one) => mask(one)),
    [null, 7, '***@***', [true]],
  )
})
