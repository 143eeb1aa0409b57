// Chance from a seed: what the buyers want and which fault comes next. The same seed throws the same dice; when a
// process is hit is a matter of the machine all the same.

export type Dice = {
  /** Uniform on [0, 1). */
  random(): number
  between(least: number, most: number): number
  pick<T>(list: readonly T[]): T
  shuffle<T>(list: readonly T[]): T[]
}

/** mulberry32 (Tommy Ettinger, public domain): small, and good enough for this. */
export function createDice(seed: number): Dice {
  let state = seed | 0
  const random = (): number => {
    state = (state + 0x6d2b79f5) | 0
    let t = Math.imul(state ^ (state >>> 15), 1 | state)
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32
  }
  return {
    random,
    between: (least, most) => least + random() * (most - least),
    pick: (list) => list[Math.floor(random() * list.length)]!,
    shuffle(list) {
      const left = [...list]
      return Array.from(list, () => left.splice(Math.floor(random() * left.length), 1)[0]!)
    },
  }
}
