// Items: written by internal programs, found and shown to everyone. What follows from a write (embedding, index, likeness)
// is done by jobs that commit with it.

import type { FastifyInstance } from 'fastify'
import { deleteItem, noItem, readItem } from '../../../db/items.ts'
import type { Db } from '../../../db/schema.ts'
import { transaction } from '../../../db/transaction.ts'
import { imageFault, similarMax } from '../../../domain/items.ts'
import { json } from '../../problem.ts'
import { invalid } from '../../validation.ts'
import type { ItemsFound } from '../found.ts'
import type { Guard } from '../guard.ts'
import {
  idParams,
  item,
  itemChanged,
  itemList,
  itemQuery,
  type NewItemBody,
  newItem,
  similarItems,
  similarQuery,
} from '../schemas.ts'

export type ItemParts = { db: Db; found: ItemsFound }

const lookedForMax = 20

export function addItemRoutes(api: FastifyInstance, guard: Guard, { db, found }: ItemParts): void {
  api.post('/items', {
    attachValidation: true,
    config: { access: 'internal', keyed: true },
    schema: {
      tags: ['items'],
      summary: 'Makes an item',
      description:
        'It can be found at once; who is like it is known some seconds later. An image that is a URL is fetched by the embedding vendor.',
      body: newItem,
      response: { 201: { description: 'Made', ...itemChanged } },
    },
    handler: guard.write((request) => ({
      name: 'createItem',
      item: contentOf(request.body as NewItemBody),
      requestId: request.id,
    })),
  })

  api.get('/items', {
    attachValidation: true,
    config: { problems: ['VALIDATION_FAILED'] },
    schema: {
      tags: ['items'],
      summary: 'Finds items by the words in them, the best first',
      description: 'Quotes keep words together, `or` is one of two, - leaves a word out.',
      querystring: itemQuery,
      response: { 200: { description: 'What was found', ...itemList } },
    },
    handler: guard.read(async ({ query }) => {
      const {
        q,
        limit = lookedForMax,
        offset = 0,
      } = query as Record<string, string> & { q: string }
      const asked = { q, limit: Number(limit), offset: Number(offset) }
      return json(200, { items: await found.byWords(asked) })
    }),
  })

  api.get('/items/:id', {
    attachValidation: true,
    config: { notFound: 'ITEM_NOT_FOUND', problems: ['ITEM_NOT_FOUND'] },
    schema: {
      tags: ['items'],
      summary: 'Shows an item',
      params: idParams,
      response: { 200: { description: 'The item', ...item } },
    },
    handler: guard.read(async ({ params }) => {
      const id = idOf(params)
      const shown = await readItem(db, id)
      if (shown === undefined) throw noItem(id)
      return json(200, shown)
    }),
  })

  api.get('/items/:id/similar', {
    attachValidation: true,
    config: { notFound: 'ITEM_NOT_FOUND', problems: ['ITEM_NOT_FOUND', 'VALIDATION_FAILED'] },
    schema: {
      tags: ['items'],
      summary: 'The items that are most like this one, the likest first',
      description: 'None while it has not been embedded yet.',
      params: idParams,
      querystring: similarQuery,
      response: { 200: { description: 'The items', ...similarItems } },
    },
    handler: guard.read(async ({ params, query }) => {
      const id = idOf(params)
      const { limit = similarMax } = query as { limit?: string }
      const items = await found.byLikeness(id, Number(limit))
      if (items.length === 0 && (await readItem(db, id)) === undefined) throw noItem(id)
      return json(200, { items })
    }),
  })

  api.put('/items/:id', {
    attachValidation: true,
    config: {
      access: 'internal',
      keyed: true,
      notFound: 'ITEM_NOT_FOUND',
      problems: ['ITEM_NOT_FOUND'],
    },
    schema: {
      tags: ['items'],
      summary: 'Replaces an item; what is left out is gone',
      params: idParams,
      body: newItem,
      response: { 200: { description: 'Replaced', ...itemChanged } },
    },
    handler: guard.write((request) => ({
      name: 'putItem',
      itemId: idOf(request.params),
      item: contentOf(request.body as NewItemBody),
      requestId: request.id,
    })),
  })

  api.delete('/items/:id', {
    attachValidation: true,
    config: { access: 'internal', notFound: 'ITEM_NOT_FOUND', problems: ['ITEM_NOT_FOUND'] },
    schema: {
      tags: ['items'],
      summary: 'Deletes an item',
      description: 'It is found no more from now on. Doing it again changes nothing and is a 404.',
      params: idParams,
      response: { 204: { description: 'Deleted' } },
    },
    // It needs no key, and so no receipt: it is idempotent by itself.
    handler: guard.read(async (request) => {
      const id = idOf(request.params)
      const { traceparent } = request.span
      const isGone = await transaction(db, (tx) =>
        deleteItem(tx, id, { requestId: request.id, traceparent }),
      )
      if (!isGone) throw noItem(id)
      return { status: 204, headers: {}, body: '' }
    }),
  })
}

const idOf = (params: unknown): string => (params as { id: string }).id.toLowerCase()

/** @throws AppError VALIDATION_FAILED for an image that is none */
function contentOf({ title, description = '', image }: NewItemBody) {
  const fault = image === undefined ? undefined : imageFault(image)
  if (fault !== undefined) throw invalid([{ path: '/image', message: `must ${fault}` }])
  return { title, description, image: image ?? null }
}
