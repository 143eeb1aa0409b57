// The consumer that BROKER_URL asks for. Unset there is none: inside the database an event is a job of the queue `inbox`.

import { type Consumer, subscriptions } from '../../domain/broker.ts'
import { type BrokerKind, parseBrokerUrl } from '../../domain/brokerUrl.ts'
import type { Worker } from '../worker.ts'
import type { ConsumerOptions } from './brokers.ts'
import type { InboxConfig } from './config.ts'

type Opening = { openConsumer(options: ConsumerOptions): Consumer }

const consumers: Record<BrokerKind, () => Promise<Opening>> = {
  rabbitmq: () => import('./rabbitmq.ts'),
  nats: () => import('./nats.ts'),
  redis: () => import('./redisStream.ts'),
}

/** Only the client that is used is loaded. */
export async function openConsumer(
  url: string,
  { config, log }: Pick<Worker<InboxConfig>, 'config' | 'log'>,
): Promise<Consumer> {
  const { openConsumer } = await consumers[parseBrokerUrl(url).kind]()
  return openConsumer({
    url,
    log,
    queue: config.INBOX_QUEUE,
    types: subscriptions.inbox ?? [],
    // While one batch commits the next is on its way.
    prefetch: Math.min(65_535, 2 * config.INBOX_BATCH),
  })
}
