// All who are connected to this process, and what they are told when. A turn, the end of the queue and a move within the
// front go out at once; everybody else hears where they stand each time the wheel comes by, every ten seconds, each in
// a slice of its own, so that a hundred thousand are one even stream. The wheel also ends those who have gone silent,
// and is the only timer there is.

import { type Client, encode, told, write } from './client.ts'
import type { WaitingroomMetrics } from './metrics.ts'
import type { Room, RoomListener } from './room.ts'

export type Crowd = RoomListener & {
  readonly size: number
  count(transport: Client['transport']): number
  /** Takes a connection in and tells it where it stands. `known` is what an event stream was told last. */
  attach(client: Client, known?: string): void
  /** A message came: a sign of life. Too many of them end the connection. */
  hear(client: Client): void
  detach(client: Client): void
  /** Users to be noted as alive, by match, since the last call. */
  takeAlive(): Map<string, string[]>
  /** Ends all connections bit by bit, so that their people do not come to others all at once. */
  dismiss(perSecond: number, signal: AbortSignal): Promise<void>
  close(): void
}

export type CrowdOptions = {
  metrics: WaitingroomMetrics
  /** Connections of one place at most. */
  perPlaceMax: number
  checkoutUrl(room: Room, seat: number): string
  /** The store lost the match: those connected here have their places still. */
  onLost(room: Room, clients: readonly Client[]): void
  /** For tests: how long the wheel takes to come by everybody. */
  turnMs?: number
}

const slotMs = 20
/** Everybody is told every ten seconds, also by a process that comes by a little late. */
const usualTurnMs = 9_200
/** The client's heartbeat comes every 60 s: two and a half of them are missing. */
const silentTurns = 16
/** Each third turn a connection counts as a sign of life of its user. */
const aliveTurns = 3
const messagesPerTurnMax = 30
/** Told of every move. */
export const frontMax = 3000
/** Written before others have a turn of the event loop. */
const burst = 256

export const closeCodes = {
  over: 1000,
  restart: 1012,
  flood: 1008,
  /** Too many connections of one place: this was the oldest. */
  replaced: 4409,
} as const

