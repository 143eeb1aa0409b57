// What a job of each queue must bring: the decoder its worker reads it with, so that what is refused by whoever makes jobs
// by hand is what would be dead there.

import { decodeAlert } from './alerts.ts'
import { decodeEmailJob } from './emails.ts'
import { decodeItemJob } from './items.ts'
import { decodePayment } from './payments.ts'
import { decodePushJob } from './pushes.ts'
import type { QueueName } from './queues.ts'
import { decodeEvent } from './readEvent.ts'
import { unstorable } from './storable.ts'

type Decode = (data: object) => unknown

const decoders: Readonly<Record<QueueName, Decode>> = {
  commands: decodeCommand,
  outbox: decodeEvent,
  inbox: decodeEvent,
  email: decodeEmailJob,
  push: decodePushJob,
  'push:priority': decodePushJob,
  alert: decodeAlert,
  payments: decodePayment,
  search: decodeItemJob('IndexItem'),
  embed: decodeItemJob('EmbedItem'),
  similar: decodeItemJob('RecomputeSimilar'),
}

/** @throws Error that says what is wrong with it and what is right; values are not in the message */
export function checkPayload(queue: QueueName, data: object): void {
  const why = unstorable(data)
  if (why !== undefined) throw new Error(why)
  decoders[queue](data)
}

function decodeCommand(data: object): void {
  const { command_id: id } = data as { command_id?: unknown }
  if (typeof id !== 'string' || !/^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/.test(id)) {
    throw new Error('command_id must be a UUID')
  }
}
