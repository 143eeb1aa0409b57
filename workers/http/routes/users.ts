// Users: where their mails and pushes go. Their accounts are the identity provider's.

import type { FastifyInstance } from 'fastify'
import type { Guard } from '../guard.ts'
import { type UserChange, userChange, userParams } from '../schemas.ts'

export function addUserRoutes(api: FastifyInstance, guard: Guard): void {
  api.put('/users/:id', {
    attachValidation: true,
    config: { access: 'self', keyed: true },
    schema: {
      tags: ['users'],
      summary: 'Sets a user’s e-mail address, locale and devices',
      description: 'What is left out stays as it is; `devices` replaces the whole list.',
      params: userParams,
      body: userChange,
      response: { 200: { description: 'Set', ...userChange } },
    },
    handler: guard.write((request) => ({
      name: 'putUser',
      userId: (request.params as { id: string }).id,
      ...(request.body as UserChange),
      requestId: request.id,
    })),
  })
}