export function createCrowd(options: CrowdOptions): Crowd {
  const { metrics, perPlaceMax, checkoutUrl, turnMs = usualTurnMs } = options
  const slots = turnMs / slotMs
  const wheel: Client[][] = Array.from({ length: slots }, () => [])
  const counts = { ws: 0, sse: 0 }
  const alive = new Map<string, string[]>()
  let nextSlot = 0
  let turn = 0
  let atSlot = 0
  let timer: NodeJS.Timeout | undefined
  let dueAt = 0
  const lastEnding: Record<Client['transport'], { text: string; bytes: Buffer }> = {
    ws: { text: '', bytes: Buffer.alloc(0) },
    sse: { text: '', bytes: Buffer.alloc(0) },
  }

  function onTimer(): void {
    const now = performance.now()
    // A process that was held up does not owe everything at once.
    if (now - dueAt > turnMs) dueAt = now - slotMs
    for (; dueAt <= now; dueAt += slotMs) {
      const slot = wheel[atSlot]!
      // From behind: who leaves is replaced by one that was visited already.
      for (let i = slot.length - 1; i >= 0; i--) visit(slot[i]!)
      atSlot = (atSlot + 1) % slots
      if (atSlot === 0) turn++
    }
  }

  function visit(client: Client): void {
    client.messages = 0
    if (client.last <= told.end) {
      // Not before all have been told: closing costs more than telling.
      if (client.last === told.over) end(client, closeCodes.over)
      client.last = told.over
      return
    }
    if (client.ws !== undefined && turn - client.heardAt > silentTurns) {
      metrics.dropped('silent')
      client.socket.destroy()
      return
    }
    tellPlace(client, Date.now())
    if (client.last > told.end && turn % aliveTurns === client.slot % aliveTurns) {
      const users = alive.get(client.room.matchId)
      if (users) users.push(client.userId)
      else alive.set(client.room.matchId, [client.userId])
    }
  }

  /** Where the client stands, whatever it has been told. */
  function tellPlace(client: Client, atMs: number, known?: string): void {
    const { room, seat } = client
    if (room.restoring.has(seat)) return
    const position = room.called.has(seat) ? 1 : room.position(seat)
    if (room.windows.has(seat)) tellTurn(client, atMs)
    else if (position > 0 && room.state.status !== 'closed')
      tellPosition(client, position, atMs, known)
    else tellEnd(client, room.state.reason ?? 'place_lost', atMs)
  }

  function tellPosition(client: Client, position: number, atMs: number, known?: string): void {
    const { room } = client
    client.last = position
    const id = client.transport === 'sse' ? `${room.state.epoch}.${statusOf(room)}.${position}` : ''
    if (known === id && known !== '') return
    const minutes = room.estimate(position)
    const text = `{"type":"position_update","position":${position},"estimated_wait_minutes":${minutes},"status":"${statusOf(room)}","at":${atMs}}`
    send(client, 'position_update', text, id)
  }

  function tellTurn(client: Client, atMs: number): void {
    const { room, seat } = client
    const window = room.windows.get(seat)
    if (window === undefined) return
    if (client.last === told.turn) {
      if (client.transport === 'sse') send(client, undefined, '')
      return
    }
    client.last = told.turn
    const message = {
      type: 'turn_granted',
      purchase_window_expires_at: new Date(window.expiresAtMs).toISOString(),
      checkout_url: checkoutUrl(room, seat),
      at: atMs,
    }
    send(client, 'turn_granted', JSON.stringify(message), `${room.state.epoch}.turn.${seat}`)
  }

  function tellEnd(client: Client, reason: string, atMs: number): void {
    if (client.last <= told.end) return
    client.last = told.end
    const text = JSON.stringify({ type: 'queue_closed', reason, at: atMs })
    if (!write(client, ending(client.transport, text))) metrics.dropped('slow')
  }

  /** The end of a queue is the same for all: its bytes are made once. */
  function ending(transport: Client['transport'], text: string): Buffer {
    if (lastEnding[transport].text !== text) {
      lastEnding[transport] = { text, bytes: encode(transport, 'queue_closed', text) }
    }
    return lastEnding[transport].bytes
  }

  /** Without a type: a comment, by which an event stream is seen to be alive. */
  function send(client: Client, type: string | undefined, text: string, id?: string): void {
    const bytes =
      type === undefined ? Buffer.from(':\n\n') : encode(client.transport, type, text, id)
    if (write(client, bytes)) return
    metrics.dropped('slow')
  }

  function end(client: Client, code: number): void {
    if (client.ws !== undefined) client.ws.close(code)
    else client.socket.end()
  }

  /** Calls `tell` with everybody of a room, the front first, some at a time. */
  async function all(room: Room, tell: (client: Client) => void): Promise<void> {
    let last = 0
    room.line.front(frontMax, 1, (place) => {
      last = place
      for (let c = room.clients.get(room.seatAt(place)); c !== undefined; c = c.next) tell(c)
    })
    await new Promise(setImmediate)
    const inOrder: Client[] = []
    const rest: Client[] = []
    room.line.front(Number.POSITIVE_INFINITY, last + 1, (place) => {
      for (let c = room.clients.get(room.seatAt(place)); c !== undefined; c = c.next) {
        inOrder.push(c)
      }
    })
    for (const first of room.clients.values()) {
      if (room.line.has(room.placeOf(first.seat))) continue
      for (let one: Client | undefined = first; one !== undefined; one = one.next) rest.push(one)
    }
    const everybody = [...inOrder, ...rest]
    for (let i = 0; i < everybody.length; i += burst) {
      for (const client of everybody.slice(i, i + burst)) tell(client)
      await new Promise(setImmediate)
    }
  }

  const late = (atMs: number) => metrics.told(Math.max(0, Date.now() - atMs) / 1000)

  return {
    get size() {
      return counts.ws + counts.sse
    },
    count: (transport) => counts[transport],

    attach(client, known) {
      const { room, seat } = client
      client.heardAt = turn
      client.slot = nextSlot
      nextSlot = (nextSlot + 1) % slots
      const slot = wheel[client.slot]!
      client.index = slot.length
      slot.push(client)
      counts[client.transport]++
      client.next = room.clients.get(seat)
      room.clients.set(seat, client)
      if (client.next !== undefined) boundPlace(client)
      if (timer === undefined) {
        dueAt = performance.now() + slotMs
        timer = setInterval(onTimer, slotMs)
      }
      tellPlace(client, Date.now(), known)
    },

    hear(client) {
      client.heardAt = turn
      if (++client.messages <= messagesPerTurnMax) return
      metrics.dropped('flood')
      end(client, closeCodes.flood)
    },

    detach(client) {
      const slot = wheel[client.slot]!
      if (slot[client.index] !== client) return
      const last = slot.pop()!
      if (last !== client) {
        slot[client.index] = last
        last.index = client.index
      }
      counts[client.transport]--
      unlink(client)
      if (counts.ws + counts.sse === 0) {
        clearInterval(timer)
        timer = undefined
      }
    },

    takeAlive() {
      const taken = new Map(alive)
      alive.clear()
      return taken
    },

    async dismiss(perSecond, signal) {
      const everybody = wheel.flat()
      const perStep = Math.max(1, Math.ceil(perSecond / 20))
      for (let i = 0; i < everybody.length; i += perStep) {
        for (const client of everybody.slice(i, i + perStep)) end(client, closeCodes.restart)
        if (!signal.aborted) await new Promise((resolve) => setTimeout(resolve, 50))
      }
    },

    close() {
      clearInterval(timer)
      for (const client of wheel.flat()) client.socket.destroy()
    },

    onTurn(room, window, atMs) {
      let here = false
      for (let c = room.clients.get(window.seat); c !== undefined; c = c.next) {
        tellTurn(c, atMs)
        here = true
      }
      if (here) late(atMs)
    },

    onWindowOver(room, seat, reason) {
      for (let c = room.clients.get(seat); c !== undefined; c = c.next)
        tellEnd(c, reason, Date.now())
    },

    onMoved(room, fromPlace, atMs) {
      if (room.state.phase !== 'open') return
      let moved = false
      room.line.front(frontMax, fromPlace, (place, position) => {
        for (let c = room.clients.get(room.seatAt(place)); c !== undefined; c = c.next) {
          if (c.last === position) continue
          tellPosition(c, position, atMs)
          moved = true
        }
      })
      if (moved) late(atMs)
    },

    onState(room, before, atMs) {
      if (statusOf(room) === statusOf(room, before)) return
      const closed = room.state.status === 'closed'
      const tell = closed
        ? (client: Client) => {
            // Who may buy already may still do so.
            if (!room.windows.has(client.seat)) tellEnd(client, room.state.reason ?? 'closed', atMs)
          }
        : (client: Client) => tellPlace(client, atMs)
      all(room, tell).then(() => late(atMs))
    },

    onReload(room, before) {
      const lost: Client[] = []
      for (const first of room.clients.values()) {
        const { seat } = first
        const place = room.placeOf(seat)
        if (room.windows.has(seat)) {
          for (let c: Client | undefined = first; c !== undefined; c = c.next)
            tellTurn(c, Date.now())
        } else if (!room.line.has(place) && !room.called.has(seat)) lost.push(first)
      }
      if (room.state.epoch !== before.epoch && lost.length > 0) options.onLost(room, lost)
    },
  }

  /** The newest is surely alive; of the older ones, the oldest goes. */
  function boundPlace(newest: Client): void {
    let count = 1
    for (let c: Client = newest; c.next !== undefined; c = c.next) {
      if (++count <= perPlaceMax) continue
      metrics.dropped('replaced')
      end(c.next, closeCodes.replaced)
      c.next = undefined
      return
    }
  }

  function unlink(client: Client): void {
    const { room, seat } = client
    const first = room.clients.get(seat)
    if (first === client) {
      if (client.next === undefined) room.clients.delete(seat)
      else room.clients.set(seat, client.next)
    } else {
      for (let c = first; c !== undefined; c = c.next) if (c.next === client) c.next = client.next
    }
    client.next = undefined
  }
}

export const statusOf = ({ state: own }: Room, state = own): string =>
  state.status === 'closed'
    ? 'closed'
    : state.phase !== 'open'
      ? 'lobby'
      : state.status === 'paused'
        ? 'paused'
        : 'waiting'
