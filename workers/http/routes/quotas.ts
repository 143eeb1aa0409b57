// Quotas: made by internal programs; whoever gets one is invited.

import type { FastifyInstance } from 'fastify'
import { invalid } from '../../validation.ts'
import type { Guard } from '../guard.ts'
import { type NewQuotaBody, newQuota, quotaCreated } from '../schemas.ts'

export function addQuotaRoutes(api: FastifyInstance, guard: Guard): void {
  api.post('/quotas', {
    attachValidation: true,
    config: { access: 'internal', keyed: true, problems: ['EVENT_NOT_FOUND'] },
    schema: {
      tags: ['events'],
      summary: 'Sets tickets aside for a user, and invites him',
      description: 'The user is told by e-mail and push. Without `expires_at` until the event.',
      body: newQuota,
      response: { 201: { description: 'Made', ...quotaCreated } },
    },
    handler: guard.write((request) => {
      const { expires_at, ...quota } = request.body as NewQuotaBody
      // A leap second has the form of a time.
      if (expires_at !== undefined && Number.isNaN(Date.parse(expires_at))) {
        throw invalid([{ path: '/expires_at', message: 'must be a time that exists' }])
      }
      return { name: 'createQuota', quota: { ...quota, expires_at }, requestId: request.id }
    }),
  })
}
