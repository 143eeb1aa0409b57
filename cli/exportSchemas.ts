// Writes the catalogue of events to docs/events/, one JSON Schema a type: `node cli/exportSchemas.ts`. A test holds that
// the files are current.

import { mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { eventSchema, eventTypes } from '../domain/catalogue.ts'

export const schemasFolder = join(import.meta.dirname, '..', 'docs', 'events')

/** File names and their text. */
export const schemaFiles = (): Map<string, string> =>
  new Map(
    eventTypes.map((type) => [
      `${type}.schema.json`,
      `${JSON.stringify(eventSchema(type), null, 2)}\n`,
    ]),
  )

if (import.meta.main) {
  mkdirSync(schemasFolder, { recursive: true })
  for (const [name, text] of schemaFiles()) writeFileSync(join(schemasFolder, name), text)
}
