// The shapes of bodies, parameters and answers as JSON Schema: bodies and parameters are checked against them, the
// OpenAPI page shows them. `description` finishes the sentence "must be …" that a caller is told. Plain objects, typed
// through TypeBox's Static: its builder would cost the process 20 MB at run time.

import type { Static } from 'typebox'
import { descriptionMax, imageDataMax, similarMax, titleMax } from '../../domain/items.ts'
import { capacityMax, quantityMax } from '../../domain/seats.ts'

const uuidPattern = '^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$'
/**
 * Neither control characters nor halves of surrogate pairs, which Postgres cannot keep; some of it visible. Read once
 * from left to right: nothing in it can be matched in two ways.
 */
const linePattern = '^(?=\\s*\\S)[^\\p{Cc}\\p{Cs}]*$'

const uuid = { type: 'string', pattern: uuidPattern, description: 'a UUID' } as const
const time = { type: 'string', format: 'date-time' } as const
const line = (maxLength: number, description: string) =>
  ({ type: 'string', minLength: 1, maxLength, pattern: linePattern, description }) as const
const sectionName = line(64, 'the name of a section: 1 to 64 visible characters')
const seat = {
  type: 'string',
  maxLength: 80,
  pattern: '^[^\\p{Cc}\\p{Cs}]{1,64}-[1-9][0-9]{0,5}-[1-9][0-9]{0,5}$',
  description: 'a seat as section-row-number, such as A-1-2',
} as const
const whole = (minimum: number, maximum: number) =>
  ({
    type: 'integer',
    minimum,
    maximum,
    description: `a whole number from ${minimum} to ${maximum}`,
  }) as const

export const idParams = {
  type: 'object',
  required: ['id'],
  properties: { id: uuid },
} as const

/** Lower case: one text for one id. */
export const isUuid = (text: string): boolean => uuidRegExp.test(text)
const uuidRegExp = new RegExp(uuidPattern)

/** The length of a user id in a path; what it may hold is the identity provider's affair. */
export const userParams = {
  type: 'object',
  required: ['id'],
  properties: { id: line(255, 'a user id of 1 to 255 characters') },
} as const

export const newReservation = {
  type: 'object',
  additionalProperties: false,
  required: ['event_id'],
  properties: {
    event_id: uuid,
    quantity: whole(1, quantityMax),
    seats: {
      type: 'array',
      items: seat,
      minItems: 1,
      maxItems: quantityMax,
      uniqueItems: true,
      description: `a list of 1 to ${quantityMax} different seats`,
    },
    section: sectionName,
  },
  oneOf: [{ required: ['quantity'] }, { required: ['seats'] }],
} as const
export type NewReservation = {
  event_id: string
  quantity?: number
  seats?: string[]
  section?: string
}

const priced = {
  name: sectionName,
  price_minor: whole(0, 1_000_000_000),
  currency: { type: 'string', pattern: '^[A-Z]{3}$', description: 'a currency such as EUR' },
} as const

export const newEvent = {
  type: 'object',
  additionalProperties: false,
  required: ['name', 'starts_at', 'sections'],
  properties: {
    name: line(200, 'a name of 1 to 200 visible characters'),
    starts_at: { ...time, maxLength: 64, description: 'a time such as 2026-07-01T19:30:00Z' },
    waiting_room: { type: 'boolean', default: false, description: 'true or false' },
    sections: {
      type: 'array',
      minItems: 1,
      maxItems: 200,
      description: 'a list of 1 to 200 sections',
      items: {
        type: 'object',
        additionalProperties: false,
        required: ['name', 'price_minor', 'currency'],
        properties: {
          ...priced,
          rows: whole(1, 1000),
          seats_per_row: whole(1, 1000),
          capacity: whole(1, capacityMax),
        },
        oneOf: [{ required: ['rows', 'seats_per_row'] }, { required: ['capacity'] }],
        dependencies: { rows: ['seats_per_row'], seats_per_row: ['rows'] },
      },
    },
  },
} as const
export type NewEventBody = {
  name: string
  starts_at: string
  waiting_room?: boolean
  sections: {
    name: string
    price_minor: number
    currency: string
    rows?: number
    seats_per_row?: number
    capacity?: number
  }[]
}

