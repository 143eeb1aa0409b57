// One person's connection, and how messages get to it: WebSocket frames and server-sent events are written straight to
// the socket, as text. There are a hundred thousand of these, so a client is one small object, has no timer and no
// closure, and all of them have one shape.
//
// `ws` does the handshake and reads; what goes out as text is framed here. That is safe beside its own pongs and close
// frames, as without compression it too writes each frame at once and whole.

import type { Socket } from 'node:net'
import type { WebSocket } from 'ws'
import type { Room } from './room.ts'

export type Transport = 'ws' | 'sse'

/** What a client has been told last, where that is no position; `over`: of the end, and the wheel came by since. */
export const told = { nothing: -1, turn: -2, end: -3, over: -4 } as const

export class Client {
  readonly socket: Socket
  readonly transport: Transport
  readonly userId: string
  readonly seat: number
  readonly joinedUs: number
  room: Room
  /** Undefined: an event stream. */
  ws: WebSocket | undefined = undefined
  /** Last position sent, or one of `told`. */
  last: number = told.nothing
  /** Signs of life, by the wheel's turns. */
  heardAt = 0
  /** Messages since the wheel last came by. */
  messages = 0
  /** Another connection of the same place. */
  next: Client | undefined = undefined
  /** Where the wheel has it. */
  slot = 0
  index = 0

  constructor(
    socket: Socket,
    transport: Transport,
    room: Room,
    place: { userId: string; seat: number; joinedUs: number },
  ) {
    this.socket = socket
    this.transport = transport
    this.room = room
    this.userId = place.userId
    this.seat = place.seat
    this.joinedUs = place.joinedUs
  }
}

/** What a connection may leave unread. Some hundreds of messages: who is so late will not catch up. */
const unreadMax = 64 * 1024

/** @returns false: the reader is too slow, and has been cut off */
export function write(client: Client, bytes: Buffer): boolean {
  const { socket } = client
  if (socket.destroyed || !socket.writable) return true
  if (socket.writableLength > unreadMax) {
    socket.destroy()
    return false
  }
  socket.write(bytes)
  return true
}

/** A message for either transport. `id` is where an event stream is taken up again. */
export function encode(transport: Transport, type: string, text: string, id?: string): Buffer {
  if (transport === 'ws') return frame(text)
  return Buffer.from(`event: ${type}\n${id === undefined ? '' : `id: ${id}\n`}data: ${text}\n\n`)
}

/** A text frame, unmasked and whole (RFC 6455, 5.2). */
export function frame(text: string): Buffer {
  const length = Buffer.byteLength(text)
  if (length < 126) {
    const bytes = Buffer.allocUnsafe(length + 2)
    bytes[0] = 0x81
    bytes[1] = length
    bytes.write(text, 2)
    return bytes
  }
  const bytes = Buffer.allocUnsafe(length + 4)
  bytes[0] = 0x81
  bytes[1] = 126
  bytes.writeUInt16BE(length, 2)
  bytes.write(text, 4)
  return bytes
}
