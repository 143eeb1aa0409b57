// The pace of calls to a vendor against vendors of both kinds, in a time of their own: what their headers say is enough to
// use all of the limits and never be refused, whatever the calls take, and however many processes there are.

import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { readRetryAfter } from '../domain/retryAfter.ts'
import {
  freshState,
  hear,
  type PaceState,
  readDuration,
  readLimits,
  reserveCall,
  type Ticket,
  type Told,
  unheard,
} from '../domain/vendorPace.ts'
import { diceOf } from './itemRuns.ts'

type Limits = { requests: number; tokens: number; windowMs: number; kind: 'window' | 'bucket' }

/** A vendor that counts what comes at its time, and tells what is left when it came. */
function vendorOf({ requests, tokens, windowMs, kind }: Limits) {
  let [leftRequests, leftTokens, at] = [requests, tokens, 0]
  let refused = 0
  return {
    refused: () => refused,
    call(now: number, cost: number): Told {
      const passed = now - at
      if (kind === 'bucket') {
        leftRequests = Math.min(requests, leftRequests + (passed / windowMs) * requests)
        leftTokens = Math.min(tokens, leftTokens + (passed / windowMs) * tokens)
        at = now
      } else if (passed >= windowMs) {
        ;[leftRequests, leftTokens] = [requests, tokens]
        at = now - (passed % windowMs)
      }
      if (leftRequests < 1 || leftTokens < cost) refused++
      else {
        leftRequests--
        leftTokens -= cost
      }
      const reset = (limit: number, left: number) =>
        kind === 'bucket' ? ((limit - left) / limit) * windowMs : at + windowMs - now
      return {
        requests: {
          limit: requests,
          remaining: Math.floor(leftRequests),
          resetMs: reset(requests, leftRequests),
        },
        tokens: {
          limit: tokens,
          remaining: Math.floor(leftTokens),
          resetMs: reset(tokens, leftTokens),
        },
      }
    },
  }
}

type Run = {
  limits: Limits
  count: number
  latencyMs: [number, number]
  cost?: [number, number]
  lanes?: number
}

/** `lanes` calls at once, over one state. @returns when the last call began, and how many were refused */
function simulate({ limits, count, latencyMs, cost = [100, 100], lanes = 50 }: Run) {
  const random = diceOf(count)
  const between = ([least, most]: [number, number]) => least + (most - least) * random()
  const vendor = vendorOf(limits)
  let state: PaceState = freshState()
  let [begun, lastAt, inFlight] = [0, 0, 0]
  const due: { at: number; act(now: number): void }[] = []
  const later = (at: number, act: (now: number) => void) => {
    due.push({ at, act })
    due.sort((a, b) => a.at - b.at)
  }
  const ask = (now: number) => {
    if (begun >= count) return
    if (inFlight >= lanes) return later(now + 50, ask)
    const real = between(cost)
    const asked = reserveCall(state, {
      estimate: real * 0.5,
      nowMs: now,
      windowMs: limits.windowMs,
    })
    state = asked.state
    if (asked.ticket === undefined) return later(now + Math.max(1, asked.waitMs), ask)
    const ticket: Ticket = asked.ticket
    begun++
    inFlight++
    later(now + asked.waitMs, (at) => {
      lastAt = at
      const told = vendor.call(at, real)
      later(at + between(latencyMs), (back) => {
        inFlight--
        state = hear(state, ticket, told, real, back)
      })
      ask(at)
    })
  }
  later(1000, ask)
  for (let next = due.shift(); next; next = due.shift()) next.act(next.at)
  return { seconds: (lastAt - 1000) / 1000, refused: vendor.refused() }
}

