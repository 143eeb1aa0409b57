// The buyers of the demo, over real HTTP with a connection each: they press the button, some of them twice, some hang up
// before the answer and ask again with the same key. They keep to Retry-After and remember every answer they were given.

import { randomUUID } from 'node:crypto'
import { Agent, request } from 'node:http'
import { setTimeout as sleep } from 'node:timers/promises'

export type Answer = { status: number; body: string; replayed: boolean }

export type Buyers = {
  send(method: string, path: string, options: SendOptions): Promise<Answer>
  /** Milliseconds of every answer so far, then forgotten. */
  takeLatencies(): number[]
  close(): void
}

type SendOptions = {
  userId?: string
  internal?: string
  key?: string
  body?: object
  /** Hang up right after sending; resolves with status 0. */
  hangUp?: boolean
}

export const newKey = (): string => randomUUID().replaceAll('-', '')

const triesMax = 20

export function createBuyers(port: number): Buyers {
  const agent = new Agent({ keepAlive: true, maxSockets: 10_000, maxFreeSockets: 10_000 })
  let latencies: number[] = []

  function once(
    method: string,
    path: string,
    options: SendOptions,
  ): Promise<Answer & { retryAfter: number }> {
    const { userId, internal, key, body, hangUp } = options
    const text = body && JSON.stringify(body)
    return new Promise((resolve) => {
      const started = performance.now()
      const call = request(
        {
          agent: hangUp ? false : agent,
          host: '127.0.0.1',
          port,
          method,
          path: `/api/v1${path}`,
          headers: {
            ...(userId && { 'x-mock-user-id': userId }),
            ...(internal && { 'x-internal-auth': internal }),
            ...(key && { 'idempotency-key': key }),
            ...(text && {
              'content-type': 'application/json',
              'content-length': Buffer.byteLength(text),
            }),
          },
        },
        (response) => {
          const chunks: Buffer[] = []
          response.on('data', (chunk) => chunks.push(chunk))
          response.on('end', () => {
            latencies.push(performance.now() - started)
            resolve({
              status: response.statusCode ?? 0,
              body: Buffer.concat(chunks).toString('utf8'),
              replayed: response.headers['idempotent-replayed'] === 'true',
              retryAfter: Number(response.headers['retry-after'] ?? 0),
            })
          })
        },
      )
      // Nobody knows what became of it: asked again, with the same key.
      call.on('error', () => resolve({ status: 0, body: '', replayed: false, retryAfter: 0.2 }))
      call.end(text, () => hangUp && setTimeout(() => call.destroy(), 2))
    })
  }

  return {
    async send(method, path, options) {
      for (let tries = 1; ; tries++) {
        const answer = await once(method, path, options)
        const busy =
          [0, 503].includes(answer.status) || (answer.status === 409 && answer.retryAfter > 0)
        if (options.hangUp || !busy || tries === triesMax) return answer
        await sleep(answer.retryAfter * 1000 * (0.5 + Math.random()))
      }
    },
    takeLatencies() {
      const taken = latencies.sort((a, b) => a - b)
      latencies = []
      return taken
    },
    close: () => agent.destroy(),
  }
}

/** Runs `work` for each item, so many at once; `done` counts. */
export async function each<T>(
  items: readonly T[],
  atOnce: number,
  work: (item: T, index: number) => Promise<void>,
  done: (count: number) => void = () => {},
): Promise<void> {
  let next = 0
  let finished = 0
  await Promise.all(
    Array.from({ length: Math.min(atOnce, items.length) }, async () => {
      while (next < items.length) {
        const index = next++
        await work(items[index]!, index)
        done(++finished)
      }
    }),
  )
}
