// COPY into a table of (text, bigint, json) rows, in the binary form, where no payload needs an escape. The statements
// before it go in the same message, so that both are one transaction of one round trip.

import pg from 'pg'
import { from as copyFrom } from 'pg-copy-streams'
import type { LoadedEvent } from '../domain/loader.ts'

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
/** Of a row besides its payload and its source: count, three lengths, the id. */
const rowBytes = 2 + 3 * 4 + 8

/** As COPY reads them: https://www.postgresql.org/docs/current/sql-copy.html, binary format. */
export function toCopy(source: string, events: readonly LoadedEvent[]): Buffer {
  const name = Buffer.from(source)
  const payloads = events.reduce((sum, { payload }) => sum + payload.length, 0)
  const size = signature.length + events.length * (rowBytes + name.length) + payloads + 2
  const out = Buffer.allocUnsafe(size)
  out.set(signature, 0)
  let at = signature.length
  for (const { id, payload } of events) {
    at = out.writeInt16BE(fieldCount, at)
    at = out.writeInt32BE(name.length, at)
    out.set(name, at)
    at = out.writeInt32BE(8, at + name.length)
    at = out.writeBigInt64BE(id, at)
    at = out.writeInt32BE(payload.length, at)
    out.set(payload, at)
    at += payload.length
  }
  out.writeInt16BE(-1, at)
  return out
}
