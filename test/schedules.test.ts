// Schedules: the times they name, also where clocks change, against a walk over every minute; and one firing a time on
// a real Postgres, however many claim it, whatever happens to the clock.

import assert from 'node:assert/strict'
import { before, beforeEach, describe, test } from 'node:test'
import fc from 'fast-check'
import { sql } from 'kysely'
import { claimFiring } from '../db/schedules.ts'
import { transaction } from '../db/transaction.ts'
import { nextFiring, type Schedule } from '../domain/schedules.ts'
import { scheduledPass } from '../workers/schedule.ts'
import { type TestDatabase, testDatabase } from './database.ts'

const minuteMs = 60_000
const dayMs = 86_400_000

function firings(schedule: Schedule, after: string, count: number): string[] {
  const times: string[] = []
  for (let at = new Date(after); times.length < count; ) {
    at = nextFiring(schedule, at)
    times.push(at.toISOString().slice(0, 16))
  }
  return times
}

describe('the times of a schedule', () => {
  test('an interval counts from the epoch, below a minute too', () => {
    assert.deepEqual(
      ['2026-11-01T00:00:00.000Z', '2026-11-01T00:00:00.001Z', '2026-11-01T00:00:29.999Z'].map(
        (after) => nextFiring({ everyMs: 30_000 }, new Date(after)).toISOString(),
      ),
      Array(3).fill('2026-11-01T00:00:30.000Z'),
    )
  })

  const changes = [
    {
      what: 'half past two is skipped',
      cron: '30 2 * * *',
      after: '2026-03-08T05:00',
      zone: 'America/New_York',
      at: ['2026-03-08T07:00', '2026-03-09T06:30'],
    },
    {
      what: 'half past two is skipped',
      cron: '30 2 * * *',
      after: '2026-03-28T12:00',
      zone: 'Europe/Berlin',
      at: ['2026-03-29T01:00', '2026-03-30T00:30'],
    },
    {
      what: 'two of a skipped half hour fall together',
      cron: '15,20 2 * * *',
      after: '2026-10-03T00:00',
      zone: 'Australia/Lord_Howe',
      at: ['2026-10-03T15:30', '2026-10-04T15:15'],
    },
    {
      what: 'midnight is skipped',
      cron: '0 0 * * 5',
      after: '2026-04-20T00:00',
      zone: 'Africa/Cairo',
      at: ['2026-04-23T22:00', '2026-04-30T21:00'],
    },
    {
      what: 'a whole day is skipped',
      cron: '0 12 30 12 *',
      after: '2011-12-20T00:00',
      zone: 'Pacific/Apia',
      at: ['2011-12-30T10:00', '2012-12-29T22:00'],
    },
    {
      what: 'half past one comes twice',
      cron: '30 1 * * *',
      after: '2026-11-01T04:00',
      zone: 'America/New_York',
      at: ['2026-11-01T05:30', '2026-11-02T06:30'],
    },
    {
      what: 'half past two comes twice',
      cron: '30 2 * * *',
      after: '2026-10-24T12:00',
      zone: 'Europe/Berlin',
      at: ['2026-10-25T00:30', '2026-10-26T01:30'],
    },
    {
      what: 'the second half past one is none',
      cron: '30 1 * * *',
      after: '2026-11-01T06:10',
      zone: 'America/New_York',
      at: ['2026-11-02T06:30'],
    },
    {
      what: 'two of an hour that comes twice',
      cron: '0,30 1 * * *',
      after: '2026-11-01T04:00',
      zone: 'America/New_York',
      at: ['2026-11-01T05:00', '2026-11-01T05:30', '2026-11-02T06:00'],
    },
    {
      what: 'every hour goes on in spring',
      cron: '30 * * * *',
      after: '2026-03-29T00:00',
      zone: 'Europe/Berlin',
      at: ['2026-03-29T00:30', '2026-03-29T01:30'],
    },
    {
      what: 'every hour goes on in autumn',
      cron: '30 * * * *',
      after: '2026-10-25T00:00',
      zone: 'Europe/Berlin',
      at: ['2026-10-25T00:30', '2026-10-25T01:30'],
    },
    {
      what: 'a leap day that comes after eight years',
      cron: '0 0 29 feb *',
      after: '2096-03-01T00:00',
      zone: 'UTC',
      at: ['2104-02-29T00:00'],
    },
    {
      what: 'the first or a Monday',
      cron: '0 0 1 * mon',
      after: '2026-11-24T00:00',
      zone: 'UTC',
      at: ['2026-11-30T00:00', '2026-12-01T00:00', '2026-12-07T00:00'],
    },
  ]
  for (const { what, cron, zone, after, at } of changes) {
    test(`${cron} ${zone}: ${what}`, () => {
      assert.deepEqual(firings({ cron, timeZone: zone }, `${after}:00Z`, at.length), at)
    })
  }

  test('what cannot be read is refused, and the error says what is right', () => {
    const fault = (schedule: Schedule) => {
      try {
        return `fires at ${nextFiring(schedule, new Date()).toISOString()}`
      } catch (error) {
        return (error as Error).message
      }
    }
    const cron = (text: string, timeZone = 'UTC') => fault({ cron: text, timeZone })
    assert.match(cron('* * * *'), /has 4 fields, not five: minute, hour, day of month/)
    for (const minute of ['60', '5-1', '*/0', '5/2', 'x', '1,', '-1', '1-2-3', '1e1']) {
      assert.match(cron(`${minute} * * * *`), /^the minute .* is not understood: 0 to 59/)
    }
    assert.match(cron('0 0 30 2 *'), /never fires/)
    assert.match(cron('0 0 * * *', 'Mars/Base'), /"Mars\/Base" is no time zone.*Europe\/Berlin/)
    assert.match(fault({ everyMs: 0.5 }), /everyMs must be a whole number above 0/)
  })
})

