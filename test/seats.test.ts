// Who gets which seat: labels there and back, neighbours first, all or nothing, and never a seat twice.

import assert from 'node:assert/strict'
import { test } from 'node:test'
import fc from 'fast-check'
import {
  allocate,
  type Free,
  findSeat,
  isAdjacent,
  type Section,
  seatLabel,
} from '../domain/seats.ts'

const stalls: Section = {
  sectionNo: 1,
  name: 'Stalls-left',
  seating: { rows: 3, seatsPerRow: 4, firstSeatNo: 1 },
}
const floor: Section = { sectionNo: 2, name: 'Floor' }
const gallery: Section = {
  sectionNo: 3,
  name: 'B',
  seating: { rows: 2, seatsPerRow: 3, firstSeatNo: 13 },
}
const sections = [stalls, floor, gallery]

const whole = (section: Section) => {
  const { rows, seatsPerRow, firstSeatNo } = section.seating!
  return Array.from({ length: rows * seatsPerRow }, (_, i) => firstSeatNo + i)
}
const free = (seats: Partial<Record<number, number[]>>, standing = 0): Free => ({
  sections,
  seats: new Map([stalls, gallery].map((s) => [s.sectionNo, [...(seats[s.sectionNo] ?? [])]])),
  standing: new Map([[2, standing]]),
})

test('a label names one seat and every seat has one label', () => {
  for (const section of [stalls, gallery]) {
    for (const seatNo of whole(section)) {
      assert.deepEqual(findSeat(sections, seatLabel(section, seatNo)), { section, seatNo })
    }
  }
  assert.equal(seatLabel(stalls, 5), 'Stalls-left-2-1')
})

test('a label outside the hall names nothing', () => {
  for (const label of [
    'B-3-1',
    'B-1-4',
    'B-0-1',
    'B-01-1',
    'B-1',
    'C-1-1',
    'Floor-1-1',
    '',
    'B-1-1 ',
  ]) {
    assert.equal(findSeat(sections, label), undefined, label)
  }
})

test('neighbours come before better single seats', () => {
  const [place] = allocate([{ quantity: 3 }], free({ 1: [1, 3, 6, 7, 8] }))
  assert.deepEqual(place, { sectionNo: 1, quantity: 3, seatNos: [6, 7, 8] })
})

test('a row ends where it ends: 4 and 5 are no neighbours', () => {
  const [place] = allocate([{ quantity: 2 }], free({ 1: [4, 5], 3: [13, 14] }))
  assert.deepEqual(place?.seatNos, [13, 14])
})

test('scattered seats are given when nobody can sit together, the longest stretch first', () => {
  const [place] = allocate([{ quantity: 3 }], free({ 1: [1, 3, 7, 8] }))
  assert.deepEqual(place?.seatNos, [1, 7, 8])
})

test('a hold is all or nothing and in one section', () => {
  const places = allocate([{ quantity: 3 }, { quantity: 2 }], free({ 1: [1, 2], 3: [13] }, 1))
  assert.deepEqual(places, [undefined, { sectionNo: 1, quantity: 2, seatNos: [1, 2] }])
})

test('a standing section is counted, and the wanted section is kept to', () => {
  const places = allocate(
    [
      { quantity: 2, sectionNo: 2 },
      { quantity: 1, sectionNo: 2 },
      { quantity: 1, sectionNo: 3 },
    ],
    free({ 1: [1, 2], 3: [14] }, 2),
  )
  assert.deepEqual(places, [
    { sectionNo: 2, quantity: 2 },
    undefined,
    { sectionNo: 3, quantity: 1, seatNos: [14] },
  ])
})

test('named seats go to the first who names them', () => {
  const wish = { sectionNo: 1, seatNos: [2, 1] }
  const places = allocate([wish, { ...wish }, { quantity: 2 }], free({ 1: [1, 2, 3] }))
  assert.deepEqual(
    places.map((place) => place?.seatNos),
    [[1, 2], undefined, undefined],
  )
})

test('no seat is given twice and nothing free is refused to somebody who fits', () => {
  const wish = fc.oneof(
    fc.record({
      quantity: fc.integer({ min: 1, max: 5 }),
      sectionNo: fc.option(fc.constantFrom(1, 2, 3), { nil: undefined }),
    }),
    fc
      .subarray(whole(stalls), { minLength: 1, maxLength: 3 })
      .map((seatNos) => ({ sectionNo: 1, seatNos })),
  )
  fc.assert(
    fc.property(
      fc.array(wish, { maxLength: 20 }),
      fc.subarray(whole(stalls)),
      fc.subarray(whole(gallery)),
      fc.nat(6),
      (wishes, a, b, standing) => {
        const left = free({ 1: a, 3: b }, standing)
        const places = allocate(wishes, left)
        const given = places.flatMap((place) => place?.seatNos ?? [])
        assert.equal(new Set(given).size, given.length)
        const stood = places.reduce((n, p) => n + (p && !p.seatNos ? p.quantity : 0), 0)
        assert.equal(stood + left.standing.get(2)!, standing)
        const remaining = [...left.seats.values()].flat()
        assert.deepEqual(
          [...given, ...remaining].sort((x, y) => x - y),
          [...a, ...b].sort((x, y) => x - y),
        )
        wishes.forEach((w, i) => {
          const place = places[i]
          if (place) {
            assert.equal(place.quantity, 'quantity' in w ? w.quantity : w.seatNos.length)
            assert.ok(w.sectionNo === undefined || place.sectionNo === w.sectionNo)
          } else if ('quantity' in w) {
            // What is left at the end can only be less than what was there for this wish.
            for (const [no, seats] of left.seats) {
              if ((w.sectionNo ?? no) === no) assert.ok(seats.length < w.quantity)
            }
            if ((w.sectionNo ?? 2) === 2) assert.ok(left.standing.get(2)! < w.quantity)
          }
        })
      },
    ),
  )
})

test('adjacent means one row', () => {
  assert.ok(isAdjacent({ sectionNo: 1, quantity: 2, seatNos: [1, 2] }, stalls))
  assert.ok(!isAdjacent({ sectionNo: 1, quantity: 2, seatNos: [4, 5] }, stalls))
})
