// Memory for replies that is used again: a fresh buffer for each, and one more to join its chunks in, costs the loader a
// third of its time in collecting garbage and in the system's handing out of pages. A few are kept while nobody needs them.

export type Buffers = {
  /** Of `bytes` or more. What was in it before is still there. */
  take(bytes: number): Buffer
  /** Nobody reads it any more. */
  give(buffer: Buffer): void
}

/** Larger ones are left to the garbage collector, and as many as would be more than `keptMax`. */
const ownMax = 1024 * 1024
const keptMax = 4 * ownMax
const sizeMin = 64 * 1024

export function createBuffers(): Buffers {
  const kept: Buffer[] = []
  let bytesKept = 0
  return {
    take(bytes) {
      const size = Math.max(sizeMin, 2 ** Math.ceil(Math.log2(bytes)))
      if (size > ownMax) return Buffer.allocUnsafeSlow(bytes)
      const at = kept.findIndex(({ length }) => length === size)
      if (at === -1) return Buffer.allocUnsafeSlow(size)
      const [buffer] = kept.splice(at, 1) as [Buffer]
      bytesKept -= size
      return buffer
    },
    give(buffer) {
      if (buffer.length > ownMax) return
      kept.push(buffer)
      bytesKept += buffer.length
      // The oldest: of sizes that are not asked for any more.
      while (bytesKept > keptMax) bytesKept -= kept.shift()?.length ?? bytesKept
    },
  }
}
