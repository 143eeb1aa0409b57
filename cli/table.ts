// Tables for people: columns as wide as their widest cell, numbers to the right; as wide as the terminal at most, for
// which the columns that may be cut are, the last one first. A cell is one line of printable characters, whatever a
// stranger's error brought.

export type Fit = {
  /** Characters a line may have; undefined: any number. */
  width: number | undefined
  /** Heads of the columns that may be cut, the first one first. */
  cut: readonly string[]
}

const leastWidth = 8
const gap = 2

export function table(
  head: readonly string[],
  rows: readonly (readonly string[])[],
  fit: Fit = { width: undefined, cut: [] },
): string[] {
  const all = [head, ...rows].map((row) => row.map(printable))
  const widths = head.map((_, column) => Math.max(...all.map((row) => lengthOf(row[column] ?? ''))))
  narrow(head, widths, fit)
  const numeric = head.map((_, column) =>
    rows.every((row) => /^[\d.,]*$|^-$/.test(row[column] ?? '')),
  )
  return all.map((row) =>
    row
      .map((cell, column) => {
        const width = widths[column] ?? 0
        const text = shorten(cell, width)
        const blank = ' '.repeat(width - lengthOf(text))
        return numeric[column] ? blank + text : text + blank
      })
      .join(' '.repeat(gap))
      .trimEnd(),
  )
}

function narrow(head: readonly string[], widths: number[], { width, cut }: Fit): void {
  if (width === undefined) return
  for (const name of cut) {
    const column = head.indexOf(name)
    const over = widths.reduce((sum, one) => sum + one + gap, -gap) - width
    if (column === -1 || over <= 0) continue
    const now = widths[column] ?? 0
    widths[column] = Math.max(Math.min(now, Math.max(leastWidth, name.length)), now - over)
  }
}

/** One line: what would end it, move the cursor or reverse the text is a blank. */
export const printable = (text: string): string => blanked(text).trim()

/** The same with its indentation. */
export const blanked = (text: string): string => text.replace(/[\p{Cc}\p{Cf}\u2028\u2029]+/gu, ' ')

const lengthOf = (text: string): number => [...text].length

const shorten = (text: string, width: number): string =>
  lengthOf(text) <= width ? text : `${[...text].slice(0, width - 1).join('')}…`

const steps = [
  { unit: 'd', seconds: 86_400 },
  { unit: 'h', seconds: 3600 },
  { unit: 'm', seconds: 60 },
  { unit: 's', seconds: 1 },
]

/** A length of time in its two largest units: `3h 20m`. */
export function age(seconds: number): string {
  let left = Math.max(0, Math.round(seconds))
  const parts = steps.map(({ unit, seconds: size }) => {
    const count = Math.floor(left / size)
    left -= count * size
    return { count, text: `${count}${unit}` }
  })
  const first = parts.findIndex(({ count }) => count > 0)
  if (first === -1) return '0s'
  const shown = parts.slice(first, first + 2).filter(({ count }) => count > 0)
  return shown.map(({ text }) => text).join(' ')
}

/** A moment to the second, UTC: `2026-01-02T03:04:05Z`; none: `-`. */
export const moment = (at: Date | string | null): string =>
  at === null ? '-' : new Date(at).toISOString().replace(/\.\d+Z$/, 'Z')
