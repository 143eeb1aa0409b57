// Reservations: held, shown to their user, confirmed or cancelled.

import type { FastifyInstance } from 'fastify'
import { readReservation } from '../../../db/reservations.ts'
import type { Db } from '../../../db/schema.ts'
import { AppError } from '../../../domain/errors.ts'
import { json } from '../../problem.ts'
import type { Guard } from '../guard.ts'
import { idParams, type NewReservation, newReservation, noBody, reservation } from '../schemas.ts'

export function addReservationRoutes(api: FastifyInstance, guard: Guard, { db }: { db: Db }): void {
  api.post('/reservations', {
    attachValidation: true,
    config: {
      access: 'user',
      keyed: true,
      problems: [
        'EVENT_NOT_FOUND',
        'SECTION_NOT_FOUND',
        'SOLD_OUT',
        'SEATS_UNAVAILABLE',
        'QUEUE_TOKEN_REQUIRED',
      ],
    },
    schema: {
      tags: ['reservations'],
      summary: 'Holds places for a while: so many of the best, or the seats named',
      body: newReservation,
      response: { 201: { description: 'Held', ...reservation } },
    },
    handler: guard.write((request) => {
      const { event_id, quantity, seats, section } = request.body as NewReservation
      return {
        name: 'createReservation',
        eventId: event_id.toLowerCase(),
        userId: request.caller.userId!,
        requestId: request.id,
        section,
        ...(seats ? { seats } : { quantity: quantity! }),
      }
    }),
  })

  api.get('/reservations/:id', {
    attachValidation: true,
    config: {
      access: 'user',
      notFound: 'RESERVATION_NOT_FOUND',
      problems: ['RESERVATION_NOT_FOUND'],
    },
    schema: {
      tags: ['reservations'],
      summary: 'Shows a reservation to its user',
      params: idParams,
      response: { 200: { description: 'The reservation', ...reservation } },
    },
    handler: guard.read(async (request) => {
      const { id } = request.params as { id: string }
      const found = await readReservation(db, id, request.caller.userId!)
      if (found) return json(200, found)
      throw new AppError('RESERVATION_NOT_FOUND', `there is no reservation ${id}`)
    }),
  })

  for (const verb of ['confirm', 'cancel'] as const) {
    api.post(`/reservations/:id/${verb}`, {
      attachValidation: true,
      config: {
        access: 'user',
        keyed: true,
        notFound: 'RESERVATION_NOT_FOUND',
        problems: ['RESERVATION_NOT_FOUND', 'NOT_HELD', 'RESERVATION_EXPIRED'],
      },
      schema: {
        tags: ['reservations'],
        summary:
          verb === 'confirm'
            ? 'Makes an order of what is held, a ticket a place'
            : 'Gives back what is held',
        params: idParams,
        body: noBody,
        response: { 200: { description: 'Done', ...reservation } },
      },
      handler: guard.write((request) => ({
        name: `${verb}Reservation`,
        reservationId: (request.params as { id: string }).id.toLowerCase(),
        userId: request.caller.userId!,
        requestId: request.id,
      })),
    })
  }
}