export const userChange = {
  type: 'object',
  additionalProperties: false,
  properties: {
    email: { type: 'string', format: 'email', maxLength: 254, description: 'an e-mail address' },
    locale: {
      type: 'string',
      maxLength: 35,
      pattern: '^[A-Za-z]{2,8}(-[A-Za-z0-9]{1,8})*$',
      description: 'a language tag such as en or pt-BR',
    },
    devices: {
      type: 'array',
      maxItems: 20,
      uniqueItems: true,
      description: 'a list of at most 20 different devices',
      items: {
        type: 'object',
        additionalProperties: false,
        properties: {
          token: line(4096, 'an FCM registration token'),
          fid: line(256, 'a Firebase installation id'),
          replaces: line(
            4096,
            'the registration token by which the same phone was known, so that it gets one push',
          ),
        },
        oneOf: [{ required: ['token'] }, { required: ['fid'] }],
      },
    },
  },
} as const
export type UserChange = Static<typeof userChange>

export const newQuota = {
  type: 'object',
  additionalProperties: false,
  required: ['event_id', 'user_id', 'quantity'],
  properties: {
    event_id: uuid,
    user_id: line(255, 'a user id of 1 to 255 characters'),
    quantity: whole(1, 1000),
    expires_at: { ...time, maxLength: 64, description: 'a time such as 2026-07-01T19:30:00Z' },
  },
} as const
export type NewQuotaBody = {
  event_id: string
  user_id: string
  quantity: number
  expires_at?: string
}
export const quotaCreated = { type: 'object', properties: { quota_id: uuid } } as const

export const newItem = {
  type: 'object',
  additionalProperties: false,
  required: ['title'],
  properties: {
    title: line(titleMax, `a title of 1 to ${titleMax} visible characters`),
    description: {
      type: 'string',
      maxLength: descriptionMax,
      // Lines and tabs, but no other control characters.
      pattern: '^(?:[^\\p{Cc}\\p{Cs}]|[\\t\\n\\r])*$',
      description: `a text of ${descriptionMax} characters at most`,
    },
    image: {
      type: 'string',
      minLength: 1,
      maxLength: imageDataMax,
      description: 'an https URL, or a data: URL such as data:image/png;base64,…',
    },
  },
} as const
export type NewItemBody = { title: string; description?: string; image?: string }
export const itemChanged = {
  type: 'object',
  properties: {
    item_id: uuid,
    version: { type: 'integer', description: 'grows with each change' },
  },
} as const

const itemProperties = {
  item_id: uuid,
  title: { type: 'string' },
  description: { type: 'string' },
  image: { type: 'string', description: 'in lists only one that is a URL' },
  version: { type: 'integer' },
  embedded: { type: 'boolean', description: 'whether it was embedded as it is now' },
  created_at: time,
  updated_at: time,
} as const
export const item = { type: 'object', properties: itemProperties } as const
export const itemList = {
  type: 'object',
  properties: { items: { type: 'array', items: item } },
} as const
export const similarItems = {
  type: 'object',
  properties: {
    items: {
      type: 'array',
      items: {
        type: 'object',
        properties: {
          ...itemProperties,
          score: { type: 'number', description: 'the cosine of the two embeddings; 1: the same' },
        },
      },
    },
  },
} as const

/** A text, as all in a query is. */
const number = (pattern: string, description: string) =>
  ({ type: 'string', pattern, description }) as const

export const itemQuery = {
  type: 'object',
  additionalProperties: false,
  required: ['q'],
  properties: {
    q: line(200, 'words to look for: 1 to 200 visible characters'),
    limit: number('^([1-9]|[1-4][0-9]|50)$', 'a whole number from 1 to 50; 20 when left out'),
    offset: number('^([0-9]|[1-9][0-9]{1,2}|1000)$', 'a whole number from 0 to 1000'),
  },
} as const
export const similarQuery = {
  type: 'object',
  additionalProperties: false,
  properties: {
    limit: number(`^([1-9]|1[0-9]|${similarMax})$`, `a whole number from 1 to ${similarMax}`),
  },
} as const

