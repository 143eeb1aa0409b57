// The seed of a draw: made before the lobby opens and kept secret, its hash published at once, itself after the draw.
// Whoever has it can draw again: the stream of AES-256-CTR under the seed, from a zero counter, is the dice
// (docs/waitingroom.md says it step by step).

import { createCipheriv, hash, randomBytes } from 'node:crypto'
import { drawPlaces } from '../../domain/draw.ts'

const seedBytes = 32

/** Hex. */
export const newSeed = (): string => randomBytes(seedBytes).toString('hex')

/** SHA-256 of the seed's bytes, hex. */
export const commitmentOf = (seed: string): string => hash('sha256', Buffer.from(seed, 'hex'))

/** Seat s stands at place result[s - 1]. */
export function drawFromSeed(seed: string, lobbySize: number): Uint32Array {
  const stream = createCipheriv('aes-256-ctr', Buffer.from(seed, 'hex'), Buffer.alloc(16))
  return drawPlaces(lobbySize, (count) => stream.update(Buffer.alloc(count)))
}
