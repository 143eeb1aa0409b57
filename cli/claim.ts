// One `fleet up` a data folder: a file there names the process that has it. A process is known by its id and the moment
// it started, so a stale file, even of an id that was given away again, never stands in the way.

import { execFileSync } from 'node:child_process'
import { linkSync, mkdirSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { Exit } from './program.ts'

type Owner = { pid: number; started: string }

/** @returns a function that gives the folder free. @throws Exit naming the process that has it */
export function claimFolder(dataDir: string): () => void {
  mkdirSync(dataDir, { recursive: true, mode: 0o755 })
  const path = join(dataDir, 'fleet.pid')
  const draft = `${path}.${process.pid}`
  const self: Owner = { pid: process.pid, started: startOf(process.pid) ?? '' }
  try {
    writeFileSync(draft, JSON.stringify(self))
    while (!link(draft, path)) {
      const text = readText(path)
      const owner = parseOwner(text)
      if (owner && startOf(owner.pid) === owner.started) {
        throw new Exit(
          'failed',
          `a fleet is up on ${dataDir} already (pid ${owner.pid}): stop it, or set FLEET_DATA_DIR to another folder`,
        )
      }
      removeStale(path, text)
    }
  } finally {
    rmSync(draft, { force: true })
  }
  return () => rmSync(path, { force: true })
}

/** Gives the name to a whole file, or fails when it is taken. */
function link(draft: string, path: string): boolean {
  try {
    linkSync(draft, path)
    return true
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'EEXIST') return false
    throw error
  }
}

/** Another starter may have put its own there since we read it: what is moved away is looked at, and put back. */
function removeStale(path: string, text: string): void {
  if (readText(path) !== text) return
  const moved = `${path}.stale.${process.pid}`
  try {
    renameSync(path, moved)
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return
    throw error
  }
  if (readText(moved) !== text) link(moved, path)
  rmSync(moved, { force: true })
}

/** Empty when there is none. */
function readText(path: string): string {
  try {
    return readFileSync(path, 'utf8')
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return ''
    throw error
  }
}

function parseOwner(text: string): Owner | undefined {
  try {
    return JSON.parse(text)
  } catch {
    return undefined
  }
}

/** When a process started, in any unit that tells it from a later one of the same id; undefined: there is none. */
function startOf(pid: number): string | undefined {
  try {
    if (process.platform !== 'linux') {
      return execFileSync('ps', ['-o', 'lstart=', '-p', String(pid)], { encoding: 'utf8' }).trim()
    }
    // The name in field 2 may hold blanks and brackets; field 22 is the start in ticks since boot.
    const stat = readFileSync(`/proc/${pid}/stat`, 'utf8')
    return stat.slice(stat.lastIndexOf(')') + 2).split(' ')[19]
  } catch {
    return undefined
  }
}
