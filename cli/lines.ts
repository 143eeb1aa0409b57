// Log lines of many processes on one screen: each behind its process's name, in colour and readable on a terminal, as
// the JSON they are where a program reads them.

import { createInterface } from 'node:readline'
import type { Readable } from 'node:stream'

export type Writer = (line: string) => void

const colours = [36, 35, 33, 32, 34, 95, 96, 93]
const levelColours: Record<string, number> = { warn: 33, error: 31, fatal: 31 }
/** Said by the prefix, or the same on every line of a process. */
const hidden = new Set(['level', 'time', 'pid', 'hostname', 'worker', 'instance', 'msg'])

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

/** A line that is not the workers' JSON passes as it is. */
export function pretty(line: string): string {
  const record = parse(line)
  if (!record) return line
  const { level, time, msg } = record
  const at = dim(new Date(String(time)).toTimeString().slice(0, 8))
  const colour = levelColours[String(level)]
  const said = colour ? `\x1b[${colour}m${msg}\x1b[39m` : msg
  const rest = Object.entries(record)
    .filter(([key]) => !hidden.has(key))
    .map(([key, value]) => dim(`${key}=`) + show(key, value))
  return [at, said, ...rest].join(' ')
}

const dim = (text: string): string => `\x1b[2m${text}\x1b[22m`

function parse(line: string): Record<string, unknown> | undefined {
  if (!line.startsWith('{"level":"')) return undefined
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
    return stack ? `${message}\n${dim(stack)}` : String(message)
  }
  return typeof value === 'string' && /^\S+$/.test(value) ? value : JSON.stringify(value)
}
