// Which processes work on a data folder of Postgres: the server that is alive there, and what a crash left behind, whose
// lock is taken away. Ends no process.

import { execFileSync } from 'node:child_process'
import { existsSync, readdirSync, readFileSync, readlinkSync, rmSync } from 'node:fs'
import { basename, join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { codeOf, EmbeddedError, wayOut } from './embeddedPlace.ts'

export type Live = { pid: number; port: number }

/** A backend sees at once that its postmaster died, but may be in the middle of something. */
const orphansMaxMs = 30_000

export function liveServer(home: string): Live | undefined {
  const data = join(home, 'data')
  let lines: string[]
  try {
    lines = readFileSync(join(data, 'postmaster.pid'), 'utf8').split('\n')
  } catch (error) {
    if (['ENOENT', 'ENOTDIR'].includes(codeOf(error) ?? '')) return undefined
    throw new EmbeddedError(
      `${home} cannot be read (${codeOf(error)}): run as the user who made it, ${wayOut}`,
    )
  }
  const [pid, port] = [Number(lines[0]), Number(lines[3])]
  return pid > 1 && port > 0 && isServerOf(pid, data) ? { pid, port } : undefined
}

/** After a crash the pid in the lock file may belong to anybody. The postmaster's working directory is its data. */
function isServerOf(pid: number, data: string): boolean {
  if (process.platform !== 'linux') {
    try {
      const line = execFileSync('ps', ['-o', 'command=', '-p', String(pid)], { encoding: 'utf8' })
      return line.includes('postgres') && line.includes(data)
    } catch {
      return false
    }
  }
  let words: string[]
  try {
    words = readFileSync(`/proc/${pid}/cmdline`, 'utf8').split('\0')
  } catch {
    return false
  }
  if (!['postgres', 'postmaster'].includes(basename(words[0] ?? ''))) return false
  try {
    return readlinkSync(`/proc/${pid}/cwd`) === data
  } catch {
    return words.includes(data)
  }
}

/**
 * After a crash. Postgres itself takes over the lock of a dead process, but not when its number was given to another
 * one since. Backends that outlive their postmaster for a moment must be gone first: the lock guards against them too.
 */
export async function mendLock(
  home: string,
  note: (line: string) => void = () => {},
): Promise<void> {
  const data = join(home, 'data')
  const lock = join(data, 'postmaster.pid')
  if (!existsSync(lock)) return
  const give = Date.now() + orphansMaxMs
  for (let orphans = processesIn(data); orphans.length > 0; orphans = processesIn(data)) {
    if (liveServer(home)) return
    if (Date.now() > give) {
      throw new EmbeddedError(
        `processes of a Postgres that died still work on ${data}: end them (${orphans.join(', ')})`,
      )
    }
    await sleep(25)
  }
  if (liveServer(home)) return
  const pid = Number(readFileSync(lock, 'utf8').split('\n')[0])
  if (isAlive(pid)) rmSync(lock)
  note('the database was not shut down the last time: it recovers now')
}

/** Every process of a server has its data as working directory. Elsewhere than on Linux Postgres's own guard must do. */
function processesIn(data: string): number[] {
  if (process.platform !== 'linux') return []
  const pids = readdirSync('/proc').filter((name) => /^\d+$/.test(name))
  return pids.map(Number).filter((pid) => {
    try {
      return readlinkSync(`/proc/${pid}/cwd`) === data
    } catch {
      return false
    }
  })
}

export function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0)
    return true
  } catch (error) {
    return codeOf(error) !== 'ESRCH'
  }
}
