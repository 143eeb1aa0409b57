// The relay that BROKER_URL asks for: inside the database, or over a broker across the network; and beside it the queue
// `outbox`, by which an operator has events sent once more that the broker had refused for good.

import type { Jobs } from '../../db/jobs.ts'
import { mendOutbox } from '../../db/mend.ts'
import { transaction } from '../../db/transaction.ts'
import type { Publisher, Verdict } from '../../domain/broker.ts'
import { type BrokerKind, parseBrokerUrl } from '../../domain/brokerUrl.ts'
import type { CloudEvent } from '../../domain/events.ts'
import { jobPass, Postpone } from '../jobs.ts'
import type { Pass } from '../loop.ts'
import type { Worker } from '../worker.ts'
import { matcher, type PublisherOptions } from './brokers.ts'
import type { OutboxConfig } from './config.ts'
import { createDatabaseBroker } from './database.ts'
import { createOutboxMetrics } from './metrics.ts'
import { relayPass } from './outbox.ts'
import { remoteRelayPass } from './relay.ts'
import { tracedBroker, tracedPublisher } from './trace.ts'

export type OpenedRelay = {
  broker: string
  pass: Pass
  /** Sends what `jobs failed:retry` gave back. */
  again: Pass
  notReady(): string[]
  close(): Promise<void>
}

type OutboxWorker = Worker<OutboxConfig>

export async function openRelay(worker: OutboxWorker, jobs: Jobs): Promise<OpenedRelay> {
  const { config, database, log } = worker
  const { db } = database
  const url = config.BROKER_URL
  const sent = { db, jobs, queue: 'outbox', batchMax: 100, concurrency: 10, worker } as const
  const mended = (pass: Pass) => mendFirst(pass, () => mendOutbox(db, (line) => log.warn(line)))
  if (url === undefined) {
    const broker = tracedBroker(createDatabaseBroker(jobs))
    const metrics = createOutboxMetrics({ db, broker: broker.name })
    const batchMax = config.OUTBOX_BATCH
    return {
      broker: broker.name,
      pass: mended(relayPass({ db, broker, batchMax, onRelayed: metrics.relayed })),
      again: jobPass({
        ...sent,
        decode,
        handle: ({ data }) => transaction(db, (tx) => broker.publish(tx, [data])),
      }),
      notReady: () => [],
      close: async () => {},
    }
  }
  const publisher = await openPublisher({
    url,
    log,
    sizeMax: config.OUTBOX_EVENT_MAX,
    mayGoUnheard: matcher(config.OUTBOX_UNHEARD.split(',').map((type) => type.trim())),
  })
  const isUp = () => publisher.away() === undefined
  const metrics = createOutboxMetrics({ db, broker: publisher.name, isUp })
  const windowMax = config.OUTBOX_WINDOW
  return {
    broker: publisher.name,
    pass: mended(remoteRelayPass({ db, publisher, windowMax, worker, metrics })),
    again: jobPass({ ...sent, decode, handle: ({ data }) => publishOne(publisher, data) }),
    notReady() {
      const away = publisher.away()
      return away === undefined ? [] : [away]
    },
    close: () => publisher.close(),
  }
}

type Opening = { openPublisher(options: PublisherOptions): Publisher }

const publishers: Record<BrokerKind, () => Promise<Opening>> = {
  rabbitmq: () => import('./rabbitmq.ts'),
  nats: () => import('./nats.ts'),
  redis: () => import('./redisStream.ts'),
}

/** Only the client that is used is loaded. */
async function openPublisher(options: PublisherOptions): Promise<Publisher> {
  const { openPublisher } = await publishers[parseBrokerUrl(options.url).kind]()
  return tracedPublisher(openPublisher(options))
}

/** Out of its turn: what came after it of its subject was sent long ago. */
async function publishOne(publisher: Publisher, event: CloudEvent): Promise<void> {
  const away = publisher.away()
  if (away !== undefined) throw new Postpone(5000, away)
  const { id, type, subject, traceparent } = event
  const body = Buffer.from(JSON.stringify(event))
  const verdict = await new Promise<Verdict>((resolve) => {
    publisher.publish({ id, type, subject, body, ...(traceparent && { traceparent }) }, resolve)
  })
  if (verdict.is === 'lost') throw new Postpone(1000, 'the connection broke before the answer')
  if (verdict.is === 'refused') throw new Error(verdict.why)
}

/** Enough of an event to be sent on: a newer writer's types are not ours to know. @throws Error that says what is missing */
function decode(data: unknown): CloudEvent {
  const event = (typeof data === 'object' && data !== null ? data : {}) as Record<string, unknown>
  for (const name of ['id', 'type', 'subject']) {
    const value = event[name]
    if (typeof value !== 'string' || value === '') throw new Error(`${name} must be a text`)
  }
  if (event.specversion !== '1.0') throw new Error('specversion must be "1.0"')
  return data as CloudEvent
}

/** The first pass sees to it that the cursors belong to this database; without that none goes on. */
function mendFirst(pass: Pass, mend: () => Promise<void>): Pass {
  let isMended = false
  const first: Pass = async (signal, handledMax) => {
    if (!isMended) await mend()
    isMended = true
    return await pass(signal, handledMax)
  }
  const { finish, wake } = pass
  return Object.assign(first, finish && { finish }, wake && { wake })
}
