// The order of a lobby, drawn by lot: a Fisher-Yates shuffle whose dice are bytes of a seed, so that everybody who is
// shown the seed draws the same order. Every order is equally likely: a die that would favour one is thrown again.

/**
 * Seat s, counted from 1, stands at place result[s - 1], counted from 1.
 * @param bytes gives the next bytes of the seed's stream
 */
export function drawPlaces(size: number, bytes: (count: number) => Uint8Array): Uint32Array {
  const die = dice(bytes)
  const places = Uint32Array.from({ length: size }, (_, i) => i + 1)
  for (let i = size - 1; i > 0; i--) {
    const j = die(i + 1)
    const kept = places[i]!
    places[i] = places[j]!
    places[j] = kept
  }
  return places
}

const blockBytes = 4096

/** Whole numbers below `sides`, from 32 bits each, big end first; what lies above the last full round is passed over. */
function dice(bytes: (count: number) => Uint8Array): (sides: number) => number {
  let block: DataView = new DataView(new ArrayBuffer(0))
  let at = 0
  const next = () => {
    if (at === block.byteLength) {
      const { buffer, byteOffset, byteLength } = bytes(blockBytes)
      block = new DataView(buffer, byteOffset, byteLength)
      at = 0
    }
    at += 4
    return block.getUint32(at - 4)
  }
  return (sides) => {
    const fair = 2 ** 32 - (2 ** 32 % sides)
    for (;;) {
      const thrown = next()
      if (thrown < fair) return thrown % sides
    }
  }
}

/** Who stood where is undone: seat result[p - 1] stands at place p. */
export function seatsOf(places: Uint32Array): Uint32Array {
  const seats = new Uint32Array(places.length)
  for (let i = 0; i < places.length; i++) seats[places[i]! - 1] = i + 1
  return seats
}
