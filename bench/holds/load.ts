// A closed-loop HTTP/1.1 load: each connection sends its next request when the last was answered. On plain sockets, so
// that the client leaves the two cores to what is measured. Reads answers that carry a Content-Length, which both
// servers' do.

import { connect, type Socket } from 'node:net'

export type LoadOptions = {
  port: number
  connections: number
  seconds: number
  /** The next request, whole: head and body. */
  request(): string
}

export type LoadResult = {
  seconds: number
  /** Answers by status. */
  statuses: Map<number, number>
  /** Milliseconds, ascending. */
  latencies: Float64Array
}

export async function load(options: LoadOptions): Promise<LoadResult> {
  const statuses = new Map<number, number>()
  const latencies: number[] = []
  const started = performance.now()
  const until = started + options.seconds * 1000
  await Promise.all(
    Array.from({ length: options.connections }, () =>
      converse(options, until, (status, ms) => {
        statuses.set(status, (statuses.get(status) ?? 0) + 1)
        latencies.push(ms)
      }),
    ),
  )
  const seconds = (performance.now() - started) / 1000
  return { seconds, statuses, latencies: Float64Array.from(latencies).sort() }
}

function converse(
  { port, request }: LoadOptions,
  until: number,
  answered: (status: number, ms: number) => void,
): Promise<void> {
  return new Promise((resolve, reject) => {
    const socket: Socket = connect({ port, host: '127.0.0.1', noDelay: true })
    let received = ''
    let sentAt = 0
    const send = () => {
      sentAt = performance.now()
      socket.write(request())
    }
    socket.setEncoding('latin1')
    socket.on('connect', send)
    socket.on('error', reject)
    socket.on('close', () => resolve())
    socket.on('data', (chunk: string) => {
      received += chunk
      const head = received.indexOf('\r\n\r\n')
      if (head < 0) return
      const length = /\r\ncontent-length: (\d+)/i.exec(received.slice(0, head))
      if (received.length < head + 4 + Number(length?.[1] ?? 0)) return
      answered(Number(received.slice(9, 12)), performance.now() - sentAt)
      received = ''
      if (performance.now() < until) send()
      else socket.end()
    })
  })
}

/** The value below which a share of the ascending values lies. */
export const percentile = (sorted: Float64Array, share: number): number =>
  sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))] ?? Number.NaN