/** What clocks on the wall show at each minute around a change, told by Intl. */
function wallClock(timeZone: string, around: string): { at: number; wall: number }[] {
  const format = new Intl.DateTimeFormat('en-US', {
    timeZone,
    hourCycle: 'h23',
    year: 'numeric',
    month: 'numeric',
    day: 'numeric',
    hour: 'numeric',
    minute: 'numeric',
  })
  const middle = Date.parse(around)
  return Array.from({ length: (5 * dayMs) / minuteMs }, (_, i) => {
    const at = middle - 2 * dayMs + i * minuteMs
    const [month, day, year, hour, minute] = format.format(at).match(/\d+/g)!.map(Number)
    return { at, wall: Date.UTC(year!, month! - 1, day, hour, minute) }
  })
}

test('fires when a walk over every minute says so, wherever clocks change', () => {
  const places = [
    ['America/New_York', '2026-03-08T07:00Z'],
    ['America/New_York', '2026-11-01T06:00Z'],
    ['Europe/Berlin', '2026-03-29T01:00Z'],
    ['Europe/Berlin', '2026-10-25T01:00Z'],
    ['Australia/Lord_Howe', '2026-10-03T15:30Z'],
    ['Australia/Lord_Howe', '2026-04-04T15:00Z'],
    ['America/Sao_Paulo', '2018-11-04T03:00Z'],
    ['America/Sao_Paulo', '2018-02-18T02:00Z'],
    ['Africa/Cairo', '2026-04-23T22:00Z'],
    ['America/St_Johns', '2010-11-07T02:31Z'],
    ['Pacific/Apia', '2011-12-30T10:00Z'],
    ['Asia/Kathmandu', '2026-06-01T00:00Z'],
  ].map(([zone, around]) => ({ zone: zone!, minutes: wallClock(zone!, around!) }))

  type Sets = { minutes: number[]; hours: number[]; weekdays: number[] }
  /** One walk: a time on the wall fires when it first comes, a skipped one with the first that follows. */
  function walk(minutes: { at: number; wall: number }[], { minutes: ms, hours, weekdays }: Sets) {
    const isNamed = (wall: number) => {
      const date = new Date(wall)
      return (
        ms.includes(date.getUTCMinutes()) &&
        hours.includes(date.getUTCHours()) &&
        weekdays.includes(date.getUTCDay())
      )
    }
    const everyHour = hours.length === 24
    const seen = new Set<number>()
    return minutes.flatMap(({ at, wall }, i) => {
      const due = everyHour || !seen.has(wall) ? [wall] : []
      seen.add(wall)
      const before = minutes[i - 1]?.wall ?? wall
      if (!everyHour) for (let t = before + minuteMs; t < wall; t += minuteMs) due.push(t)
      return due.some(isNamed) ? [at] : []
    })
  }

  const some = (low: number, high: number) =>
    fc.uniqueArray(fc.integer({ min: low, max: high }), { minLength: 1, maxLength: 4 })
  const all = (count: number) => Array.from({ length: count }, (_, i) => i)
  const sets = fc.record({
    minutes: fc.oneof(some(0, 59), fc.constant(all(60))),
    hours: fc.oneof(some(0, 3), some(0, 23), fc.constant(all(24))),
    weekdays: fc.oneof(
      { weight: 3, arbitrary: fc.constant(all(7)) },
      { weight: 1, arbitrary: some(0, 6) },
    ),
  })
  const anywhere = fc.record({
    place: fc.constantFrom(...places),
    sets,
    // Two days of the walk lie before, so that it knows what was seen.
    start: fc.integer({ min: 1.5 * 1440, max: 3 * 1440 }),
    seconds: fc.integer({ min: 0, max: 59 }),
  })
  const field = (values: number[], count: number) => (values.length === count ? '*' : values.join())
  fc.assert(
    fc.property(anywhere, ({ place, sets: named, start, seconds }) => {
      const { minutes, hours, weekdays } = named
      const cron = `${field(minutes, 60)} ${field(hours, 24)} * * ${field(weekdays, 7)}`
      const after = place.minutes[start]!.at + seconds * 1000
      const expected = walk(place.minutes, named).filter((at) => at > after)
      let at = new Date(after)
      for (const time of expected.slice(0, 6)) {
        at = nextFiring({ cron, timeZone: place.zone }, at)
        assert.equal(at.toISOString(), new Date(time).toISOString(), `${cron} ${place.zone}`)
      }
      if (expected.length > 0) return
      const end = place.minutes.at(-1)!.at
      assert.ok(nextFiring({ cron, timeZone: place.zone }, at).getTime() > end)
    }),
    { numRuns: 500 },
  )
})