describe('the pace', () => {
  for (const kind of ['window', 'bucket'] as const) {
    test(`keeps to requests a minute (${kind}): 30 of 40 within a minute, none refused`, () => {
      const limits = { requests: 40, tokens: 1_000_000, windowMs: 60_000, kind }
      const { seconds, refused } = simulate({ limits, count: 30, latencyMs: [2000, 10_000] })
      assert.equal(refused, 0)
      assert.ok(seconds <= 60, `${seconds} s`)
    })

    test(`keeps to tokens a minute (${kind}), also where it takes them for half of what they are`, () => {
      const limits = { requests: 1000, tokens: 9000, windowMs: 60_000, kind }
      const run = { limits, count: 150, latencyMs: [2000, 10_000] as [number, number] }
      const { seconds, refused } = simulate({ ...run, cost: [100, 300] })
      assert.equal(refused, 0)
      // 150 × 200 tokens are three minutes and a third at best, less what a full window or bucket gives at first.
      assert.ok(seconds > 120 && seconds < 300, `${seconds} s`)
    })

    test(`uses most of the limit for long (${kind}), with quick calls and slow ones`, () => {
      for (const latencyMs of [
        [20, 50],
        [2000, 10_000],
      ] as [number, number][]) {
        const limits = { requests: 300, tokens: 10_000_000, windowMs: 60_000, kind }
        const { seconds, refused } = simulate({ limits, count: 3000, latencyMs })
        assert.equal(refused, 0)
        assert.ok(seconds < 3000 / (300 / 60) / 0.85, `${seconds} s for ten minutes' worth`)
      }
    })
  }

  test('lets one call at a time go until the first answer, and waits no longer than one may take', () => {
    const options = { estimate: 10, nowMs: 5000, windowMs: 60_000 }
    const first = reserveCall(freshState(), options)
    assert.ok(first.ticket)
    const second = reserveCall(first.state, { ...options, nowMs: 5001 })
    assert.equal(second.ticket, undefined)
    assert.ok(reserveCall(second.state, { ...options, nowMs: 66_000 }).ticket)
    assert.ok(reserveCall(unheard(second.state, 0), { ...options, nowMs: 5002 }).ticket)
  })

  test('holds everybody for as long as the vendor asks', () => {
    const held = unheard(freshState(), 9000)
    const options = { estimate: 10, nowMs: 5000, windowMs: 60_000 }
    assert.deepEqual(reserveCall(held, options), { state: held, waitMs: 4000 })
    assert.ok(reserveCall(held, { ...options, nowMs: 9000 }).ticket)
  })

  test('takes no old answer for news, and takes off what was begun since', () => {
    const options = { estimate: 1, nowMs: 0, windowMs: 100 }
    const told = (remaining: number): Told => ({
      requests: { limit: 10, remaining, resetMs: 1000 },
      tokens: undefined,
    })
    let { state, ticket: one } = reserveCall(freshState(), options)
    state = hear(state, one as Ticket, told(9), undefined, 0)
    const two = reserveCall(state, options)
    const three = reserveCall(two.state, { ...options, nowMs: 200 })
    state = hear(three.state, three.ticket as Ticket, told(2), undefined, 300)
    state = hear(state, two.ticket as Ticket, told(9), undefined, 400)
    assert.equal(state.requestsHeard?.remaining, 2)
  })
})

test('lengths of time are read as vendors write them', () => {
  const read: [string, number | undefined][] = [
    ['6m0s', 360_000],
    ['1.5s', 1500],
    ['120ms', 120],
    ['1h2m3s', 3_723_000],
    ['7', 7000],
    ['0', 0],
    ['soon', undefined],
    ['1s later', undefined],
    ['', undefined],
  ]
  for (const [text, ms] of read) assert.equal(readDuration(text), ms, text)
  assert.equal(readRetryAfter('1.5'), 1500)
  assert.equal(
    readRetryAfter('Wed, 21 Oct 2026 07:28:00 GMT', Date.parse('2026-10-21T07:27:50Z')),
    10_000,
  )
  assert.equal(readRetryAfter('999999999'), 3_600_000)
  assert.equal(readRetryAfter('-5'), undefined)
})

test('headers that are missing or odd say nothing', () => {
  const from = (headers: Record<string, string>) => readLimits((name) => headers[name] ?? null)
  assert.deepEqual(from({}), { requests: undefined, tokens: undefined })
  const azure = {
    'x-ratelimit-limit-tokens': '-1',
    'x-ratelimit-remaining-tokens': '-1',
    'x-ratelimit-reset-tokens': '0',
    'x-ratelimit-limit-requests': '60',
    'x-ratelimit-remaining-requests': '59',
    'x-ratelimit-reset-requests': '1s',
  }
  assert.deepEqual(from(azure), {
    requests: { limit: 60, remaining: 59, resetMs: 1000 },
    tokens: undefined,
  })
})
