// A process of people for bench/waitingroom.ts: they join, listen on a WebSocket each, and note what they were told when.
// The protocol is spoken by hand, so that a hundred thousand of them cost little beside the server. Told what to do, and
// asked what was seen, over the channel to its parent.

import { connect, type Socket } from 'node:net'
import { monitorEventLoopDelay } from 'node:perf_hooks'

export type Order =
  | { do: 'join'; match: string; port: number; first: number; count: number; lanes: number }
  | { do: 'connect'; port: number; address: string; together: number; path?: string }
  | { do: 'drop'; count: number }
  | { do: 'again'; port: number; address: string; together: number }
  | { do: 'forget' }
  | { do: 'report' }
  | { do: 'end' }

export type Report = {
  open: number
  /** ms from when it was so until it was heard. */
  moves: number[]
  turns: number[]
  states: number[]
  statesInFront: number[]
  ends: number[]
  endsInFront: number[]
  broadcasts: number[]
  /** The longest that anybody heard nothing, ms; and of all who have not heard since. */
  gapMs: number
  messages: number
  wrong: string[]
  /** This process's own event loop, p99 ms: how far its figures are its own fault. */
  lagMs: number
}

const front = 3000

/** A client's frame is masked; a mask of zeros changes nothing. */
const beat = '{"type":"heartbeat"}'
const heartbeat = Buffer.concat([
  Buffer.from([0x81, 0x80 | beat.length, 0, 0, 0, 0]),
  Buffer.from(beat),
])

class Person {
  token = ''
  socket: Socket | undefined = undefined
  shaken = false
  rest: Buffer | undefined = undefined
  position = 0
  status = ''
  heardAt = 0
  turn = ''
  over = false
}

let people: Person[] = []
let seen = nothing()

/** Each sends a heartbeat every 60 s, as a client should. */
const beatMs = 60_000
const beatSlots = 600
let beatAt = 0
setInterval(() => {
  beatAt = (beatAt + 1) % beatSlots
  for (let i = beatAt; i < people.length; i += beatSlots) {
    const { socket, shaken, over } = people[i]!
    if (shaken && !over) socket?.write(heartbeat)
  }
}, beatMs / beatSlots)

const lag = monitorEventLoopDelay({ resolution: 5 })
lag.enable()

function nothing(): Report {
  return {
    open: 0,
    moves: [],
    turns: [],
    states: [],
    statesInFront: [],
    ends: [],
    endsInFront: [],
    broadcasts: [],
    gapMs: 0,
    messages: 0,
    wrong: [],
    lagMs: 0,
  }
}

function hear(person: Person, text: string): void {
  const now = Date.now()
  seen.messages++
  if (person.heardAt > 0) seen.gapMs = Math.max(seen.gapMs, now - person.heardAt)
  person.heardAt = now
  const message = JSON.parse(text)
  const ms = now - message.at
  switch (message.type) {
    case 'turn_granted':
      // Who comes back is told again of the same one.
      if (person.turn === message.checkout_url) break
      if (person.turn !== '' && seen.wrong.length < 10) seen.wrong.push('two turns')
      person.turn = message.checkout_url
      seen.turns.push(ms)
      break
    case 'queue_closed':
      person.over = true
      seen.ends.push(ms)
      if (person.position <= front) seen.endsInFront.push(ms)
      break
    case 'position_update': {
      const { position, status } = message
      if (person.status !== '' && status !== person.status) {
        seen.states.push(ms)
        if (position <= front) seen.statesInFront.push(ms)
      } else if (position <= front && person.position > 0 && position !== person.position) {
        seen.moves.push(ms)
      }
      person.position = position
      person.status = status
      break
    }
    default:
      seen.broadcasts.push(ms)
  }
}

function read(person: Person, chunk: Buffer): void {
  let bytes = person.rest === undefined ? chunk : Buffer.concat([person.rest, chunk])
  person.rest = undefined
  if (!person.shaken) {
    const end = bytes.indexOf('\r\n\r\n')
    if (end < 0) {
      person.rest = bytes
      return
    }
    if (!bytes.toString('latin1', 0, 12).endsWith('101')) {
      if (seen.wrong.length < 10) seen.wrong.push(bytes.toString('latin1', 0, 200))
      person.socket?.destroy()
      return
    }
    person.shaken = true
    bytes = bytes.subarray(end + 4)
  }
  while (bytes.length >= 2) {
    const short = bytes[1]! & 0x7f
    const head = short === 126 ? 4 : 2
    if (bytes.length < head) break
    const length = short === 126 ? bytes.readUInt16BE(2) : short
    if (bytes.length < head + length) break
    if ((bytes[0]! & 0x0f) === 1) hear(person, bytes.toString('latin1', head, head + length))
    bytes = bytes.subarray(head + length)
  }
  // A copy: what is left must not keep the whole chunk.
  if (bytes.length > 0) person.rest = Buffer.from(bytes)
}

/**
 * Ports of this process's own address, in turn: the kernel's search for a free one takes longer and longer (measured: 400
 * ms with 12,000 taken), and holds up everything else here.
 */
