// A private Postgres on 127.0.0.1 with a port and a random password of its own, for a checkout without DATABASE_URL and
// for tests. Data under `<dataDir>/postgres` are kept between runs; a server that is running there already (its
// supervisor was killed) is adopted. It runs in its own process group: a terminal's Ctrl-C reaches it only through
// stop().

import type { ChildProcess } from 'node:child_process'
import { existsSync, realpathSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'
import { type DataOptions, keep, makeData } from './embeddedData.ts'
import { findPlace, homeOf } from './embeddedPlace.ts'
import { type Live, liveServer, mendLock } from './embeddedProcess.ts'
import {
  choosePort,
  createDatabase,
  logTail,
  type ServerOptions,
  spawnServer,
  untilReady,
  urlOf,
} from './embeddedServer.ts'

export { EmbeddedError } from './embeddedPlace.ts'

export type EmbeddedOptions = DataOptions &
  ServerOptions & {
    dataDir: string
    /** Folder of other binaries than the packaged ones. */
    bin?: string
  }

export type Embedded = {
  url: string
  port: number
  pid: number
  /** Found running and taken over. */
  adopted: boolean
  /** Ends sessions, writes everything down, and returns when the server is gone. */
  stop(): Promise<void>
}

/** @throws EmbeddedError that says what is wrong and what to do */
export async function startEmbedded(options: EmbeddedOptions): Promise<Embedded> {
  const place = findPlace(options.dataDir, options.bin, options.note)
  const running = await adopt(place.home)
  if (running) return running
  makeData(place, options)
  await mendLock(place.home, options.note)
  for (let attempt = 1; ; attempt++) {
    const port = await choosePort(place, attempt > 1)
    const child = spawnServer(place, port, options)
    try {
      await untilReady(place.home, port, () => child.exitCode === null && child.signalCode === null)
      await createDatabase(place.home, port)
      keep(place, 'server.json', `${JSON.stringify({ port })}\n`)
      child.unref()
      return handle(place.home, { pid: child.pid ?? 0, port }, false, child)
    } catch (error) {
      if (child.exitCode === null && child.signalCode === null) child.kill('SIGINT')
      // Another starter was quicker, or somebody took the port between our look and the server's.
      const winner = await adopt(place.home)
      if (winner) return winner
      if (attempt < 5 && /Address already in use/.test(logTail(place.home))) continue
      throw error
    }
  }
}

/** The URL of the server that is running on this data folder, if one is and it answers. */
export async function findEmbedded(dataDir: string): Promise<string | undefined> {
  const link = homeOf(dataDir)
  if (!existsSync(link)) return undefined
  return (await adopt(realpathSync(link)))?.url
}

/** Waits for a server that is starting; one that is stopping is waited out and counts as none. */
async function adopt(home: string): Promise<Embedded | undefined> {
  const live = liveServer(home)
  if (!live) return undefined
  try {
    await untilReady(home, live.port, () => liveServer(home)?.pid === live.pid)
  } catch (error) {
    if (liveServer(home)?.pid === live.pid) throw error
    return undefined
  }
  await createDatabase(home, live.port)
  return handle(home, live, true)
}

function handle(home: string, live: Live, adopted: boolean, child?: ChildProcess): Embedded {
  const isThere = () =>
    child
      ? child.exitCode === null && child.signalCode === null
      : liveServer(home)?.pid === live.pid
  const stop = async () => {
    // SIGINT is Postgres's fast shutdown: sessions end, then a checkpoint; never SIGKILL, which would leave a recovery.
    if (isThere()) process.kill(live.pid, 'SIGINT')
    while (isThere()) await sleep(20)
  }
  return { url: urlOf(home, live.port), ...live, adopted, stop }
}
