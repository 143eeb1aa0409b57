// Records spans by OpenTelemetry and sends them to a collector by OTLP over HTTP. Loaded only when the settings name
// one. What waits is bounded and more is dropped; a collector that is away or slow is told of once and holds up nothing.

import { hostname } from 'node:os'
import {
  SpanKind as Kind,
  ROOT_CONTEXT,
  type SpanContext,
  SpanStatusCode,
  trace,
} from '@opentelemetry/api'
import { OTLPTraceExporter } from '@opentelemetry/exporter-trace-otlp-http'
import { resourceFromAttributes } from '@opentelemetry/resources'
import {
  AlwaysOffSampler,
  AlwaysOnSampler,
  BatchSpanProcessor,
  ParentBasedSampler,
  type SpanExporter,
  TraceIdRatioBasedSampler,
  TracerProvider,
} from '@opentelemetry/sdk-trace'
import { v7 as uuidv7 } from 'uuid'
import { parseTraceparent } from '../domain/traces.ts'
import { describeError } from './log.ts'
import type { Begin, Fault, SpanKind } from './trace.ts'
import type { Sampler } from './traceSettings.ts'

export type RecorderOptions = {
  url: string
  headers?: Record<string, string> | undefined
  sampler: Sampler
  ratio: number
  service: string
  worker: string
  onTrouble(error: Error): void
  onWell(): void
}

/** Spans that wait to be sent: about 2 MB. */
const waitingMax = 4096
const sendEveryMs = 1000
const sendMaxMs = 5000
const closeMaxMs = 2000

export function openRecorder(options: RecorderOptions): { begin: Begin; close(): Promise<void> } {
  const { url, headers = {} } = options
  const processor = new BatchSpanProcessor({
    exporter: telling(new OTLPTraceExporter({ url, headers, timeoutMillis: sendMaxMs }), options),
    maxQueueSize: waitingMax,
    scheduledDelayMillis: sendEveryMs,
    exportTimeoutMillis: sendMaxMs,
  })
  const provider = new TracerProvider({
    resource: resourceFromAttributes({
      'service.name': options.service,
      'service.namespace': 'flotilla',
      'service.instance.id': uuidv7(),
      'flotilla.worker': options.worker,
      'host.name': hostname(),
      'process.pid': process.pid,
    }),
    sampler: samplerOf(options.sampler, options.ratio),
    spanProcessors: [processor],
  })
  const tracer = provider.getTracer('flotilla')

  const begin: Begin = (name, { kind, parent, attributes = {} }) => {
    const above = contextOf(parent)
    const context = above ? trace.setSpanContext(ROOT_CONTEXT, above) : ROOT_CONTEXT
    const span = tracer.startSpan(name, { kind: kinds[kind], attributes }, context)
    return {
      traceparent: toTraceparent(span.spanContext()),
      set: (more) => void span.setAttributes(more),
      end(fault) {
        if (!span.isRecording()) return
        if (fault) {
          const { type, message, stack } = describe(fault)
          span.setAttribute('error.type', type)
          span.setStatus({ code: SpanStatusCode.ERROR, ...(message && { message }) })
          if (message) {
            span.addEvent('exception', {
              'exception.type': type,
              'exception.message': message,
              ...(stack && { 'exception.stacktrace': stack }),
            })
          }
        }
        span.end()
      },
    }
  }

  return {
    begin,
    async close() {
      const late = new Promise<void>((resolve) => setTimeout(resolve, closeMaxMs).unref())
      await Promise.race([provider.shutdown().catch(() => {}), late])
    },
  }
}

const kinds: Record<SpanKind, Kind> = {
  server: Kind.SERVER,
  internal: Kind.INTERNAL,
  producer: Kind.PRODUCER,
  consumer: Kind.CONSUMER,
  client: Kind.CLIENT,
}

function samplerOf(name: Sampler, ratio: number) {
  const root = name.endsWith('always_on')
    ? new AlwaysOnSampler()
    : name.endsWith('always_off')
      ? new AlwaysOffSampler()
      : new TraceIdRatioBasedSampler(ratio)
  return name.startsWith('parentbased_') ? new ParentBasedSampler({ root }) : root
}

function contextOf(parent: unknown): SpanContext | undefined {
  const [, traceId, spanId, flags] = parseTraceparent(parent)?.split('-') ?? []
  if (traceId === undefined || spanId === undefined || flags === undefined) return undefined
  return { traceId, spanId, traceFlags: Number.parseInt(flags, 16), isRemote: true }
}

const toTraceparent = ({ traceId, spanId, traceFlags }: SpanContext): string =>
  `00-${traceId}-${spanId}-${traceFlags.toString(16).padStart(2, '0')}`

type Told = { type: string; message?: string; stack?: string }

/** As the log tells an error: redacted, without values of rows. */
function describe(fault: Fault): Told {
  if ('type' in fault) return fault
  const { code, type, ...told } = describeError(fault.error) as Told & { code?: unknown }
  return { ...told, type: String(code ?? type ?? 'Error') }
}

/** Says once that nothing gets through, and once that it does again. */
function telling(exporter: SpanExporter, { onTrouble, onWell }: RecorderOptions): SpanExporter {
  let isWell = true
  return {
    export(spans, done) {
      exporter.export(spans, (result) => {
        const { error } = result
        const went = error === undefined && result.code === 0
        if (isWell && !went) onTrouble(error ?? new Error('the collector refused them'))
        if (!isWell && went) onWell()
        isWell = went
        done(result)
      })
    },
    shutdown: () => exporter.shutdown(),
    forceFlush: async () => await exporter.forceFlush?.(),
  }
}
