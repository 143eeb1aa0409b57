// The database of the torture: a private embedded Postgres that writes everything down (fsync on: a crash must be a real
// one), and the three ways it is taken away: asked to stop, ended at once as by a power cut, and killed.

import { fork } from 'node:child_process'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import { type Embedded, startEmbedded } from '../../db/embedded.ts'

export type Outage = 'stopped' | 'crashed' | 'killed'

export type Postgres = {
  url: string
  /** Takes it away and starts it again. @returns how long it was away, ms */
  restart(how: Outage): Promise<number>
  /** One statement on a connection of its own, again and again until there is an answer. */
  ask<Row extends object>(text: string, values?: unknown[]): Promise<Row[]>
  stop(): Promise<void>
}

const signals = { crashed: 'SIGQUIT', killed: 'SIGKILL' } as const
const startMaxMs = 60_000

export async function startPostgres(dataDir: string): Promise<Postgres> {
  const settings = { shared_buffers: '128MB', log_checkpoints: 'off' }
  const start = () => startEmbedded({ dataDir, settings })
  const guard = fork(join(import.meta.dirname, 'guard.ts'), [dataDir], { detached: true })
  guard.unref()
  guard.channel?.unref()
  let server: Embedded = await start()

  async function startAgain(): Promise<Embedded> {
    const endsAt = performance.now() + startMaxMs
    for (;;) {
      try {
        return await start()
      } catch (error) {
        // The dead server's processes may still be at the data for a moment: whoever keeps it running tries again.
        if (performance.now() > endsAt) throw error
        await sleep(500)
      }
    }
  }

  const { url } = server
  return {
    url,
    async restart(how) {
      const began = performance.now()
      if (how === 'stopped') await server.stop()
      else process.kill(server.pid, signals[how])
      while (isAlive(server.pid)) await sleep(10)
      server = await startAgain()
      if (server.url !== url) throw new Error('somebody took the port while Postgres was away')
      return performance.now() - began
    },
    async ask(text, values) {
      const endsAt = performance.now() + startMaxMs
      for (;;) {
        try {
          return await askOnce(url, text, values)
        } catch (error) {
          if (performance.now() > endsAt) throw error
          await sleep(100)
        }
      }
    },
    async stop() {
      await server.stop()
      guard.disconnect()
    },
  }
}

async function askOnce<Row extends object>(
  url: string,
  text: string,
  values: unknown[] = [],
): Promise<Row[]> {
  const client = new pg.Client({
    connectionString: url,
    application_name: 'torture',
    connectionTimeoutMillis: 2000,
  })
  client.on('error', () => {})
  await client.connect()
  try {
    return (await client.query(text, values)).rows as Row[]
  } finally {
    await client.end().catch(() => {})
  }
}

/** Of a process that is our child: it is gone once it was waited for. */
function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0)
    return true
  } catch {
    return false
  }
}
