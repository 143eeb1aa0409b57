// How a worker is seen by the others: its row in the registry, written on a beat that also brings the request to stop
// (`jobs stop-workers`), and the connection by which it hears of new jobs before it would look for them.

import { readFileSync } from 'node:fs'
import { hostname } from 'node:os'
import { join } from 'node:path'
import { v7 as uuidv7 } from 'uuid'
import type { Database } from '../db/open.ts'
import { removeWorker, reportWorker } from '../db/registry.ts'
import { heldWord, openListener, stopWord } from '../db/wake.ts'
import { readDoing } from './doing.ts'
import type { Log } from './log.ts'
import type { Loop, LoopState } from './loop.ts'

const beatMs = 5000

export type Beat = {
  loop: Loop
  /** At a graceful end: nobody takes us for dead. */
  leave(): Promise<void>
}

/** @param stop called when all workers are asked to stop */
export function createBeat(name: string, { db }: Database, stop: (reason: string) => void): Beat {
  const self = { id: uuidv7(), name, host: hostname(), pid: process.pid, version: readVersion() }
  return {
    loop: {
      name: 'registry',
      idleMs: beatMs,
      upkeep: true,
      async pass() {
        const doing = { queues: readDoing(), rssBytes: process.memoryUsage.rss() }
        if (await reportWorker(db, { ...self, upSeconds: process.uptime(), doing })) {
          stop('all workers were asked to')
        }
        return 0
      },
    },
    leave: () => removeWorker(db, self.id),
  }
}

function readVersion(): string {
  const file = join(import.meta.dirname, '..', 'package.json')
  return (JSON.parse(readFileSync(file, 'utf8')) as { version: string }).version
}

type Wakened = { name: string; url: string; database: Database; log: Log }

/** Wakes the loops that wait for jobs, those that have one in hand that was cancelled, and the beat for a stop. */
export function listenForJobs(
  { name, url, database, log }: Wakened,
  loops: readonly { loop: Loop; state: LoopState }[],
) {
  return openListener({
    url,
    name,
    db: database.db,
    onWord(word) {
      for (const { loop, state } of loops) {
        const meant = word === stopWord ? loop.name === 'registry' : loop.wokenBy === word
        if (meant || (word === undefined && loop.wokenBy !== undefined)) state.wake()
        if (loop.wokenBy === undefined) continue
        if (word === undefined || word === heldWord(loop.wokenBy)) loop.pass.touch?.()
      }
    },
    onSilent(error) {
      log.warn({ err: error }, 'is not woken by new jobs, and looks for them at its own pace')
    },
  })
}
