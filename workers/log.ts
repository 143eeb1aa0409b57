// The log of a worker: JSON lines on stdout, each with the worker, its pid and its instance. Errors are told without
// personal data and secrets: no values of rows, no credentials.

import { randomUUID } from 'node:crypto'
import { type Logger, type LoggerOptions, pino, stdTimeFunctions } from 'pino'
import { redact } from '../domain/redact.ts'

export type Log = Logger

const causesMax = 4

export function createLog(worker: string, level: string): Log {
  // Whoever read our lines is gone: the work goes on. Not pino's own destination, whose last flush tries for ever then.
  process.stdout.on('error', () => {})
  const options: LoggerOptions = {
    level,
    base: { worker, pid: process.pid, instance: randomUUID().slice(0, 8) },
    timestamp: stdTimeFunctions.isoTime,
    formatters: { level: (label) => ({ level: label }) },
    serializers: { err: (error: unknown) => describeError(error) },
  }
  return pino(options, process.stdout)
}

/** What of an error is told. A database's `detail` is not: it quotes rows. */
export function describeError(error: unknown, depth = 0): object {
  if (!(error instanceof Error)) return { message: redact(String(error)) }
  const { name, message, stack, cause } = error
  const code = (error as { code?: unknown }).code
  return {
    type: name,
    // A connection refused on every address of a name has its message in the parts.
    message: redact(message || String((error as AggregateError).errors?.[0] ?? '')),
    ...(code === undefined ? {} : { code }),
    ...(stack && depth === 0 ? { stack: redact(stack) } : {}),
    ...(cause !== undefined && depth < causesMax ? { cause: describeError(cause, depth + 1) } : {}),
  }
}
