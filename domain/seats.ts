// Where seats are and who gets which: labels and seat numbers of a hall, and the allocation of free places to a group
// of holds in the order they arrived. Pure: it is told what is free and says who gets what; db/holds.ts locks and
// writes. A hold is all or nothing, in one section, so that it has one price.

/** Places one hold may ask for. */
export const quantityMax = 20
/** Places one event may have. */
export const capacityMax = 200_000

export type Section = {
  sectionNo: number
  name: string
  /** Undefined: a standing section, which has no seats. */
  seating?: { rows: number; seatsPerRow: number; firstSeatNo: number } | undefined
}

/** `A-1-2`: section, row, number in the row; both count from 1. */
export function seatLabel(section: Section, seatNo: number): string {
  const { firstSeatNo, seatsPerRow } = section.seating!
  const index = seatNo - firstSeatNo
  return `${section.name}-${Math.floor(index / seatsPerRow) + 1}-${(index % seatsPerRow) + 1}`
}

/** The seat a label names in these sections. A section's own name may hold hyphens. */
export function findSeat(
  sections: readonly Section[],
  label: string,
): { section: Section; seatNo: number } | undefined {
  const match = /^(.+)-([1-9]\d{0,5})-([1-9]\d{0,5})$/.exec(label)
  const section = sections.find(({ name }) => name === match?.[1])
  if (match === null || section?.seating === undefined) return undefined
  const { rows, seatsPerRow, firstSeatNo } = section.seating
  const [row, number] = [Number(match[2]), Number(match[3])]
  if (row > rows || number > seatsPerRow) return undefined
  return { section, seatNo: firstSeatNo + (row - 1) * seatsPerRow + number - 1 }
}

export type Wish =
  /** The named seats, all of one section. */
  | { sectionNo: number; seatNos: readonly number[] }
  /** Any so many, in one section when it is given, else in the best that has them. */
  | { sectionNo?: number | undefined; quantity: number }

export type Place = { sectionNo: number; quantity: number; seatNos?: number[] }

/** Free places, changed as they are given away. */
export type Free = {
  /** Best section first. */
  sections: readonly Section[]
  /** Free seats by section, ascending: a lower number is the better seat. */
  seats: Map<number, number[]>
  /** Free places of standing sections. */
  standing: Map<number, number>
}

/** Gives each wish its place, or undefined where there is none, in order: an earlier wish is never worse off. */
export function allocate(wishes: readonly Wish[], free: Free): (Place | undefined)[] {
  return wishes.map((wish) =>
    'seatNos' in wish ? takeNamed(wish.sectionNo, wish.seatNos, free) : takeBest(wish, free),
  )
}

function takeNamed(sectionNo: number, seatNos: readonly number[], free: Free): Place | undefined {
  const seats = free.seats.get(sectionNo) ?? []
  const wanted = new Set(seatNos)
  const left = seats.filter((seatNo) => !wanted.has(seatNo))
  if (seats.length - left.length < wanted.size) return undefined
  free.seats.set(sectionNo, left)
  return { sectionNo, quantity: seatNos.length, seatNos: [...seatNos].sort((a, b) => a - b) }
}

/** Adjacent seats in the best section that has them, else scattered ones in the best section that has enough. */
function takeBest(
  { sectionNo, quantity }: { sectionNo?: number | undefined; quantity: number },
  free: Free,
): Place | undefined {
  const sections = free.sections.filter((s) => sectionNo === undefined || s.sectionNo === sectionNo)
  for (const section of sections) {
    const at = section.seating
      ? findRun(free.seats.get(section.sectionNo) ?? [], section.seating, quantity)
      : -1
    if (at >= 0) return takeAt(section.sectionNo, at, quantity, free)
    const standing = free.standing.get(section.sectionNo) ?? 0
    if (standing >= quantity) {
      free.standing.set(section.sectionNo, standing - quantity)
      return { sectionNo: section.sectionNo, quantity }
    }
  }
  for (const section of sections) {
    const seats = free.seats.get(section.sectionNo) ?? []
    if (seats.length >= quantity) return takeScattered(section, quantity, free)
  }
  return undefined
}

/** Index of the first `quantity` neighbours in one row, or -1. */
function findRun(
  seats: readonly number[],
  { seatsPerRow, firstSeatNo }: NonNullable<Section['seating']>,
  quantity: number,
): number {
  if (quantity > seatsPerRow) return -1
  let start = 0
  for (let i = 0; i < seats.length; i++) {
    const continues =
      i > start && seats[i] === seats[i - 1]! + 1 && (seats[i]! - firstSeatNo) % seatsPerRow !== 0
    if (!continues) start = i
    if (i - start + 1 === quantity) return start
  }
  return -1
}

function takeAt(sectionNo: number, at: number, quantity: number, free: Free): Place {
  return { sectionNo, quantity, seatNos: free.seats.get(sectionNo)!.splice(at, quantity) }
}

/** Nobody can sit together: the longest stretches first, so that at least some do. */
function takeScattered(section: Section, quantity: number, free: Free): Place {
  const taken: number[] = []
  while (taken.length < quantity) {
    const seats = free.seats.get(section.sectionNo)!
    let length = quantity - taken.length
    while (length > 1 && findRun(seats, section.seating!, length) < 0) length--
    taken.push(...seats.splice(findRun(seats, section.seating!, length), length))
  }
  return { sectionNo: section.sectionNo, quantity, seatNos: taken.sort((a, b) => a - b) }
}

/** Whether the seats of a place are neighbours in one row, or too many for any row. */
export function isAdjacent(place: Place, section: Section): boolean {
  const seats = place.seatNos
  if (seats === undefined || section.seating === undefined) return true
  if (seats.length > section.seating.seatsPerRow) return true
  return findRun(seats, section.seating, seats.length) === 0
}
