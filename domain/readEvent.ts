// Reads a domain event out of what came, by the schemas of the catalogue.

import { eventSchema, eventTypes } from './catalogue.ts'
import type { CloudEvent } from './events.ts'
import { faultOf, type Schema } from './schema.ts'
import { unstorable } from './storable.ts'

const schemas = new Map<string, Schema>(eventTypes.map((type) => [type, eventSchema(type)]))

/** @throws Error when it is no CloudEvent of the catalogue: what does not fit, and where; values are not in it */
export function decodeEvent(data: unknown): CloudEvent {
  if (typeof data !== 'object' || data === null || Array.isArray(data)) {
    throw new Error('an event must be an object')
  }
  const why = unstorable(data)
  if (why !== undefined) throw new Error(why)
  const { specversion, type } = data as Partial<CloudEvent>
  if (specversion !== '1.0') throw new Error('specversion must be "1.0"')
  const schema = typeof type === 'string' ? schemas.get(type) : undefined
  if (schema === undefined) {
    const named = typeof type === 'string' && /^[\w.-]{1,100}$/.test(type) ? ` "${type}"` : ''
    throw new Error(`type${named} is not known: the catalogue has ${eventTypes.join(', ')}`)
  }
  const fault = faultOf(schema, data)
  if (fault !== undefined) throw new Error(fault)
  return data as CloudEvent
}
