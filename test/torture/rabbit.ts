// The broker of the torture: a RabbitMQ of its own that writes everything down, the way it is taken away, and a witness: a
// queue that gets every event and that nobody reads before the end, when it is compared with the outbox.

import { connect } from 'amqplib'
import type pg from 'pg'
import type { CloudEvent } from '../../domain/events.ts'
import { exchange } from '../../workers/amqp.ts'
import { launchRabbit } from '../servers/rabbitmq.ts'
import type { Check } from './proof.ts'

export type Rabbit = {
  url: string
  /** Kills it and starts it again. @returns how long it was away, ms */
  restart(): Promise<number>
  /** What the witness has against the outbox. Once, at the end. */
  prove(client: pg.Client): Promise<Check[]>
  stop(): Promise<void>
}

const witness = 'torture.witness'

export async function startTortureRabbit(): Promise<Rabbit> {
  const server = await launchRabbit()
  const connection = await connect(server.url)
  const channel = await connection.createChannel()
  await channel.assertExchange(exchange, 'topic', { durable: true })
  await channel.assertQueue(witness, { durable: true })
  await channel.bindQueue(witness, exchange, '#')
  await connection.close()

  /** In the order they arrived, repetitions too. */
  async function read(): Promise<CloudEvent[]> {
    const connection = await connect(server.url)
    const channel = await connection.createChannel()
    const { messageCount } = await channel.checkQueue(witness)
    const events: CloudEvent[] = []
    const all = Promise.withResolvers<void>()
    if (messageCount === 0) all.resolve()
    await channel.consume(
      witness,
      (message) => {
        if (message) events.push(JSON.parse(message.content.toString()) as CloudEvent)
        if (events.length === messageCount) all.resolve()
      },
      { noAck: true },
    )
    await all.promise
    await connection.close()
    return events
  }

  return {
    url: server.url,
    async restart() {
      const began = performance.now()
      await server.kill()
      await server.start()
      return performance.now() - began
    },
    async prove(client) {
      const { rows } = await client.query<{ id: string; subject: string; sequence: number }>(
        'select message_id as id, subject, sequence from outbox',
      )
      return compare(rows, await read())
    },
    stop: server.stop,
  }
}

type Written = { id: string; subject: string; sequence: number }

function compare(written: readonly Written[], arrived: readonly CloudEvent[]): Check[] {
  const known = new Map(written.map((row) => [row.id, row]))
  const seen = new Set<string>()
  const last = new Map<string, number>()
  const disordered: string[] = []
  for (const { id, subject, sequence } of arrived) {
    if (seen.has(id)) continue
    seen.add(id)
    const before = last.get(subject) ?? 0
    if (Number(sequence) !== before + 1) disordered.push(`${subject}: ${sequence} after ${before}`)
    last.set(subject, Number(sequence))
  }
  const missing = written.filter(({ id }) => !seen.has(id))
  return [
    {
      name: 'every event that was committed arrived at the broker',
      faults: missing.map(({ id, subject, sequence }) => `${id}: ${sequence} of ${subject}`),
    },
    {
      name: 'nothing arrived that was not committed',
      faults: [...seen].filter((id) => !known.has(id)),
    },
    { name: 'the events of each subject arrived in their order', faults: disordered },
  ]
}
