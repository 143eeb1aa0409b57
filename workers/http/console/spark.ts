// Small pictures as inline SVG: a line of what was lately, bars of what an hour brought. Colours come from the page's
// style, so that they fit light and dark. Each has its figures as its name, for those who cannot see it.

import { type Html, html, nothing } from './html.ts'

const width = 120
const height = 24

/** The latest value last. Of fewer than two there is nothing to draw. */
export function sparkline(values: readonly number[], name: string): Html {
  if (values.length < 2) return nothing
  const most = Math.max(1, ...values)
  const step = width / (values.length - 1)
  const points = values
    .map((value, i) => `${round(i * step)},${round(height - 2 - (value / most) * (height - 4))}`)
    .join(' ')
  return html`<svg class="spark" role="img" aria-label="${name}" viewBox="0 0 ${width} ${height}" preserveAspectRatio="none"><polyline points="${points}"/></svg>`
}

export type Bar = { label: string; value: number }

export function bars(list: readonly Bar[], name: string): Html {
  const most = Math.max(1, ...list.map(({ value }) => value))
  const step = 100 / list.length
  const one = ({ label, value }: Bar, i: number) => {
    const tall = value === 0 ? 0.6 : Math.max(1.5, (value / most) * 40)
    return html`<rect x="${round(i * step + step * 0.1)}" y="${round(40 - tall)}" width="${round(step * 0.8)}" height="${round(tall)}" class="${value === 0 && 'none'}"><title>${label}: ${value}</title></rect>`
  }
  return html`<svg class="bars" role="img" aria-label="${name}" viewBox="0 0 100 40" preserveAspectRatio="none">${list.map(one)}</svg>`
}

const round = (n: number): string => String(Math.round(n * 100) / 100)
