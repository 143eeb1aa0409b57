// COPY into a table of (text, bigint, json) rows, in the binary form, where no payload needs an escape. The statements
// before it go in the same message, so that both are one transaction of one round trip.

import pg from 'pg'
import { from as copyFrom } from 'pg-copy-streams'
import type { Events } from '../domain/loader.ts'

/** Longer than a wait for a lock (8 s) and than the largest page takes to write. */
const copyMaxMs = 30_000

export const quote = (text: string): string => pg.escapeLiteral(text)

/**
 * Runs `before`, statements that give no rows, then the COPY of `rows`, and commits; or nothing of it.
 * @throws the database's own error
 */
export async function copyAfter(
  pool: pg.Pool,
  before: string,
  into: string,
  rows: Buffer,
): Promise<void> {
  const client = await pool.connect()
  const { promise, resolve, reject } = Promise.withResolvers<void>()
  const late = setTimeout(
    () => reject(new Error(`Connection terminated: no answer within ${copyMaxMs} ms`)),
    copyMaxMs,
  )
  client.once('error', reject)
  try {
    const stream = client.query(copyFrom(`${before}; copy ${into} from stdin (format binary)`))
    stream.once('finish', resolve).once('error', reject)
    stream.end(rows)
    await promise
    client.release()
  } catch (error) {
    // Whatever state it is in: broken off, so that the server rolls back.
    client.release(true)
    throw error
  } finally {
    clearTimeout(late)
    client.removeListener('error', reject)
  }
}

const signature = Buffer.from('PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0', 'latin1')
const fieldCount = 3

/** Events of a source, in pages that follow one another. */
export type Rows = { source: string; pages: readonly Events[] }

/** A buffer of its own is used again each time, up to this. */
const keptMax = 1024 * 1024

/** `toCopy` for who sends one after the other. */
export function createCopier(): typeof toCopy {
  let kept = Buffer.alloc(0)
  return (all) =>
    toCopy(all, (size) => {
      if (size > keptMax) return Buffer.allocUnsafe(size)
      if (kept.length < size) kept = Buffer.allocUnsafeSlow(Math.min(keptMax, 2 * size))
      return kept.subarray(0, size)
    })
}

/** As COPY reads them: https://www.postgresql.org/docs/current/sql-copy.html, binary format. */
export function toCopy(all: readonly Rows[], room = Buffer.allocUnsafe): Buffer {
  const parts = all.map(({ source, pages }) => ({ head: rowHead(source), pages }))
  let size = signature.length + 2
  for (const { head, pages } of parts) {
    for (const { ids, spans } of pages) size += ids.length * (head.length + 12) + lengthOf(spans)
  }
  const out = room(size)
  const view = new DataView(out.buffer, out.byteOffset, size)
  out.set(signature, 0)
  let at = signature.length
  for (const { head, pages } of parts) {
    for (const events of pages) at = writeRows(out, view, at, head, events)
  }
  view.setInt16(at, -1)
  return out
}

/** @returns where the next row begins */
function writeRows(
  out: Buffer,
  view: DataView,
  begin: number,
  head: Buffer,
  { ids, body, spans }: Events,
): number {
  const from = Buffer.from(body.buffer, body.byteOffset, body.byteLength)
  let at = begin
  for (let i = 0; i < ids.length; i++) {
    at += head.copy(out, at)
    view.setBigInt64(at, ids[i] as bigint)
    const [first, end] = [spans[2 * i] as number, spans[2 * i + 1] as number]
    view.setInt32(at + 8, end - first)
    at += 12 + from.copy(out, at + 12, first, end)
  }
  return at
}

function lengthOf(spans: Uint32Array): number {
  let sum = 0
  for (let i = 0; i < spans.length; i += 2) sum += (spans[i + 1] ?? 0) - (spans[i] ?? 0)
  return sum
}

/** What is the same for all rows: how many fields, the source, and that the id has eight bytes. */
function rowHead(source: string): Buffer {
  const name = Buffer.from(source)
  const head = Buffer.alloc(2 + 4 + name.length + 4)
  head.writeInt16BE(fieldCount, 0)
  head.writeInt32BE(name.length, 2)
  head.set(name, 6)
  head.writeInt32BE(8, 6 + name.length)
  return head
}
