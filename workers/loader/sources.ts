// The list of sources as it is now: those of the file that LOADER_SOURCES names and those of the table, looked at every
// second, so that a change needs no restart. A file that cannot be read changes nothing: the list stays as it was, and one
// line of the log says what is wrong. Of a name that stands in both the file's counts.

import { readFileSync, statSync } from 'node:fs'
import { noteSources, readDefinitions } from '../../db/loaderSources.ts'
import type { Db } from '../../db/schema.ts'
import type { Source } from '../../domain/loader.ts'
import { parseSources, readSource } from '../../domain/sources.ts'
import type { Log } from '../log.ts'

export type SourceListOptions = {
  db: Db
  /** Path; undefined: only those of the table. */
  file: string | undefined
  log: Log
  /** The list from now on. `fresh`: those that nobody ever asked. */
  onList(sources: readonly Source[], fresh: ReadonlySet<string>): void
}

const lookEveryMs = 1000
/** Shown in the table that they are on somebody's list. */
const noteEveryMs = 10_000

/** @returns looks again, if it is time: to be called often */
export function createSourceList({ db, file, log, onList }: SourceListOptions) {
  let lookAt = 0
  let noteAt = 0
  let ofFile: Source[] = []
  let fileStamp = ''
  let listed = ''
  const told = new Map<string, string>()

  /** Once for each new fault of a thing. */
  function tell(about: string, fault: string | undefined): void {
    if (fault !== undefined && told.get(about) !== fault) log.warn(`${about} ${fault}`)
    if (fault === undefined) told.delete(about)
    else told.set(about, fault)
  }

  function readFile(path: string): void {
    try {
      const { mtimeMs, size, ino } = statSync(path)
      const stamp = `${mtimeMs} ${size} ${ino}`
      if (stamp === fileStamp) return
      ofFile = parseSources(readFileSync(path, 'utf8'))
      fileStamp = stamp
      tell(`LOADER_SOURCES ${path}`, undefined)
    } catch (error) {
      tell(`LOADER_SOURCES ${path}`, `${(error as Error).message}: the list stays as it was`)
    }
  }

  async function readTable(): Promise<Source[]> {
    const sources: Source[] = []
    for (const [name, definition] of await readDefinitions(db)) {
      const about = `source ${name} of the table`
      if (ofFile.some((source) => source.name === name)) {
        tell(about, 'stands in the file too: the file counts')
        continue
      }
      const { source, faults } = readSource({ ...definition, name })
      tell(about, source ? undefined : faults.join('; '))
      if (source) sources.push(source)
    }
    return sources
  }

  return async (): Promise<void> => {
    const now = performance.now()
    if (now < lookAt) return
    if (file !== undefined) readFile(file)
    const sources = [...ofFile, ...(await readTable())]
    lookAt = performance.now() + lookEveryMs
    const text = JSON.stringify(sources)
    if (text === listed && now < noteAt) return
    const names = sources.map(({ name }) => name)
    const fresh = names.length > 0 ? await noteSources(db, names) : new Set<string>()
    noteAt = performance.now() + noteEveryMs
    if (text === listed) return
    listed = text
    log.info({ sources: sources.length }, 'has a new list of sources')
    onList(sources, fresh)
  }
}
