// The load of bench/outage.ts: writes begun at a steady pace whatever the answers take, one hold after the other and every
// tenth of them confirmed, so that a hold makes one event and an order three.

import { randomUUID } from 'node:crypto'
import { Agent, request } from 'node:http'

export type Buyers = {
  /** Since it was last asked; latencies in ms, ascending. */
  take(): { latencies: number[]; faults: Map<string, number> }
  /** Begins nothing more, and waits for the answers. */
  stop(): Promise<void>
}

const confirmedEach = 10
/** Beyond so many at once no more are begun: they count as failed. */
const openMax = 512

export function startBuyers(options: {
  port: number
  eventId: string
  userId: string
  eventsPerSecond: number
}): Buyers {
  const { port, eventId, userId, eventsPerSecond } = options
  const agent = new Agent({ keepAlive: true, maxSockets: 128 })
  const holdsPerMs = eventsPerSecond / (1 + 3 / confirmedEach) / 1000
  let latencies: number[] = []
  let faults = new Map<string, number>()
  let open = 0
  let held = 0
  let begun = performance.now()
  const calls = new Set<Promise<void>>()

  const fail = (what: string) => faults.set(what, (faults.get(what) ?? 0) + 1)

  async function write(path: string, body: object, status: number): Promise<unknown> {
    const sentAt = performance.now()
    const answer = await post(path, body)
    latencies.push(performance.now() - sentAt)
    if (answer.status === status) return JSON.parse(answer.body)
    fail(`${answer.status} ${answer.body.slice(0, 200)}`)
    return undefined
  }

  const post = (path: string, body: object) =>
    new Promise<{ status: number; body: string }>((resolve, reject) => {
      const text = JSON.stringify(body)
      const headers = {
        'content-type': 'application/json',
        'content-length': Buffer.byteLength(text),
        'x-mock-user-id': userId,
        'idempotency-key': randomUUID().replaceAll('-', ''),
      }
      const asked = request({ port, host: '127.0.0.1', path, method: 'POST', agent, headers })
      asked.on('error', reject).on('response', (response) => {
        let said = ''
        response.setEncoding('utf8').on('data', (chunk: string) => {
          said += chunk
        })
        response.on('error', reject)
        response.on('end', () => resolve({ status: response.statusCode ?? 0, body: said }))
      })
      asked.end(text)
    })

  async function buy(isConfirmed: boolean): Promise<void> {
    open++
    try {
      const hold = (await write('/api/v1/reservations', { event_id: eventId, quantity: 1 }, 201)) as
        | { reservation_id: string }
        | undefined
      if (hold && isConfirmed) {
        await write(`/api/v1/reservations/${hold.reservation_id}/confirm`, {}, 200)
      }
    } catch (error) {
      fail(String(error))
    } finally {
      open--
    }
  }

  const timer = setInterval(() => {
    const due = Math.floor((performance.now() - begun) * holdsPerMs)
    begun += due / holdsPerMs
    for (let i = 0; i < due; i++) {
      if (open >= openMax) {
        fail('not begun: too many are under way')
        continue
      }
      const call = buy(++held % confirmedEach === 0)
      calls.add(call)
      void call.finally(() => calls.delete(call))
    }
  }, 10)

  return {
    take() {
      const taken = { latencies: latencies.sort((a, b) => a - b), faults }
      latencies = []
      faults = new Map()
      return taken
    },
    async stop() {
      clearInterval(timer)
      await Promise.all(calls)
      agent.destroy()
    },
  }
}
