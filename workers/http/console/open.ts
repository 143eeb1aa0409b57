// Puts the console together from what the http worker has, and opens what it alone needs: its sessions' key, and a
// connection to Redis where waiting rooms keep their queues.

import type { OpenedRedis } from '../../../redis/open.ts'
import type { ConsoleMount } from '../console.ts'
import { createBulk } from './bulk.ts'
import { type Console, createConsole } from './console.ts'
import { createFigures } from './figures.ts'
import { openSessions } from './session.ts'
import type { Visit } from './visit.ts'

export async function openConsole({ db, limits, log, config }: ConsoleMount): Promise<Console> {
  const { lengths, close } = await openLengths(config.REDIS_URL)
  const parts = { db, limits, log, lengths }
  const built = createConsole({
    ...parts,
    sessions: await openSessions(config.CONSOLE_PASSWORD),
    figures: createFigures(db),
    bulk: createBulk({ db, log }),
    waitingroomUrl: ({ host, secure }: Visit) =>
      config.WAITINGROOM_URL?.replace(/\/$/, '') ??
      `http${secure ? 's' : ''}://${hostname(host)}:${config.WAITINGROOM_PORT}`,
  })
  return {
    ...built,
    async close() {
      await built.close()
      await close?.()
    },
  }
}

const hostname = (host: string): string =>
  URL.canParse(`http://${host}`) ? new URL(`http://${host}`).hostname : 'localhost'

async function openLengths(url: string | undefined) {
  if (url === undefined) return { lengths: undefined, close: undefined }
  const { openRedis } = await import('../../../redis/open.ts')
  const { readQueueLengths } = await import('../../../redis/waitingroomLengths.ts')
  const { redis, ready, close }: OpenedRedis = openRedis({ url, name: 'console' })
  return {
    async lengths(matchIds: readonly string[]) {
      await ready(500)
      return await readQueueLengths(redis, matchIds)
    },
    close,
  }
}