describe('the firings of a schedule', () => {
  const every = (seconds: number): Schedule => ({ everyMs: seconds * 1000 })
  /** So long that none of a test's claims meets a real firing. */
  const daily = every(86_400)
  const hourly: Schedule = { cron: '0 * * * *', timeZone: 'UTC' }
  let fresh: TestDatabase
  before(async () => {
    fresh = await testDatabase()
  })
  beforeEach(() => sql`truncate schedules`.execute(fresh.db))

  const claim = (schedule: Schedule, name = 'tick') => claimFiring(fresh.db, name, schedule)
  /** As if the clock had gone on by so long: everything lies further back. */
  const later = (time: string) =>
    sql`update schedules set next_at = next_at - ${time}::interval,
      fired_at = fired_at - ${time}::interval`.execute(fresh.db)
  const row = async () => {
    const { rows } = await sql<{ next_at: Date; fired_at: Date | null; now: Date }>`
      select next_at, fired_at, clock_timestamp() as now from schedules`.execute(fresh.db)
    return rows[0]!
  }
  /** The row knows of a firing that is due. */
  const due = async (schedule: Schedule) => {
    await claim(schedule)
    await later('1 day')
  }

  test('a schedule seen for the first time waits for its next time', async () => {
    const { rows } = await sql<{ before: Date }>`select clock_timestamp() as before`.execute(
      fresh.db,
    )
    const { scheduledAt, waitMs } = await claim(every(30))
    assert.equal(scheduledAt, undefined)
    assert.ok(waitMs > 0 && waitMs <= 30_000)
    const { next_at } = await row()
    assert.equal(next_at.getTime() % 30_000, 0)
    assert.ok(next_at > rows[0]!.before)
  })

  for (const count of [2, 8]) {
    test(`${count} claimers at once: one fires, and knows when it was due`, async () => {
      const pools = Array.from({ length: count }, () => fresh.open())
      for (let round = 0; round < 10; round++) {
        await due(daily)
        const { next_at } = await row()
        const claims = await Promise.all(pools.map(({ db }) => claimFiring(db, 'tick', daily)))
        const fired = claims.filter(({ scheduledAt }) => scheduledAt !== undefined)
        assert.deepEqual(
          fired.map(({ scheduledAt }) => scheduledAt),
          [next_at],
        )
        assert.ok(claims.every(({ waitMs }) => waitMs > 0 && waitMs <= 86_400_000))
      }
    })
  }

  test('claimers at once in serializable transactions: one fires', async () => {
    const pools = Array.from({ length: 4 }, () => fresh.open())
    await due(daily)
    const claims = await Promise.all(
      pools.map(({ db }) => transaction(db, (tx) => claimFiring(tx, 'tick', daily))),
    )
    assert.equal(claims.filter(({ scheduledAt }) => scheduledAt !== undefined).length, 1)
  })

  test('first looks at once make one row', async () => {
    const pools = Array.from({ length: 4 }, () => fresh.open())
    await Promise.all(pools.map(({ db }) => claimFiring(db, 'tick', daily)))
    assert.ok((await row()).next_at)
  })

  test('a firing that is rolled back is left for the next', async () => {
    await due(daily)
    const undone = transaction(fresh.db, async (tx) => {
      assert.ok((await claimFiring(tx, 'tick', daily)).scheduledAt)
      throw new Error('changed my mind')
    })
    await assert.rejects(undone, /changed my mind/)
    assert.ok((await claim(daily)).scheduledAt)
  })

  test('what was missed for days fires once, at once', async () => {
    await due(daily)
    await later('5 days')
    assert.ok((await claim(daily)).scheduledAt)
    assert.equal((await claim(daily)).scheduledAt, undefined)
    const { next_at, fired_at, now } = await row()
    assert.ok(next_at > now && next_at.getTime() - now.getTime() <= 86_400_000)
    assert.ok(fired_at && fired_at <= now)
  })

  test('a clock set back by less than the interval repeats nothing', async () => {
    await due(daily)
    assert.ok((await claim(daily)).scheduledAt)
    const { next_at } = await row()
    await later('-23 hours')
    assert.equal((await claim(daily)).scheduledAt, undefined)
    const moved = await row()
    assert.equal(moved.next_at.getTime(), nextFiring(daily, moved.fired_at!).getTime())
    assert.ok(moved.next_at >= next_at)
  })

  test('a clock set back for longer silences no interval', async () => {
    await due(every(30))
    assert.ok((await claim(every(30))).scheduledAt)
    await later('-1 day')
    const { waitMs } = await claim(every(30))
    assert.ok(waitMs <= 30_000)
    assert.ok((await row()).next_at.getTime() - Date.now() < 60_000)
  })

  test('a clock set back by two hours repeats no time that cron names', async () => {
    await due(hourly)
    assert.ok((await claim(hourly)).scheduledAt)
    await later('-2 hours')
    const { waitMs } = await claim(hourly)
    assert.ok(waitMs > 2 * 3_600_000, `waits ${waitMs} ms`)
  })

  test('a changed interval counts at once, shorter or longer, without a firing', async () => {
    for (const seconds of [86_400, 30, 7 * 86_400]) {
      assert.equal((await claim(every(seconds))).scheduledAt, undefined)
      const { next_at, now } = await row()
      assert.equal(next_at.getTime(), nextFiring(every(seconds), now).getTime())
    }
  })

  test('a schedule that was removed stays silent beside the others', async () => {
    await claim(daily, 'removed')
    await due(daily)
    assert.ok((await claim(daily)).scheduledAt)
    const { rows } = await sql<{ name: string }>`
      select name from schedules where fired_at is not null`.execute(fresh.db)
    assert.deepEqual(rows, [{ name: 'tick' }])
  })

  test('a scheduled pass runs on one of two instances, again and again until it is idle', async () => {
    const { signal } = new AbortController()
    const ran: string[] = []
    const left = [3, 2, 0]
    const instance = (who: string) =>
      scheduledPass({
        db: fresh.open().db,
        name: 'tick',
        schedule: daily,
        async pass() {
          ran.push(who)
          return left.shift() ?? 0
        },
      })
    const [one, two] = [instance('one'), instance('two')]
    assert.notEqual(await one(signal, 10), 0)
    assert.deepEqual(ran, [])
    await later('1 day')
    assert.equal(await two(signal, 10), 3)
    const waiting = (await one(signal, 10)) as { waitMs: number }
    assert.ok(waiting.waitMs > 0)
    assert.equal(await two(signal, 10), 2)
    assert.deepEqual(await two(signal, 10), { waitMs: 0 })
    assert.ok(((await two(signal, 10)) as { waitMs: number }).waitMs > 0)
    assert.deepEqual(ran, ['two', 'two', 'two'])
  })

  test('a scheduled pass that fails is run again by its instance', async () => {
    const { signal } = new AbortController()
    await due(daily)
    const { next_at } = await row()
    const times: Date[] = []
    const pass = scheduledPass({
      db: fresh.db,
      name: 'tick',
      schedule: daily,
      async pass(_signal, _handledMax, scheduledAt) {
        times.push(scheduledAt)
        if (times.length === 1) throw new Error('the disk is full')
        return 0
      },
    })
    await assert.rejects(async () => pass(signal, 10), /the disk is full/)
    assert.deepEqual(await pass(signal, 10), { waitMs: 0 })
    assert.deepEqual(times, [next_at, next_at])
  })
})
