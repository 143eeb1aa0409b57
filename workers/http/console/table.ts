// A table for people: a caption, heads with their scope, rows with a key by which the page's script finds them again. On a
// narrow screen each row becomes a card of named values; its roles are written out, since a browser forgets those of a
// table that is laid out as something else.

import { type Html, html, type Part } from './html.ts'

export type Column = {
  head: string
  /** Numbers: to the right. */
  numeric?: boolean
  /** Takes what room there is. */
  wide?: boolean
  /** The head is for those who cannot see. */
  quiet?: boolean
}

export type TableRow = { key: string; cells: readonly Part[]; tone?: 'bad' | 'warn' | 'calm' }

export type TableOptions = {
  caption: string
  columns: readonly Column[]
  rows: readonly TableRow[]
  /** Said in its place when there are no rows. */
  empty: Part
  /** Which cell names the row; the first one if left out. */
  nameAt?: number
  quietCaption?: boolean
}

export function table(options: TableOptions): Html {
  const { caption, columns, rows, empty, nameAt = 0, quietCaption = true } = options
  if (rows.length === 0) return html`<p class="empty">${empty}</p>`
  const kinds = columns.map(({ numeric, wide }) => (numeric ? 'num' : wide ? 'wide' : ''))
  const heads = columns.map(
    ({ head, quiet }, i) =>
      html`<th scope="col" role="columnheader" class="${kinds[i]}">${quiet ? html`<span class="quiet">${head}</span>` : head}</th>`,
  )
  const cell = (part: Part, i: number) =>
    i === nameAt
      ? html`<th scope="row" role="rowheader" data-label="${columns[i]?.head}" class="${kinds[i]}">${part}</th>`
      : html`<td role="cell" data-label="${columns[i]?.quiet ? '' : columns[i]?.head}" class="${kinds[i]}">${part}</td>`
  return html`<table role="table">
<caption class="${quietCaption && 'quiet'}">${caption}</caption>
<thead role="rowgroup"><tr role="row">${heads}</tr></thead>
<tbody role="rowgroup">${rows.map(
    ({ key, cells, tone }) =>
      html`<tr role="row" data-key="${key}" class="${tone}">${cells.map(cell)}</tr>\n`,
  )}</tbody>
</table>`
}

/** Names and values; those without a value are left out. */
export const facts = (list: readonly (readonly [string, Part])[]): Html =>
  html`<dl class="facts">${list
    .filter(([, value]) => value !== null && value !== undefined && value !== '')
    .map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`
