// Events: made by internal programs, seen by everyone.

import type { FastifyInstance } from 'fastify'
import { type NewSection, readEvent } from '../../../db/events.ts'
import type { Db } from '../../../db/schema.ts'
import { AppError } from '../../../domain/errors.ts'
import { capacityMax } from '../../../domain/seats.ts'
import { json } from '../../problem.ts'
import { type FieldError, invalid } from '../../validation.ts'
import type { Guard } from '../guard.ts'
import { event, eventCreated, idParams, type NewEventBody, newEvent } from '../schemas.ts'

export function addEventRoutes(api: FastifyInstance, guard: Guard, { db }: { db: Db }): void {
  api.post('/events', {
    attachValidation: true,
    config: { access: 'internal', keyed: true },
    schema: {
      tags: ['events'],
      summary: 'Makes an event with its sections and seats',
      description:
        'Sections stand best first. Seats are labelled section-row-number, such as A-1-2.',
      body: newEvent,
      response: { 201: { description: 'Made', ...eventCreated } },
    },
    handler: guard.write((request) => {
      const body = request.body as NewEventBody
      check(body)
      return {
        name: 'createEvent',
        event: {
          name: body.name,
          starts_at: body.starts_at,
          waiting_room: body.waiting_room ?? false,
          sections: body.sections as NewSection[],
        },
        requestId: request.id,
      }
    }),
  })

  api.get('/events/:id', {
    attachValidation: true,
    config: { notFound: 'EVENT_NOT_FOUND', problems: ['EVENT_NOT_FOUND'] },
    schema: {
      tags: ['events'],
      summary: 'Shows an event and what is left of it',
      params: idParams,
      response: { 200: { description: 'The event', ...event } },
    },
    handler: guard.read(async (request) => {
      const { id } = request.params as { id: string }
      const found = await readEvent(db, id)
      if (found === undefined) throw new AppError('EVENT_NOT_FOUND', `there is no event ${id}`)
      return json(200, found)
    }),
  })
}

/** What a schema cannot say: the time exists and has a year of four digits, names differ, and the whole is not too large. */
function check({ starts_at, sections }: NewEventBody): void {
  const errors: FieldError[] = []
  // A leap second has the form of a time. In UTC: its offset may carry a time over the end of a year.
  const year = new Date(starts_at).getUTCFullYear()
  if (Number.isNaN(year)) {
    errors.push({ path: '/starts_at', message: 'must be a time that exists' })
  } else if (year < 1 || year > 9999) {
    errors.push({ path: '/starts_at', message: 'must be in the years 1 to 9999, in UTC' })
  }
  const names = new Set<string>()
  let capacity = 0
  sections.forEach(({ name, rows = 0, seats_per_row = 0, capacity: standing = 0 }, i) => {
    if (names.has(name)) {
      errors.push({ path: `/sections/${i}/name`, message: 'must differ from the other sections’' })
    }
    names.add(name)
    capacity += rows * seats_per_row + standing
  })
  if (capacity > capacityMax) {
    const message = `must have ${capacityMax} places in all at most, not ${capacity}`
    errors.push({ path: '/sections', message })
  }
  if (errors.length > 0) throw invalid(errors)
}
