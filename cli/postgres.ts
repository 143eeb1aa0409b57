// The embedded Postgres under `fleet up`: started, watched, and started again on the same port when it dies, since the
// workers know it by that. When it cannot be had again, `lost` tells so: a fleet without its database is none.

import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { type Embedded, startEmbedded } from '../db/embedded.ts'
import { type Context, Exit } from './program.ts'
import { backoffMs, restartDelayMs } from './supervisor.ts'

export type KeptPostgres = {
  url: string
  /** Never resolves. @throws Exit when it died and does not come back */
  lost: Promise<never>
  stop(): Promise<void>
}

const lookMs = 250
/** What the dead one left behind may be in the way for a while. */
const startMaxMs = 60_000

export async function keepPostgres(context: Context, dataDir: string): Promise<KeptPostgres> {
  const start = () => startEmbedded({ dataDir, note: context.say })
  let server = await start()
  let since = performance.now()
  const { url } = server
  const how = server.adopted ? 'took over the running' : 'started the'
  context.say(`${how} embedded Postgres (pid ${server.pid}, data in ${join(dataDir, 'postgres')})`)
  const lost = Promise.withResolvers<never>()
  // Whoever waits for it comes later, or never.
  lost.promise.catch(() => {})
  const stopping = new AbortController()
  const { signal } = stopping

  async function watch(): Promise<void> {
    let failures = 0
    while (await pause(lookMs, signal)) {
      if (server.isThere()) continue
      failures = performance.now() - since > backoffMs.resetAfter ? 1 : failures + 1
      const delayMs = restartDelayMs(failures)
      const { pid } = server
      context.warn(`fleet: Postgres (pid ${pid}) died: it starts again in ${delayMs / 1000} s`)
      if (!(await pause(delayMs, signal))) return
      server = await startAgain(start, signal)
      since = performance.now()
      if (server.url !== url) {
        throw new Error(`its port was taken meanwhile (it is ${server.port} now)`)
      }
      context.say(`started the embedded Postgres again (pid ${server.pid})`)
    }
  }

  const watched = watch().catch((error: Error) => {
    lost.reject(new Exit('failed', `Postgres died and did not come back: ${error.message}`))
  })
  return {
    url,
    lost: lost.promise,
    async stop() {
      stopping.abort()
      await watched
      if (server.isThere()) context.say('stopping Postgres')
      await server.stop()
    },
  }
}

async function startAgain(start: () => Promise<Embedded>, signal: AbortSignal): Promise<Embedded> {
  const endsAt = performance.now() + startMaxMs
  for (;;) {
    try {
      return await start()
    } catch (error) {
      if (signal.aborted || performance.now() > endsAt) throw error
      await pause(500, signal)
    }
  }
}

/** @returns whether the time has passed, not been cut short */
const pause = (ms: number, signal: AbortSignal): Promise<boolean> =>
  sleep(ms, true, { signal }).catch(() => false)