const ports = { first: 12_000, last: 60_000 }
let lastPort = ports.first + Math.floor(Math.random() * (ports.last - ports.first))
const nextPort = () => {
  lastPort = lastPort >= ports.last ? ports.first : lastPort + 1
  return lastPort
}

function open(person: Person, port: number, address: string, path: string): Promise<void> {
  return new Promise((resolve) => {
    const socket = connect({
      port,
      host: '127.0.0.1',
      localAddress: address,
      localPort: nextPort(),
    })
    socket.setNoDelay(true)
    person.socket = socket
    person.shaken = false
    person.rest = undefined
    socket.write(
      `GET ${path} HTTP/1.1\r\nHost: bench\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n`,
    )
    socket.on('data', (chunk) => {
      read(person, chunk)
      if (person.shaken) resolve()
    })
    socket.on('error', (error: NodeJS.ErrnoException) => {
      if (error.code === 'EADDRINUSE') resolve(open(person, port, address, path))
      else if (seen.wrong.length < 10) seen.wrong.push(error.message)
    })
    socket.on('close', () => {
      if (person.socket !== socket) return
      person.socket = undefined
      resolve()
    })
  })
}

async function openAll(chosen: Person[], together: number, one: (person: Person) => Promise<void>) {
  let next = 0
  const lane = async () => {
    while (next < chosen.length) await one(chosen[next++]!)
  }
  await Promise.all(Array.from({ length: together }, lane))
}

/** Joins of some people over one kept connection, one after the other. */
function joinLane(order: Order & { do: 'join' }, ids: number[]): Promise<void> {
  return new Promise((resolve, reject) => {
    const socket = connect({ port: order.port, host: '127.0.0.1' })
    let at = -1
    let text = ''
    const next = () => {
      if (++at === ids.length) {
        socket.end()
        resolve()
        return
      }
      socket.write(
        `POST /api/v1/queue/${order.match}/join HTTP/1.1\r\nHost: bench\r\nX-Mock-User-Id: user-${ids[at]}\r\nContent-Length: 0\r\n\r\n`,
      )
    }
    socket.on('data', (chunk) => {
      text += chunk.toString('latin1')
      const end = text.indexOf('\r\n\r\n')
      if (end < 0) return
      const length = Number(/content-length: (\d+)/i.exec(text)?.[1])
      if (text.length < end + 4 + length) return
      const body = text.slice(end + 4)
      if (text.startsWith('HTTP/1.1 503')) {
        // As it was asked to: later, once more.
        text = ''
        at--
        setTimeout(next, 1000)
        return
      }
      const token = /"queue_token":"([^"]+)"/.exec(body)?.[1]
      if (token === undefined) return reject(new Error(text.slice(0, 500)))
      people[ids[at]! - order.first]!.token = token
      text = ''
      next()
    })
    socket.on('error', reject)
    next()
  })
}

async function obey(order: Order): Promise<unknown> {
  switch (order.do) {
    case 'join': {
      const { first, count, lanes } = order
      people = Array.from({ length: count }, () => new Person())
      const ids = people.map((_, i) => first + i)
      await Promise.all(
        Array.from({ length: lanes }, (_, lane) =>
          joinLane(
            order,
            ids.filter((_, i) => i % lanes === lane),
          ),
        ),
      )
      return count
    }
    case 'connect': {
      const { port, address, together, path } = order
      await openAll(people, together, (one) => open(one, port, address, path ?? `/ws/${one.token}`))
      return people.filter(({ socket }) => socket !== undefined).length
    }
    case 'drop': {
      const some = people.filter(({ socket }) => socket !== undefined).slice(-order.count)
      for (const { socket } of some) socket?.destroy()
      for (const one of some) one.heardAt = 0
      return some.length
    }
    case 'again': {
      const { port, address, together } = order
      const gone = people.filter(({ socket, over }) => socket === undefined && !over)
      await openAll(gone, together, (one) => open(one, port, address, `/ws/${one.token}`))
      return gone.filter(({ socket }) => socket !== undefined).length
    }
    case 'forget':
      seen = nothing()
      for (const one of people) if (one.heardAt > 0) one.heardAt = Date.now()
      lag.reset()
      return 0
    case 'report': {
      const now = Date.now()
      const silent = people.reduce(
        (most, { socket, heardAt, turn, over }) =>
          socket !== undefined && heardAt > 0 && turn === '' && !over
            ? Math.max(most, now - heardAt)
            : most,
        0,
      )
      return {
        ...seen,
        open: people.filter(({ socket }) => socket !== undefined).length,
        gapMs: Math.max(seen.gapMs, silent),
        lagMs: lag.percentile(99) / 1e6,
      } satisfies Report
    }
    case 'end':
      for (const { socket } of people) socket?.destroy()
      process.disconnect()
      return 0
  }
}

process.on('message', (order: Order) => {
  obey(order).then(
    (answer) => process.connected && process.send?.({ answer }),
    (error: Error) => process.send?.({ error: error.message }),
  )
})
