// A client of the API as a careful one behaves: every write has a key, and one whose answer did not come (the connection
// broke, it took too long, 503, the key is in use) is repeated under the same key, at any instance, until there is one.
// Remembers every write with its final answer, and notes whatever no client may ever see.

import { randomUUID } from 'node:crypto'
import { Agent, type ClientRequest, request } from 'node:http'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Dice } from './dice.ts'

export type Decision = { status: number; body: string }

export type Write = {
  key: string
  what: 'hold' | 'confirm' | 'cancel' | 'user' | 'event'
  method: 'POST' | 'PUT'
  path: string
  /** Undefined: an internal program. */
  userId?: string
  body?: object
  /** Of confirm and cancel. */
  reservationId?: string
  /** Asked for with Prefer: respond-async. */
  later: boolean
  /** The final answer under the key. */
  answer?: Decision
  /** What became of a write that was answered 202. */
  outcome?: Decision
}

export type Client = {
  writes: readonly Write[]
  /** What must never happen, in a line each. */
  faults: string[]
  counts: { sent: number; lost: number; busy: number; answered: number; again: number }
  /** Runs a write to its decision; undefined when the time to settle was over. */
  decide(write: Omit<Write, 'key'>): Promise<Decision | undefined>
  /** Asks once more for a write that is decided: the answer must be the same. */
  repeat(write: Write): Promise<void>
  /** Hangs up on some requests that are under way. @returns on how many */
  cut(most: number): number
  /** From now on nothing new is tried longer than this. */
  giveUpAfter(ms: number): void
  close(): void
}

type Reply = Decision & { retryAfter: number; replayed: boolean }

const timeoutMs = { least: 1500, most: 8000 }
/** The wait after a connection that broke, doubling. */
const lostMs = { first: 100, most: 3000 }
/** How often the answer is asked for by two requests at once. */
const doubleChance = 0.06

