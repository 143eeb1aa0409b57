// A result as a picture: a bar for each figure, ours in colour, the spread of the rounds as a line. Readable on light and
// on dark ground.

import { whole } from './page.ts'
import type { Figure, Result } from './results.ts'

const width = 760
const labelWidth = 250
const valueWidth = 90
const rowHeight = 26
const top = 34

export function drawBars({ title, unit, figures }: Result): string {
  const most = Math.max(...figures.map(({ value, high }) => Math.max(value, high ?? 0)), 1e-9)
  const scale = (width - labelWidth - valueWidth) / most
  const height = top + figures.length * rowHeight + 10
  const rows = figures.map((figure, i) => bar(figure, top + i * rowHeight, scale))
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${height}" width="${width}" height="${height}" role="img" aria-label="${escaped(title)}">
<style>
text { font: 13px system-ui, sans-serif; fill: #1f2328 }
.title { font-weight: 600 }
.ours { fill: #1a7f5a }
.peer { fill: #9aa4af }
.spread { stroke: #1f2328; stroke-width: 1.5 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 }
  .ours { fill: #3fb984 }
  .peer { fill: #6e7781 }
  .spread { stroke: #e6edf3 }
}
</style>
<text class="title" x="0" y="18">${escaped(title)} (${escaped(unit)})</text>
${rows.join('\n')}
</svg>
`
}

function bar({ name, value, low, high, peer }: Figure, y: number, scale: number): string {
  const middle = y + rowHeight / 2
  const end = labelWidth + Math.max(1, value * scale)
  const spread =
    low === undefined || high === undefined
      ? ''
      : `<line class="spread" x1="${at(labelWidth + low * scale)}" x2="${at(labelWidth + high * scale)}" y1="${middle}" y2="${middle}"/>`
  const textAt = Math.max(end, labelWidth + (high ?? 0) * scale) + 6
  return `<text x="${labelWidth - 8}" y="${middle + 4}" text-anchor="end">${escaped(name)}</text>
<rect class="${peer ? 'peer' : 'ours'}" x="${labelWidth}" y="${y + 4}" width="${at(end - labelWidth)}" height="${rowHeight - 8}" rx="2"/>${spread}
<text x="${at(textAt)}" y="${middle + 4}">${whole(value)}</text>`
}

const at = (x: number): string => x.toFixed(1)

const escaped = (text: string): string =>
  text.replaceAll('&', '&amp;').replaceAll('<', '&lt;').replaceAll('"', '&quot;')
