// The outcome of a write asked for with Prefer: respond-async, for who asked for it: pending, or the very answer that
// the synchronous call would have given.

import type { FastifyInstance } from 'fastify'
import { readOutcome } from '../../../db/commands.ts'
import type { Db } from '../../../db/schema.ts'
import { AppError } from '../../../domain/errors.ts'
import { json } from '../../problem.ts'
import type { Guard } from '../guard.ts'
import { pendingSeconds } from '../later.ts'
import { commandPending, idParams } from '../schemas.ts'

export function addCommandRoutes(api: FastifyInstance, guard: Guard, { db }: { db: Db }): void {
  api.get('/commands/:id', {
    attachValidation: true,
    config: {
      access: 'any',
      notFound: 'COMMAND_NOT_FOUND',
      problems: ['COMMAND_NOT_FOUND', 'COMMAND_CANCELLED'],
    },
    schema: {
      tags: ['commands'],
      summary: 'Tells what became of a write asked for with Prefer: respond-async',
      description: 'Once it is done, the status, headers and body are those of the write itself.',
      params: idParams,
      response: { 202: { description: 'Not done yet; see Retry-After', ...commandPending } },
    },
    handler: guard.read(async ({ caller, params }) => {
      const { id } = params as { id: string }
      const found = await readOutcome(db, id)
      // An internal program sees what internal programs asked for; a user his own.
      const isTheirs =
        found?.userId === undefined ? caller.internal : found.userId === caller.userId
      if (found === undefined || !isTheirs) {
        throw new AppError('COMMAND_NOT_FOUND', `there is no command ${id}`)
      }
      if (found.response) return found.response
      const { status, headers, body } = json(202, { status: 'pending' })
      return { status, headers: { ...headers, 'retry-after': String(pendingSeconds) }, body }
    }),
  })
}
