// Reads a source that is a file of this machine: one event a line, appended to. It remembers where it left off, so that
// each line is read once; a file that was replaced or cut is read from its begin, past what is known. A line that does not
// end yet is being written, and waits.

import { type FileHandle, open } from 'node:fs/promises'
import { fileURLToPath } from 'node:url'
import {
  countOf,
  type EventFetcher,
  type Events,
  firstOf,
  lastIdOf,
  noEvents,
  type Page,
  type Source,
  SourceFault,
} from '../../domain/loader.ts'
import { readLines } from './page.ts'

/** Some pages of usual events. */
const stretchBytes = 262_144
/** Read in one fetch: a large file that is new here takes several. */
const scanMax = 67_108_864

type Place = {
  path: string
  ino: bigint
  /** Of the first line that was not read. */
  offset: number
  lastId: bigint
  /** What the next fetch asks after, if this one's events were stored. */
  afterId: bigint
}

export function openFileFetcher({ bytesMax }: { bytesMax: number }): EventFetcher {
  const places = new Map<string, Place>()
  return {
    async fetch(source, afterId, limit, { signal, sending }) {
      sending()
      const path = source.url.startsWith('file://') ? fileURLToPath(source.url) : source.url
      let file: FileHandle
      try {
        file = await open(path)
      } catch (error) {
        const { code } = error as NodeJS.ErrnoException
        const why = code === 'ENOENT' ? 'there is no such file' : `it cannot be opened (${code})`
        throw new SourceFault(`${why}: ${path}`, 0, { cause: error })
      }
      try {
        const { ino, size } = await file.stat({ bigint: true })
        const known = places.get(source.name)
        const goesOn =
          known?.path === path &&
          known.ino === ino &&
          known.afterId === afterId &&
          BigInt(known.offset) <= size
        const place = goesOn ? known : { path, ino, offset: 0, lastId: 0n, afterId }
        // Only a place that was reached well is one to go on from.
        places.delete(source.name)
        const page = await read(file, source, place, limit, bytesMax, signal)
        places.set(source.name, { ...place, afterId: lastIdOf(page.events) ?? afterId })
        return page
      } finally {
        await file.close()
      }
    },
  }
}

/** Gives the events of the first stretch that has new ones, and moves `place` past them. */
async function read(
  file: FileHandle,
  source: Source,
  place: Place,
  limit: number,
  bytesMax: number,
  signal: AbortSignal,
): Promise<Page> {
  const from = place.offset
  const endsAt = performance.now() + source.timeoutMs
  for (;;) {
    signal.throwIfAborted()
    const lines = await wholeLines(file, place.offset, bytesMax)
    if (lines === undefined) return { events: noEvents, more: false, newestId: undefined }
    const all = linesAt(lines, place.offset)
    const known = checkOrder(all, place)
    const count = Math.min(countOf(all), known + limit)
    if (count === known) {
      place.offset += lines.length
      place.lastId = lastIdOf(all) ?? place.lastId
      const isEnough = place.offset - from > scanMax || performance.now() > endsAt
      if (isEnough) return { events: noEvents, more: true, newestId: undefined }
      continue
    }
    const events = someAfter(firstOf(all, count), known)
    place.lastId = lastIdOf(events) ?? place.lastId
    place.offset += lines.indexOf(0x0a, all.spans[2 * count - 1]) + 1
    return { events, more: true, newestId: undefined }
  }
}

/** Some lines from there on, the last one ended; undefined: there is none yet. */
async function wholeLines(
  file: FileHandle,
  offset: number,
  bytesMax: number,
): Promise<Buffer | undefined> {
  for (let size = stretchBytes; ; size *= 4) {
    const bytes = Buffer.allocUnsafe(size)
    const { bytesRead } = await file.read(bytes, 0, size, offset)
    const end = bytes.subarray(0, bytesRead).lastIndexOf(0x0a)
    if (end !== -1) return bytes.subarray(0, end + 1)
    if (bytesRead < size) return undefined
    if (size > bytesMax) {
      throw new SourceFault(
        `the line at byte ${offset} is longer than ${bytesMax} bytes (LOADER_BODY_MAX)`,
      )
    }
  }
}

/** @returns how many of them are known already @throws SourceFault */
function checkOrder({ ids }: Events, { lastId, afterId }: Place): number {
  let last = lastId
  let known = 0
  for (const id of ids) {
    if (id <= last) throw new SourceFault(`id ${id} comes after ${last}: ids must rise`)
    if (id <= afterId) known++
    last = id
  }
  return known
}

const someAfter = ({ ids, body, spans }: Events, count: number): Events => ({
  ids: ids.subarray(count),
  body,
  spans: spans.subarray(2 * count),
})

function linesAt(lines: Buffer, offset: number): Events {
  try {
    return readLines(lines)
  } catch (error) {
    if (!(error instanceof SourceFault)) throw error
    throw new SourceFault(`from byte ${offset} of the file: ${error.message}`, 0, { cause: error })
  }
}
