// How a trace is named on its way through the fleet: W3C Trace Context's `traceparent`, carried by requests, outbox rows,
// events and jobs. Whether anybody records spans is decided elsewhere (workers/trace.ts). No I/O.

const syntax = /^([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?$/
const zeros = /^0+$/

/**
 * Reads a traceparent (https://www.w3.org/TR/trace-context/#traceparent-header); one of a later version becomes one of
 * version 00. Undefined when it is none: the standard has it ignored.
 */
export function parseTraceparent(given: unknown): string | undefined {
  if (typeof given !== 'string' || given.length > 512) return undefined
  const [, version, traceId = '', parentId = '', flags = '', more] = syntax.exec(given) ?? []
  if (version === undefined || version === 'ff') return undefined
  if (zeros.test(traceId) || zeros.test(parentId)) return undefined
  if (version === '00') return more === undefined ? given : undefined
  return `00-${traceId}-${parentId}-0${Number.parseInt(flags, 16) & 1}`
}

/** The traceparent that a job's payload brings along. */
export const traceparentIn = (data: unknown): string | undefined =>
  parseTraceparent((data as { traceparent?: unknown } | null | undefined)?.traceparent)

/** For log lines. */
export const traceIdOf = (traceparent: string | undefined): string | undefined =>
  traceparent?.slice(3, 35)
