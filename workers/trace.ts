// The tracing port of all workers. A span is one piece of work in a trace; its `traceparent` goes along to whoever
// continues the trace. Without an endpoint in the settings nothing is recorded and none of OpenTelemetry is loaded: then
// a span hands on the traceparent it was given. Nothing here ever fails or delays the work.

import { parseTraceparent } from '../domain/traces.ts'
import type { Values } from './config.ts'
import type { Log } from './log.ts'
import type { traceSettings } from './traceSettings.ts'

export type SpanKind = 'server' | 'internal' | 'producer' | 'consumer' | 'client'
export type Attributes = Record<string, string | number | boolean | undefined>

export type SpanOptions = {
  kind: SpanKind
  /** The traceparent of the span that caused this one. None, or a malformed one: a trace of its own. */
  parent?: unknown
  /** By the semantic conventions. No personal data, no secrets. */
  attributes?: Attributes
}

/** What went wrong: an error, told without personal data and secrets, or a word for its kind. */
export type Fault = { error: unknown } | { type: string }

export type Span = {
  /** For whoever continues the trace. Undefined: there is no trace. */
  readonly traceparent: string | undefined
  set(attributes: Attributes): void
  /** Whatever happened; the first call counts. */
  end(fault?: Fault): void
}

export type Begin = (name: string, options: SpanOptions) => Span

const nothing = () => {}
const untraced: Span = { traceparent: undefined, set: nothing, end: nothing }

function handOn(parent: unknown): Span {
  const traceparent = parent === undefined ? undefined : parseTraceparent(parent)
  return traceparent === undefined ? untraced : { traceparent, set: nothing, end: nothing }
}

const carry: Begin = (_name, { parent }) => handOn(parent)

/** One for the process, as the registry of metrics is. */
let begin = carry

/** For work whose end is elsewhere; else `withSpan`. */
export const beginSpan: Begin = (name, options) => begin(name, options)

/** The same for a hot path: while nobody records, what the span would be told of is not even put together. */
export const beginSpanBy = (parent: unknown, describe: () => [string, SpanOptions]): Span =>
  begin === carry ? handOn(parent) : begin(...describe())

/** Runs `fn` as a span that ends with it. */
export async function withSpan<T>(
  name: string,
  options: SpanOptions,
  fn: (span: Span) => Promise<T>,
): Promise<T> {
  const span = begin(name, options)
  try {
    const result = await fn(span)
    span.end()
    return result
  } catch (error) {
    span.end({ error })
    throw error
  }
}

/** Attributes of a message in a queue or at a broker (https://opentelemetry.io/docs/specs/semconv/messaging/). */
export const messaging = (
  operation: 'send' | 'process',
  destination: string,
  messageId: string,
  system = 'pg-boss',
): Attributes => ({
  'messaging.system': system,
  'messaging.operation.name': operation,
  'messaging.operation.type': operation,
  'messaging.destination.name': destination,
  'messaging.message.id': messageId,
})

type TraceConfig = Values<typeof traceSettings>

export type Tracing = {
  /** Sends what is left, for two seconds at most. */
  close(): Promise<void>
}

/** Begins to record spans when the settings name where they go. */
export async function openTracing(config: TraceConfig, worker: string, log: Log): Promise<Tracing> {
  const base = config.OTEL_EXPORTER_OTLP_ENDPOINT
  const url =
    config.OTEL_EXPORTER_OTLP_TRACES_ENDPOINT ?? (base && `${base.replace(/\/$/, '')}/v1/traces`)
  if (url === undefined || config.OTEL_SDK_DISABLED === 'true') return { close: async () => {} }
  const { openRecorder } = await import('./recorder.ts')
  const recorder = openRecorder({
    url,
    headers: config.OTEL_EXPORTER_OTLP_HEADERS,
    sampler: config.OTEL_TRACES_SAMPLER,
    ratio: config.OTEL_TRACES_SAMPLER_ARG,
    service: config.OTEL_SERVICE_NAME ?? `flotilla-${worker}`,
    worker,
    onTrouble: (error) =>
      log.warn({ err: error }, 'traces do not get through, and are dropped until they do'),
    onWell: () => log.info('traces get through again'),
  })
  begin = recorder.begin
  log.info({ to: new URL(url).origin, sampler: config.OTEL_TRACES_SAMPLER }, 'records traces')
  return {
    async close() {
      await recorder.close()
      begin = carry
    },
  }
}
