// Log lines of many processes on one screen: each behind its process's name, in colour and readable on a terminal, as
// the JSON they are where a program reads them.

import { createInterface } from 'node:readline'
import type { Readable } from 'node:stream'

export type Writer = (line: string) => void

const colours = [36, 35, 33, 32, 34, 95, 96, 93]
const levels: Record<number, string> = {
  10: 'trace',
  20: 'debug',
  30: 'info',
  40: '\x1b[33mWARN\x1b[39m',
  50: '\x1b[31mERROR\x1b[39m',
  60: '\x1b[31mFATAL\x1b[39m',
}
/** Said by the prefix, or the same on every line of a process. */
const hidden = new Set(['level', 'time', 'pid', 'hostname', 'name', 'worker', 'msg', 'v'])

/** Gives a function that writes every line of a stream behind `name`. */
export function prefixer(names: readonly string[], terminal: boolean, write: Writer) {
  const width = Math.max(...names.map((name) => name.length))
  return (name: string, stream: Readable): void => {
    const colour = colours[names.indexOf(name) % colours.length]
    const padded = name.padEnd(width)
    const prefix = terminal ? `\x1b[${colour}m${padded}\x1b[39m ` : `${padded} | `
    createInterface({ input: stream, crlfDelay: Number.POSITIVE_INFINITY }).on('line', (line) =>
      write(prefix + (terminal ? pretty(line) : line)),
    )
  }
}

/** A line that is not pino's passes as it is. */
export function pretty(line: string): string {
  const record = parse(line)
  if (!record) return line
  const { level, time, msg } = record
  const clock = new Date(Number(time) || String(time))
  const at = Number.isNaN(clock.getTime())
    ? ''
    : `\x1b[2m${clock.toTimeString().slice(0, 8)}\x1b[22m `
  const rest = Object.entries(record)
    .filter(([key]) => !hidden.has(key))
    .map(([key, value]) => `\x1b[2m${key}=\x1b[22m${show(key, value)}`)
  return `${at}${levels[Number(level)] ?? level} ${[msg ?? '', ...rest].join(' ').trim()}`
}

function parse(line: string): Record<string, unknown> | undefined {
  if (!line.startsWith('{"level":')) return undefined
  try {
    return JSON.parse(line)
  } catch {
    return undefined
  }
}

/** An error is shown with its stack below the line, anything else on it. */
function show(key: string, value: unknown): string {
  if (key === 'err' && typeof value === 'object' && value !== null) {
    const { stack, message } = value as { stack?: string; message?: string }
    return stack ? `${message}\n\x1b[2m${stack}\x1b[22m` : String(message)
  }
  return typeof value === 'string' && /^\S+$/.test(value) ? value : JSON.stringify(value)
}
