// The lists in Redis, each on a connection of its own since a taker waits on it, and one more for all that must not wait.
// Redis's client is loaded only where there is a Redis.

import { randomUUID } from 'node:crypto'
import { hostname } from 'node:os'
import type { IntakeList } from '../../redis/lists.ts'
import type { Log } from '../log.ts'
import { type ListQueue, listOf, listQueues } from './items.ts'

export type OpenedLists = {
  /** To take from. */
  lists: Map<ListQueue, IntakeList>
  /** The same, to ask about and to recover. */
  beside: Map<ListQueue, IntakeList>
  close(): Promise<void>
}

/** A wait for an item is a command that takes a second. */
const commandTimeoutMs = 6000
const connectMs = 500

export async function openLists(url: string | undefined, log: Log): Promise<OpenedLists> {
  const lists: OpenedLists['lists'] = new Map()
  const beside: OpenedLists['lists'] = new Map()
  if (url === undefined) return { lists, beside, async close() {} }
  const { openRedis } = await import('../../redis/open.ts')
  const { openList } = await import('../../redis/lists.ts')
  const self = `${hostname()}:${process.pid}:${randomUUID().slice(0, 8)}`
  const onError = (error: Error) => log.debug({ err: error }, 'no connection to Redis')
  const open = () => openRedis({ url, name: 'intake', commandTimeoutMs, onError })
  const common = open()
  const opened = [common]
  for (const queue of listQueues) {
    const own = open()
    opened.push(own)
    lists.set(queue, openList(own.redis, listOf(queue), self))
    beside.set(queue, openList(common.redis, listOf(queue), self))
  }
  await Promise.all(opened.map((one) => one.ready(connectMs).catch(() => {})))
  return {
    lists,
    beside,
    async close() {
      for (const list of beside.values()) {
        await list.leave().catch((error) => {
          log.warn({ err: error }, 'what is in hand is given back by another instance')
        })
      }
      await Promise.all(opened.map((one) => one.close()))
    },
  }
}