/** Mailgun may add fields. */
export const mailgunWebhook = {
  type: 'object',
  required: ['signature', 'event-data'],
  properties: {
    signature: {
      type: 'object',
      required: ['timestamp', 'token', 'signature'],
      properties: {
        timestamp: { type: 'string', pattern: '^[0-9]{1,12}$' },
        token: { type: 'string', pattern: '^[\\x21-\\x7e]{8,200}$' },
        signature: { type: 'string', pattern: '^[0-9a-fA-F]{64}$' },
      },
    },
    'event-data': {
      type: 'object',
      required: ['event'],
      properties: {
        event: { type: 'string', maxLength: 64 },
        id: { type: 'string', maxLength: 200 },
        severity: { type: 'string', maxLength: 64 },
        reason: { type: 'string', maxLength: 200 },
        recipient: { type: 'string', maxLength: 320 },
        'user-variables': { type: 'object' },
      },
    },
  },
} as const

/** Of writes that take no body: `{}` is let through. */
export const noBody = { type: 'object', additionalProperties: false, properties: {} } as const

export const reservation = {
  type: 'object',
  properties: {
    reservation_id: uuid,
    event_id: uuid,
    status: { type: 'string', enum: ['held', 'confirmed', 'cancelled', 'expired'] },
    section: { type: 'string' },
    quantity: { type: 'integer' },
    seats: { type: 'array', items: { type: 'string' }, description: 'none in a standing section' },
    expires_at: time,
    order_id: { ...uuid, description: 'once confirmed, as are total and tickets' },
    total: {
      type: 'object',
      properties: { amount_minor: { type: 'integer' }, currency: { type: 'string' } },
    },
    tickets: {
      type: 'array',
      items: {
        type: 'object',
        properties: {
          ticket_id: uuid,
          seat: { type: 'string', description: 'none in a standing section' },
          code: { type: 'string', description: 'what the door scans' },
        },
      },
    },
  },
} as const

export const event = {
  type: 'object',
  properties: {
    event_id: uuid,
    name: { type: 'string' },
    starts_at: time,
    waiting_room: { type: 'boolean' },
    sections: {
      type: 'array',
      items: {
        type: 'object',
        properties: {
          name: { type: 'string' },
          capacity: { type: 'integer' },
          available: { type: 'integer', description: 'neither held nor sold' },
        },
      },
    },
  },
} as const

export const eventCreated = { type: 'object', properties: { event_id: uuid } } as const
export const commandPending = {
  type: 'object',
  properties: { status: { type: 'string', enum: ['pending'] } },
} as const
export const commandAccepted = {
  type: 'object',
  properties: { command_id: uuid, status: { type: 'string', enum: ['pending'] } },
} as const

/** https://docs.stripe.com/api/events/object: what it has besides is not looked at. */
export const stripeWebhook = {
  type: 'object',
  required: ['id', 'type', 'data'],
  properties: {
    id: { type: 'string', pattern: '^[\\x21-\\x7e]{1,200}$' },
    type: { type: 'string', pattern: '^[a-z0-9_.]{1,100}$' },
    data: {
      type: 'object',
      required: ['object'],
      properties: { object: { type: 'object' } },
    },
  },
} as const

export const queueParams = {
  type: 'object',
  required: ['queue'],
  properties: { queue: { type: 'string' } },
} as const

export const newJob = {
  type: 'object',
  additionalProperties: false,
  required: ['data'],
  properties: {
    data: { type: 'object', description: 'what the worker of the queue takes' },
    job_id: uuid,
    priority: whole(0, 1_000_000),
    start_after: { ...time, description: 'a time such as 2027-01-31T20:00:00Z' },
  },
} as const
export type NewJobBody = Static<typeof newJob>

export const jobParams = {
  type: 'object',
  required: ['queue', 'id'],
  properties: { queue: { type: 'string' }, id: uuid },
} as const

export const job = {
  type: 'object',
  required: ['job_id', 'queue', 'state', 'attempts', 'attempts_max', 'created_at', 'due_at'],
  properties: {
    job_id: uuid,
    queue: { type: 'string' },
    state: {
      type: 'string',
      enum: ['ready', 'delayed', 'active', 'failed', 'finished'],
      description: 'failed: it is in the dead letter queue',
    },
    attempts: { type: 'integer' },
    attempts_max: { type: 'integer' },
    created_at: time,
    due_at: time,
    finished_at: time,
    error: { type: 'string', description: 'of the last attempt that failed' },
  },
} as const

export const jobAccepted = {
  type: 'object',
  required: ['job_id', 'queue'],
  properties: { job_id: uuid, queue: { type: 'string' } },
} as const
