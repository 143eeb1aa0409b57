// A collector of OpenTelemetry as far as traces by OTLP/HTTP in JSON go
// (https://opentelemetry.io/docs/specs/otlp/#otlphttp): keeps what is posted to /v1/traces, and can be told to say nothing
// or to refuse. Closed with the file, at the latest.

import { once } from 'node:events'
import { createServer, type IncomingHttpHeaders, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { after } from 'node:test'
import { gunzipSync } from 'node:zlib'

export type CollectedSpan = {
  /** service.name of who sent it. */
  service: string
  resource: Record<string, unknown>
  name: string
  traceId: string
  spanId: string
  /** Empty: a root. */
  parentSpanId: string
  /** 1 internal, 2 server, 3 client, 4 producer, 5 consumer. */
  kind: number
  attributes: Record<string, unknown>
  status: { code?: number; message?: string }
  events: { name: string; attributes: Record<string, unknown> }[]
}

export type Collector = {
  url: string
  spans: CollectedSpan[]
  /** The headers of each post. */
  posts: IncomingHttpHeaders[]
  /** How it answers: well, never, or with a status. */
  mood: 'well' | 'silent' | number
  /** Posts that got no answer, and whose sender gave up. */
  givenUp: number
  close(): Promise<void>
}

type Value = {
  stringValue?: string
  intValue?: string | number
  doubleValue?: number
  boolValue?: boolean
}
type Pairs = { key: string; value: Value }[]
type Wire = {
  resourceSpans: {
    resource: { attributes: Pairs }
    scopeSpans: {
      spans: (Omit<CollectedSpan, 'attributes' | 'service' | 'resource' | 'events'> & {
        attributes?: Pairs
        events?: { name: string; attributes?: Pairs }[]
      })[]
    }[]
  }[]
}

const plain = (pairs: Pairs = []): Record<string, unknown> =>
  Object.fromEntries(
    pairs.map(({ key, value }) => [
      key,
      value.stringValue ?? value.boolValue ?? Number(value.intValue ?? value.doubleValue),
    ]),
  )

const open = new Set<Collector>()
after(async () => {
  for (const collector of open) await collector.close()
})

export async function openCollector(): Promise<Collector> {
  const server = createServer(async (request, response) => {
    const chunks: Buffer[] = []
    for await (const chunk of request) chunks.push(chunk as Buffer)
    collector.posts.push(request.headers)
    if (collector.mood === 'silent') {
      response.once('close', () => {
        collector.givenUp++
      })
      return
    }
    if (collector.mood !== 'well') return answer(response, collector.mood)
    if (request.method !== 'POST' || request.url !== '/v1/traces') return answer(response, 404)
    if (request.headers['content-type'] !== 'application/json') return answer(response, 415)
    const body = Buffer.concat(chunks)
    const text = request.headers['content-encoding'] === 'gzip' ? gunzipSync(body) : body
    collector.spans.push(...read(JSON.parse(text.toString())))
    answer(response, 200)
  })
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  const collector: Collector = {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    spans: [],
    posts: [],
    mood: 'well',
    givenUp: 0,
    async close() {
      if (!open.delete(collector)) return
      server.close()
      server.closeAllConnections()
      await once(server, 'close')
    },
  }
  open.add(collector)
  return collector
}

function read({ resourceSpans }: Wire): CollectedSpan[] {
  return resourceSpans.flatMap(({ resource, scopeSpans }) =>
    scopeSpans.flatMap(({ spans }) =>
      spans.map((span) => {
        const about = plain(resource.attributes)
        return {
          ...span,
          service: String(about['service.name']),
          resource: about,
          parentSpanId: span.parentSpanId ?? '',
          attributes: plain(span.attributes),
          events: (span.events ?? []).map(({ name, attributes }) => ({
            name,
            attributes: plain(attributes),
          })),
        }
      }),
    ),
  )
}

function answer(response: ServerResponse, status: number): void {
  response.writeHead(status, { 'content-type': 'application/json' })
  response.end('{}')
}
