// Reads a source that is a file of this machine: one event a line, appended to. It remembers where it left off, so that
// each line is read once; a file that was replaced or cut is read from its begin, past what is known. A line that does not
// end yet is being written, and waits.

import { type FileHandle, open } from 'node:fs/promises'
import { fileURLToPath } from 'node:url'
import {
  type EventFetcher,
  type LoadedEvent,
  type Page,
  type Source,
  SourceFault,
} from '../../domain/loader.ts'
import { readLines } from './page.ts'

const chunkBytes = 262_144
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
        places.set(source.name, { ...place, afterId: page.events.at(-1)?.id ?? afterId })
        return page
      } finally {
        await file.close()
      }
    },
  }
}

/** Moves `place` past what it gives. */
async function read(
  file: FileHandle,
  source: Source,
  place: Place,
  limit: number,
  bytesMax: number,
  signal: AbortSignal,
): Promise<Page> {
  const { afterId } = place
  const events: LoadedEvent[] = []
  const from = place.offset
  const endsAt = performance.now() + source.timeoutMs
  let rest = Buffer.alloc(0)
  for (;;) {
    signal.throwIfAborted()
    const chunk = Buffer.allocUnsafe(chunkBytes)
    const { bytesRead } = await file.read(chunk, 0, chunkBytes, place.offset + rest.length)
    if (bytesRead === 0) return { events, more: false, newestId: undefined }
    const bytes = Buffer.concat([rest, chunk.subarray(0, bytesRead)])
    let at = 0
    for (let end = bytes.indexOf(0x0a); end !== -1; end = bytes.indexOf(0x0a, at)) {
      for (const event of linesAt(bytes.subarray(at, end), place.offset + at)) {
        if (event.id <= place.lastId) {
          throw new SourceFault(`id ${event.id} comes after ${place.lastId}: ids must rise`)
        }
        place.lastId = event.id
        if (event.id > afterId) events.push(event)
      }
      at = end + 1
      if (events.length < limit) continue
      return stopAt(at)
    }
    place.offset += at
    rest = bytes.subarray(at)
    if (rest.length > bytesMax) {
      throw new SourceFault(`a line is longer than ${bytesMax} bytes (LOADER_BODY_MAX)`)
    }
    const isEnough = place.offset - from > scanMax || sizeOf(events) > bytesMax
    if (isEnough || performance.now() > endsAt) return stopAt(0)
  }

  function stopAt(at: number): Page {
    place.offset += at
    return { events, more: true, newestId: undefined }
  }
}

const sizeOf = (events: readonly LoadedEvent[]): number =>
  events.reduce((sum, { payload }) => sum + payload.length, 0)

function linesAt(line: Buffer, offset: number): LoadedEvent[] {
  try {
    return readLines(line)
  } catch (error) {
    if (!(error instanceof SourceFault)) throw error
    throw new SourceFault(`the line at byte ${offset}: ${error.message}`, 0, { cause: error })
  }
}
