// Tables for people: columns as wide as their widest cell, numbers to the right.

export function table(head: readonly string[], rows: readonly (readonly string[])[]): string[] {
  const all = [head, ...rows]
  const widths = head.map((_, column) => Math.max(...all.map((row) => (row[column] ?? '').length)))
  const numeric = head.map((_, column) =>
    rows.every((row) => /^[\d.,]*$|^-$/.test(row[column] ?? '')),
  )
  return all.map((row) =>
    row
      .map((cell, column) => {
        const width = widths[column] ?? 0
        return numeric[column] ? cell.padStart(width) : cell.padEnd(width)
      })
      .join('  ')
      .trimEnd(),
  )
}

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
