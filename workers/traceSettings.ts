// The settings of tracing: OpenTelemetry's own names and meanings, as far as they matter here
// (https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/).

import type { Setting } from './config.ts'

export const samplers = [
  'always_on',
  'always_off',
  'traceidratio',
  'parentbased_always_on',
  'parentbased_always_off',
  'parentbased_traceidratio',
] as const
export type Sampler = (typeof samplers)[number]

const endpoint = (doc: string): Setting<string | undefined> => ({
  doc,
  parse(value) {
    if (URL.canParse(value) && /^https?:$/.test(new URL(value).protocol)) return value
    throw new Error('must be a URL that begins with http:// or https://')
  },
})

const choice = <T extends string>(doc: string, fallback: T, values: readonly T[]): Setting<T> => ({
  doc,
  fallback,
  parse(value) {
    const found = values.find((known) => known === value)
    if (found !== undefined) return found
    throw new Error(`must be one of ${values.join(', ')}`)
  },
})

export const traceSettings = {
  OTEL_EXPORTER_OTLP_ENDPOINT: endpoint(
    'OpenTelemetry collector, http://host:4318; unset: no traces are recorded',
  ),
  OTEL_EXPORTER_OTLP_TRACES_ENDPOINT: endpoint(
    'where traces go, with the path; unset: OTEL_EXPORTER_OTLP_ENDPOINT and /v1/traces',
  ),
  OTEL_EXPORTER_OTLP_HEADERS: {
    doc: 'headers for the collector: name=value, a comma list, values percent-encoded',
    secret: true,
    parse: headers,
  } satisfies Setting<Record<string, string>> as Setting<Record<string, string> | undefined>,
  OTEL_EXPORTER_OTLP_PROTOCOL: choice('how traces are sent', 'http/json', ['http/json']),
  OTEL_SERVICE_NAME: {
    doc: 'service.name of all spans; unset: flotilla- and the name of the worker',
    parse: (value: string) => value,
  } satisfies Setting<string> as Setting<string | undefined>,
  OTEL_TRACES_SAMPLER: choice<Sampler>(
    'which traces are recorded; parentbased_: what the caller decided goes first',
    'parentbased_always_on',
    samplers,
  ),
  OTEL_TRACES_SAMPLER_ARG: {
    doc: 'share of traces that the samplers by ratio record, 0 to 1',
    fallback: '1',
    parse(value: string) {
      const share = /^\d*\.?\d+$/.test(value) ? Number(value) : Number.NaN
      if (share >= 0 && share <= 1) return share
      throw new Error('must be a number from 0 to 1')
    },
  } satisfies Setting<number> as Setting<number>,
  OTEL_SDK_DISABLED: choice('true: no traces, whatever else is set', 'false', ['true', 'false']),
} as const

/** W3C Baggage's list, as OpenTelemetry has it. Values are never in the message: they are keys of ours. */
function headers(value: string): Record<string, string> {
  const pairs = value.split(',').filter((pair) => pair.trim() !== '')
  return Object.fromEntries(
    pairs.map((pair, i) => {
      const [, name, text] = /^\s*([\w!#$%&'*+.^`|~-]+)\s*=\s*([\x21-\x7e]*)\s*$/.exec(pair) ?? []
      try {
        if (name !== undefined && text !== undefined) return [name, decodeURIComponent(text)]
      } catch {}
      throw new Error(`must be a comma list of name=value: number ${i + 1} is none`)
    }),
  )
}