export function createClient(ports: readonly number[], secret: string, dice: Dice): Client {
  const agent = new Agent({ keepAlive: true, maxSockets: 1000 })
  const underWay = new Set<ClientRequest>()
  const writes: Write[] = []
  const faults: string[] = []
  const counts = { sent: 0, lost: 0, busy: 0, answered: 0, again: 0 }
  let endsAt = Number.POSITIVE_INFINITY

  function send(method: string, path: string, write?: Write): Promise<Reply> {
    const { userId, key, body, later } = write ?? {}
    const text = body && JSON.stringify(body)
    const headers = {
      ...(userId === undefined ? { 'x-internal-auth': secret } : { 'x-mock-user-id': userId }),
      ...(key && { 'idempotency-key': key }),
      ...(later && { prefer: 'respond-async' }),
      ...(text && {
        'content-type': 'application/json',
        'content-length': Buffer.byteLength(text),
      }),
    }
    const to = { agent, host: '127.0.0.1', port: dice.pick(ports), method, headers }
    return new Promise((resolve, reject) => {
      counts.sent++
      const call = request({ ...to, path: `/api/v1${path}` }, (response) => {
        const chunks: Buffer[] = []
        response.on('data', (chunk) => chunks.push(chunk))
        response.on('error', reject)
        // Without this an answer that is cut off in its middle would wait for ever.
        response.on('close', () => reject(new Error('the answer was cut off')))
        response.on('end', () => {
          if (!response.complete) return
          resolve({
            status: response.statusCode ?? 0,
            body: Buffer.concat(chunks).toString('utf8'),
            retryAfter: Number(response.headers['retry-after'] ?? 0),
            replayed: response.headers['idempotent-replayed'] === 'true',
          })
        })
      })
      const late = setTimeout(
        () => call.destroy(new Error('no answer in time')),
        dice.between(timeoutMs.least, timeoutMs.most),
      )
      underWay.add(call)
      call.on('close', () => {
        underWay.delete(call)
        clearTimeout(late)
      })
      call.on('error', reject)
      call.end(text)
    })
  }

  /** Again and again, keeping to Retry-After, until it is decided. */
  async function persist(method: string, path: string, write: Write): Promise<Reply | undefined> {
    for (let lost = 0; ; ) {
      let waitMs = dice.between(0, 500)
      try {
        const reply = await send(method, path, method === 'GET' ? ownerOf(write) : write)
        if (isDecision(reply)) return reply
        counts.busy++
        if (reply.status === 500) faults.push(`${method} ${path} answered 500: ${reply.body}`)
        waitMs += reply.retryAfter * 1000
      } catch {
        counts.lost++
        waitMs += dice.between(0.5, 1) * Math.min(lostMs.most, lostMs.first * 2 ** lost++)
      }
      if (performance.now() + waitMs > endsAt) return undefined
      await sleep(waitMs)
    }
  }

  function note(write: Write, reply: Reply): void {
    const { what, later, answer } = write
    const same = answer === undefined || isSame(answer, reply)
    if (!same) faults.push(`${name(write)} was answered ${show(answer!)} and ${show(reply)}`)
    const right = later ? [202] : expected[what]
    if (!right.includes(reply.status)) faults.push(`${name(write)} was answered ${show(reply)}`)
    write.answer ??= { status: reply.status, body: reply.body }
  }

  /** The command of a 202 is asked for until it is done. */
  async function follow(write: Write): Promise<Decision | undefined> {
    const { command_id } = JSON.parse(write.answer!.body)
    for (;;) {
      const reply = await persist('GET', `/commands/${command_id}`, write)
      if (reply === undefined) return undefined
      if (reply.status !== 202) {
        if (![...expected[write.what], 500, 503].includes(reply.status)) {
          faults.push(`${name(write)} became ${show(reply)}`)
        }
        return { status: reply.status, body: reply.body }
      }
      if (performance.now() > endsAt) return undefined
      await sleep(100 + reply.retryAfter * 500)
    }
  }

  return {
    writes,
    faults,
    counts,
    async decide(wanted) {
      const write: Write = { ...wanted, key: randomUUID().replaceAll('-', '') }
      writes.push(write)
      const { method, path } = write
      const twice = dice.random() < doubleChance
      const replies = await Promise.all(
        (twice ? [1, 2] : [1]).map(() => persist(method, path, write)),
      )
      for (const reply of replies) if (reply) note(write, reply)
      if (write.answer === undefined) return undefined
      counts.answered++
      if (!write.later || write.answer.status !== 202) return write.answer
      const outcome = await follow(write)
      if (outcome) write.outcome = outcome
      return outcome
    },
    async repeat(write) {
      const { method, path } = write
      const reply = await persist(method, path, write)
      if (reply === undefined) return
      counts.again++
      note(write, reply)
      if (!reply.replayed) faults.push(`${name(write)} was run again, not replayed`)
      if (write.outcome === undefined) return
      const outcome = await follow(write)
      if (outcome && !isSame(outcome, write.outcome)) {
        faults.push(`${name(write)} became ${show(write.outcome)} and then ${show(outcome)}`)
      }
    },
    cut(most) {
      const victims = [...underWay].slice(0, most)
      for (const call of victims) call.destroy(new Error('cut off'))
      return victims.length
    },
    giveUpAfter(ms) {
      endsAt = performance.now() + ms
    },
    close() {
      endsAt = 0
      agent.destroy()
    },
  }
}

/** What a write may be decided as. */
const expected: Record<Write['what'], number[]> = {
  hold: [201, 409],
  confirm: [200, 409, 410],
  cancel: [200, 409, 410],
  user: [200],
  event: [201],
}

/** 409 with a Retry-After is a key in use. */
const isDecision = ({ status, retryAfter }: Reply): boolean =>
  status < 500 && !(status === 409 && retryAfter > 0)

const isSame = (one: Decision, other: Decision): boolean =>
  one.status === other.status && one.body === other.body

const ownerOf = ({ userId, what, method, path }: Write): Write =>
  ({ what, method, path, later: false, ...(userId !== undefined && { userId }) }) as Write

const name = ({ what, key, later }: Write): string => `${later ? 'async ' : ''}${what} ${key}`

const show = ({ status, body }: Decision): string => `${status} ${body.slice(0, 300)}`
