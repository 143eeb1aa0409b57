// How numbers, times and states are put to people: one place, so that all pages say them alike. Times are UTC.

import { redact } from '../../../domain/redact.ts'
import { type Html, html } from './html.ts'

export const count = (n: number): string => n.toLocaleString('en-US')

/** `100,000+` where counting stopped. */
export const countUpTo = (n: number, max: number): string =>
  n >= max ? `${count(max)}+` : count(n)

/** `3 jobs`, `1 job`. */
export const several = (n: number, one: string, many = `${one}s`): string =>
  `${count(n)} ${n === 1 ? one : many}`

const units = [
  ['d', 86_400],
  ['h', 3600],
  ['m', 60],
  ['s', 1],
] as const

/** In its two largest units: `3h 20m`. */
export function age(seconds: number | null): string {
  if (seconds === null) return '–'
  let left = Math.max(0, Math.round(seconds))
  const parts = units.map(([unit, size]) => {
    const times = Math.floor(left / size)
    left -= times * size
    return { times, text: `${times}${unit}` }
  })
  const first = parts.findIndex(({ times }) => times > 0)
  if (first === -1) return '0s'
  const shown = parts.slice(first, first + 2).filter(({ times }) => times > 0)
  return shown.map(({ text }) => text).join(' ')
}

export const iso = (at: Date | string): string => new Date(at).toISOString().replace(/\.\d+Z$/, 'Z')

/** `2026-01-02 03:04:05`; none: `–`. */
export function moment(at: Date | string | null): Html {
  if (at === null) return html`–`
  const text = iso(at)
  return html`<time datetime="${text}">${text.slice(0, 10)} ${text.slice(11, 19)}</time>`
}

/** `5m 3s ago`, with the moment beside it for who points at it. */
export function ago(at: Date | null, now = Date.now()): Html {
  if (at === null) return html`–`
  const text = iso(at)
  return html`<time datetime="${text}" title="${text}">${age((now - at.getTime()) / 1000)} ago</time>`
}

export type Tone = 'good' | 'bad' | 'warn' | 'calm'

/** A word for a state; the colour says nothing that the word does not. */
export const badge = (word: string, tone: Tone): Html =>
  html`<span class="badge ${tone}">${word}</span>`

/** What a stranger said, such as an error: once more without secrets and personal data, broken where it must be. */
export const said = (text: string): Html => html`<span class="said">${redact(text)}</span>`

/** An id as people copy it. */
export const shortId = (id: string): string => id.slice(0, 8)

export const megabytes = (bytes: number | undefined): string =>
  bytes === undefined ? '–' : `${Math.round(bytes / 2 ** 20)} MB`
