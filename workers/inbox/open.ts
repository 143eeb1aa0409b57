// The consumer that BROKER_URL asks for. Unset there is none: inside the database an event is a job of the queue `inbox`.

import { type Consumer, subscriptions } from '../../domain/broker.ts'
import type { Worker } from '../worker.ts'
import type { ConsumerOptions } from './brokers.ts'
import type { InboxConfig } from './config.ts'

type Opening = { openConsumer(options: ConsumerOptions): Consumer }

const consumers: Record<string, () => Promise<Opening>> = {
  amqp: () => import('./rabbitmq.ts'),
  amqps: () => import('./rabbitmq.ts'),
  nats: () => import('./nats.ts'),
  tls: () => import('./nats.ts'),
  redis: () => import('./redisStream.ts'),
  rediss: () => import('./redisStream.ts'),
  'redis+cluster': () => import('./redisStream.ts'),
  'rediss+cluster': () => import('./redisStream.ts'),
  'redis+sentinel': () => import('./redisStream.ts'),
  'rediss+sentinel': () => import('./redisStream.ts'),
}

/** Only the client that is used is loaded. */
export async function openConsumer(
  url: string,
  { config, log }: Pick<Worker<InboxConfig>, 'config' | 'log'>,
): Promise<Consumer> {
  const load = consumers[url.slice(0, url.indexOf(':'))]
  if (load === undefined) throw new Error('BROKER_URL: there is no broker for this kind of URL')
  const { openConsumer } = await load()
  return openConsumer({
    url,
    log,
    queue: config.INBOX_QUEUE,
    types: subscriptions.inbox ?? [],
    // While one batch commits the next is on its way.
    prefetch: Math.min(65_535, 2 * config.INBOX_BATCH),
  })
}
