// The rules of the waiting room, pure: who stands where, the draw, how many are let in.

import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import fc from 'fast-check'
import { estimateMinutes, fill, noShowRate, releasePerMinute } from '../domain/admission.ts'
import { drawPlaces, seatsOf } from '../domain/draw.ts'
import { Line } from '../domain/line.ts'
import { commitmentOf, drawFromSeed } from '../workers/waitingroom/lot.ts'

describe('the line', () => {
  test('ranks as a sorted list does, whatever joins and leaves', () => {
    const step = fc.tuple(fc.boolean(), fc.integer({ min: 1, max: 3000 }))
    fc.assert(
      fc.property(fc.array(step, { maxLength: 300 }), fc.nat(50), (steps, count) => {
        const line = new Line()
        const model = new Set<number>()
        for (const [joins, place] of steps) {
          assert.equal(joins ? line.add(place) : line.remove(place), model.has(place) !== joins)
          if (joins) model.add(place)
          else model.delete(place)
        }
        const sorted = [...model].sort((a, b) => a - b)
        assert.equal(line.size, sorted.length)
        sorted.forEach((place, i) => {
          assert.equal(line.rank(place), i + 1)
        })
        const from = sorted[3] ?? 1
        const seen: [number, number][] = []
        line.front(count, from, (place, position) => seen.push([place, position]))
        const expected = sorted.map((place, i) => [place, i + 1] as [number, number])
        assert.deepEqual(
          seen,
          expected.filter(([place, position]) => place >= from && position <= count),
        )
      }),
      { numRuns: 200 },
    )
  })
})

describe('the draw', () => {
  const seed = '00'.repeat(32)

  test('gives each place once, and the same to everybody who knows the seed', () => {
    const places = drawFromSeed(seed, 10_000)
    assert.deepEqual(drawFromSeed(seed, 10_000), places)
    assert.deepEqual(
      [...places].sort((a, b) => a - b),
      Array.from({ length: 10_000 }, (_, i) => i + 1),
    )
    const seats = seatsOf(places)
    places.forEach((place, i) => {
      assert.equal(seats[place - 1], i + 1)
    })
    assert.notDeepEqual(drawFromSeed(`01${seed.slice(2)}`, 10_000), places)
  })

  test('favours nobody: over many seeds the first to come stands everywhere alike', () => {
    const counts = new Uint32Array(8)
    const runs = 8000
    for (let i = 0; i < runs; i++) {
      counts[drawFromSeed(i.toString(16).padStart(64, '0'), 8)[0]! - 1]!++
    }
    // Chi-square of 7 degrees of freedom: above 29.9 once in ten thousand; the seeds are fixed.
    const expected = runs / 8
    const chi = counts.reduce((sum, n) => sum + (n - expected) ** 2 / expected, 0)
    assert.ok(chi < 29.9, `${chi}: ${counts}`)
  })

  test('throws a die again that would favour one side', () => {
    // 2^32 mod 3 = 1: the highest throw is passed over.
    const thrown = [0xffffffff, 5, 1]
    const view = new DataView(new ArrayBuffer(12))
    thrown.forEach((value, i) => {
      view.setUint32(4 * i, value)
    })
    const places = drawPlaces(3, () => new Uint8Array(view.buffer))
    // 5 mod 3 = 2 leaves the last, 1 mod 2 = 1 the one before.
    assert.deepEqual([...places], [1, 2, 3])
  })

  test('is bound to a seed before anybody knows it', () => {
    assert.equal(
      commitmentOf(seed),
      '66687aadf862bd776c8fc18b8e9f8e20089714856ee233b3902a591d0d5f2925',
    )
  })
})

describe('how many are let in', () => {
  test('is the rate, whatever the steps it is asked in', () => {
    fc.assert(
      fc.property(
        fc.integer({ min: 1, max: 100_000 }),
        fc.array(fc.integer({ min: 1, max: 900 }), { minLength: 100, maxLength: 200 }),
        (perMinute, steps) => {
          let bucket = { credit: 0, atMs: 0 }
          let let_in = 0
          for (const ms of steps) {
            bucket = fill(bucket, perMinute, bucket.atMs + ms, 1000)
            const whole = Math.floor(bucket.credit)
            let_in += whole
            bucket.credit -= whole
          }
          const due = (perMinute * bucket.atMs) / 60_000
          assert.ok(let_in <= due + 1e-6 && let_in > due - 1 - 1e-6, `${let_in} of ${due}`)
        },
      ),
    )
  })

  test('does not make up for time in which nobody could be let in', () => {
    assert.equal(fill({ credit: 0, atMs: 0 }, 600, 3_600_000, 1000).credit, 11)
  })

  test('makes up for those who do not turn up, as soon as enough is known, and within bounds', () => {
    assert.equal(noShowRate(3, 3), 0)
    assert.equal(noShowRate(80, 20), 0.2)
    assert.equal(noShowRate(0, 100), 0.5)
    assert.equal(releasePerMinute(600, 0.25), 800)
  })

  test('says how long it will be, by the pace that was seen', () => {
    assert.equal(estimateMinutes(1, 600, 0), 1)
    assert.equal(estimateMinutes(6001, 600, 0), 11)
    assert.equal(estimateMinutes(6000, 600, 60), 100)
    assert.equal(estimateMinutes(5, 0, 0), null)
  })
})
