// The catalogue of events: its schemas say what the types of domain/events.ts say, and docs/events/ has them as they are.

import assert from 'node:assert/strict'
import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { test } from 'node:test'
import type { Static } from 'typebox'
import { schemaFiles, schemasFolder } from '../cli/exportSchemas.ts'
import type { dataSchemas } from '../domain/catalogue.ts'
import type { CloudEvent, EventData, EventType, NewEvent } from '../domain/events.ts'
import { decodeEvent } from '../workers/inbox/events.ts'
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
