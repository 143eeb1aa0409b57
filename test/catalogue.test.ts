// The catalogue of events: its schemas say what the types of domain/events.ts say, and docs/events/ has them as they are.

import assert from 'node:assert/strict'
import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { test } from 'node:test'
import type { Static } from 'typebox'
import { Compile } from 'typebox/compile'
import { schemaFiles, schemasFolder } from '../cli/exportSchemas.ts'
import { type dataSchemas, eventSchema } from '../domain/catalogue.ts'
import type { CloudEvent, EventData, EventType, NewEvent } from '../domain/events.ts'
import { decodeEvent } from '../domain/readEvent.ts'
import { faultOf } from '../domain/schema.ts'
import { completed, held, subjects, toCloudEvent } from './events.ts'

/** What the schema of a type lets pass is what the type says, and the other way round: the compiler refuses the rest. */
type Fits<T extends EventType> = [
  Static<(typeof dataSchemas)[T]> extends EventData[T] ? true : never,
  EventData[T] extends Static<(typeof dataSchemas)[T]> ? true : never,
]
const fits: { [T in EventType]: Fits<T> } = {
  'reservation.held': [true, true],
  'reservation.confirmed': [true, true],
  'reservation.cancelled': [true, true],
  'reservation.expired': [true, true],
  'order.completed': [true, true],
  'ticket.generated': [true, true],
  'quota.invitation': [true, true],
  'queue.turn_granted': [true, true],
  'queue.expired': [true, true],
  'queue.position_update': [true, true],
  'payment.webhook': [true, true],
  'payment.refund_due': [true, true],
}

test('docs/events has the schemas as they are: node cli/exportSchemas.ts writes them', () => {
  const files = schemaFiles()
  assert.deepEqual([...files.keys()].sort(), readdirSync(schemasFolder).sort())
  for (const [name, text] of files) {
    assert.equal(readFileSync(join(schemasFolder, name), 'utf8'), text, name)
  }
  assert.equal(files.size, Object.keys(fits).length)
})

const [subject = ''] = subjects(1)
const refused = (event: object, why: RegExp) => assert.throws(() => decodeEvent(event), why)

test('what the house writes is let pass, also with fields that nobody knows yet', () => {
  for (const event of [completed(subject, 1), held(subject)] as NewEvent[]) {
    const cloud = toCloudEvent(event)
    assert.deepEqual(decodeEvent(cloud), cloud)
    decodeEvent({ ...cloud, extension: 'x', data: { ...cloud.data, more: 1 } })
  }
})

test('what does not fit is refused, with the place and without the values', () => {
  const event: CloudEvent = toCloudEvent(completed(subject, 1))
  refused({ ...event, specversion: '0.3' }, /specversion/)
  refused({ ...event, id: 'x' }, /^Error: id /)
  refused({ ...event, type: 'order.eaten' }, /type "order.eaten" is not known/)
  refused({ ...event, sequence: '0' }, /sequence/)
  refused({ ...event, data: { ...event.data, total: { amount_minor: 'secret' } } }, /data\/total/)
  assert.throws(
    () => decodeEvent({ ...event, data: { ...event.data, starts_at: 'anna@example.org' } }),
    (error: Error) => /data\/starts_at/.test(error.message) && !/anna/.test(error.message),
  )
  refused([], /must be an object/)
})

test('what is let pass and what is not is as a full validator says', () => {
  const event = toCloudEvent(completed(subject, 1))
  const changes: [string, unknown][] = [
    ['id', 'x'],
    ['id', undefined],
    ['subject', ''],
    ['subject', 'x'.repeat(201)],
    ['subject', '\u{1f3ab}'.repeat(200)],
    ['time', 'yesterday'],
    ['sequence', 1],
    ['sequence', '10'],
    ['datacontenttype', 'text/plain'],
    ['source', null],
    ['data', []],
    ['data', null],
    ['data.quantity', 0],
    ['data.quantity', 1.5],
    ['data.quantity', '2'],
    ['data.seats', ['A-1-1', 2]],
    ['data.seats', {}],
    ['data.seats', ['A-1-1']],
    ['data.user_id', undefined],
    ['data.total', { amount_minor: 1, currency: 'euro' }],
    ['data.total', { amount_minor: -1, currency: 'EUR' }],
    ['data.more', { any: 'thing' }],
  ]
  const schema = eventSchema('order.completed')
  const full = Compile(schema as object)
  for (const [path, value] of changes) {
    const [name = '', inner] = path.split('.')
    const changed: Record<string, unknown> = structuredClone(event)
    const target = inner === undefined ? changed : (changed[name] as Record<string, unknown>)
    if (value === undefined) delete target[inner ?? name]
    else target[inner ?? name] = value
    const mine = faultOf(schema, changed)
    assert.equal(mine === undefined, full.Check(changed), `${path}: ${mine}`)
  }
})
