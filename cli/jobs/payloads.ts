// What a job of each queue must bring: the decoder its worker reads it with, so that what is refused here is what would
// be dead there.

import { decodeAlert } from '../../domain/alerts.ts'
import { decodeEmailJob } from '../../domain/emails.ts'
import { decodePushJob } from '../../domain/pushes.ts'
import type { QueueName } from '../../domain/queues.ts'
import { decodeEvent } from '../../workers/inbox/events.ts'

type Decode = (data: object) => unknown

const decoders: Readonly<Partial<Record<QueueName, Decode>>> = {
  commands: decodeCommand,
  inbox: decodeEvent,
  email: decodeEmailJob,
  push: decodePushJob,
  'push:priority': decodePushJob,
  alert: decodeAlert,
}

/** @throws Error that says what is wrong with it; values are not in the message */
export const checkPayload = (queue: QueueName, data: object): unknown => decoders[queue]?.(data)

function decodeCommand(data: object): void {
  const { command_id: id } = data as { command_id?: unknown }
  if (typeof id !== 'string' || !/^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/.test(id)) {
    throw new Error('command_id must be a UUID')
  }
}
