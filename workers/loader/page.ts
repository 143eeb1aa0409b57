// Reads a source's reply: `{"events":[{"id":1,"payload":{…}}]}`, the bare list, or one event a line. One walk over the
// bytes that checks them as JSON (RFC 8259), takes ids exactly (JSON.parse would round those above 2^53) and payloads as
// the bytes they are. What it finds wrong it says with the place, and never with the content.

import { isUtf8 } from 'node:buffer'
import { idMax, type LoadedEvent, SourceFault } from '../../domain/loader.ts'

const depthMax = 500

const [quote, backslash, colon, comma, minus, dot] = [0x22, 0x5c, 0x3a, 0x2c, 0x2d, 0x2e]
const [openList, closeList, openObject, closeObject] = [0x5b, 0x5d, 0x7b, 0x7d]
const [zero, nine, newline] = [0x30, 0x39, 0x0a]
const words = ['true', 'false', 'null']
const escapes = new Set([...'"\\/bfnrt'].map((char) => char.charCodeAt(0)))

const isDigit = (byte: number | undefined): boolean =>
  byte !== undefined && byte >= zero && byte <= nine
const isBlank = (byte: number | undefined): boolean =>
  byte === 0x20 || byte === newline || byte === 0x0d || byte === 0x09
const isHex = (byte: number | undefined): boolean =>
  isDigit(byte) || (byte !== undefined && (byte | 0x20) >= 0x61 && (byte | 0x20) <= 0x66)

export type Reply = {
  events: LoadedEvent[]
  /** `last_id` of the reply: the newest that the source has. */
  newestId: bigint | undefined
}

/** @throws SourceFault */
export function readReply(body: Buffer): Reply {
  const scanner = new Scanner(body)
  const reply = scanner.reply()
  scanner.blanks()
  if (scanner.at < body.length) scanner.wrong('nothing may follow')
  return reply
}

/** One event a line; empty lines count for nothing. @throws SourceFault */
export function readLines(body: Buffer): LoadedEvent[] {
  const scanner = new Scanner(body)
  const events: LoadedEvent[] = []
  for (;;) {
    scanner.blanks()
    if (scanner.at >= body.length) return events
    events.push(scanner.event(events.length + 1))
    while (body[scanner.at] === 0x20 || body[scanner.at] === 0x0d || body[scanner.at] === 0x09) {
      scanner.at++
    }
    if (scanner.at < body.length && body[scanner.at] !== newline) {
      scanner.wrong('an event must end its line')
    }
  }
}

class Scanner {
  at = 0
  readonly #bytes: Buffer

  constructor(bytes: Buffer) {
    if (!isUtf8(bytes)) throw new SourceFault('the reply is not UTF-8')
    this.#bytes = bytes
    if (bytes[0] === 0xef && bytes[1] === 0xbb && bytes[2] === 0xbf) this.at = 3
  }

  wrong(right: string): never {
    if (this.at >= this.#bytes.length) {
      throw new SourceFault(
        `the reply is not JSON: it ends after ${this.#bytes.length} bytes, where ${right}`,
      )
    }
    throw new SourceFault(`the reply is not JSON: at byte ${this.at} ${right}`)
  }

  blanks(): void {
    while (isBlank(this.#bytes[this.at])) this.at++
  }

  reply(): Reply {
    this.blanks()
    const reply: Reply = { events: [], newestId: undefined }
    if (this.#bytes[this.at] === openList) return { ...reply, events: this.#events() }
    if (this.#bytes[this.at] !== openObject) this.wrong('a list or an object must begin')
    let found = false
    this.#object((key) => {
      if (key === 'events') {
        if (this.#bytes[this.at] !== openList) throw new SourceFault('"events" must be a list')
        reply.events = this.#events()
        found = true
      } else if (key === 'last_id' && isDigit(this.#bytes[this.at])) {
        reply.newestId = this.#integer('last_id')
      } else this.#value(1)
    })
    if (!found)
      throw new SourceFault('the reply has no "events": it must be {"events":[…]} or a list')
    return reply
  }

  #events(): LoadedEvent[] {
    const events: LoadedEvent[] = []
    this.#list(() => events.push(this.event(events.length + 1)))
    return events
  }

  /** `number`: which one it is, for people. */
  event(number: number): LoadedEvent {
    if (this.#bytes[this.at] !== openObject) {
      throw new SourceFault(`event ${number} must be an object with "id" and "payload"`)
    }
    let id: bigint | undefined
    let payload: Uint8Array | undefined
    this.#object((key) => {
      if (key === 'id') {
        if (id !== undefined) throw new SourceFault(`event ${number} has "id" twice`)
        id = this.#id(number)
      } else if (key === 'payload') {
        if (payload !== undefined) throw new SourceFault(`event ${number} has "payload" twice`)
        const from = this.at
        this.#value(1)
        payload = this.#bytes.subarray(from, this.at)
      } else this.#value(1)
    })
    if (id === undefined) throw new SourceFault(`event ${number} has no "id"`)
    if (payload === undefined) throw new SourceFault(`event ${number} has no "payload"`)
    return { id, payload }
  }

  #id(number: number): bigint {
    const byte = this.#bytes[this.at]
    if (isDigit(byte)) return this.#integer(`event ${number}: its id`)
    const what = byte === quote ? 'a text' : byte === minus ? 'negative' : 'none'
    throw new SourceFault(`event ${number}: its id must be a positive integer, and is ${what}`)
  }

  #integer(what: string): bigint {
    const from = this.at
    this.#number()
    const text = this.#bytes.toString('latin1', from, this.at)
    if (!/^\d+$/.test(text)) {
      throw new SourceFault(`${what} must be a positive integer, and is ${text.slice(0, 40)}`)
    }
    const id = BigInt(text.length > 19 ? text.slice(0, 20) : text)
    if (id > 0n && id <= idMax) return id
    throw new SourceFault(`${what} must be from 1 to ${idMax}, and is ${text.slice(0, 40)}`)
  }

  /** Calls `value` at the begin of each value, which it has to pass. */
  #object(value: (key: string) => void): void {
    this.at++
    this.blanks()
    if (this.#bytes[this.at] === closeObject) {
      this.at++
      return
    }
    for (;;) {
      value(this.#key())
      this.blanks()
      const byte = this.#bytes[this.at]
      if (byte === closeObject) {
        this.at++
        return
      }
      if (byte !== comma) this.wrong('"," or "}" must follow')
      this.at++
      this.blanks()
    }
  }

  #key(): string {
    if (this.#bytes[this.at] !== quote) this.wrong('a key must begin with a quote')
    const from = this.at
    const isPlain = this.#string()
    const key = isPlain
      ? this.#bytes.toString('latin1', from + 1, this.at - 1)
      : String(JSON.parse(this.#bytes.toString('utf8', from, this.at)))
    this.blanks()
    if (this.#bytes[this.at] !== colon) this.wrong('":" must follow')
    this.at++
    this.blanks()
    return key
  }

  #list(value: () => void): void {
    this.at++
    this.blanks()
    if (this.#bytes[this.at] === closeList) {
      this.at++
      return
    }
    for (;;) {
      value()
      this.blanks()
      const byte = this.#bytes[this.at]
      if (byte === closeList) {
        this.at++
        return
      }
      if (byte !== comma) this.wrong('"," or "]" must follow')
      this.at++
      this.blanks()
    }
  }

  #value(depth: number): void {
    if (depth > depthMax) throw new SourceFault(`the reply is nested deeper than ${depthMax}`)
    const byte = this.#bytes[this.at]
    if (byte === quote) this.#string()
    else if (byte === openObject) this.#members(depth)
    else if (byte === openList) this.#list(() => this.#value(depth + 1))
    else if (byte === minus || isDigit(byte)) this.#number()
    else this.#word()
  }

  /** An object within a payload, whose keys nobody asks for. */
  #members(depth: number): void {
    const bytes = this.#bytes
    this.at++
    this.blanks()
    if (bytes[this.at] === closeObject) {
      this.at++
      return
    }
    for (;;) {
      if (bytes[this.at] !== quote) this.wrong('a key must begin with a quote')
      this.#string()
      if (bytes[this.at] !== colon) {
        this.blanks()
        if (bytes[this.at] !== colon) this.wrong('":" must follow')
      }
      this.at++
      if (isBlank(bytes[this.at])) this.blanks()
      this.#value(depth + 1)
      if (isBlank(bytes[this.at])) this.blanks()
      const byte = bytes[this.at]
      this.at++
      if (byte === closeObject) return
      if (byte !== comma) {
        this.at--
        this.wrong('"," or "}" must follow')
      }
      if (isBlank(bytes[this.at])) this.blanks()
    }
  }

  /** @returns whether it has no escape */
  #string(): boolean {
    const bytes = this.#bytes
    let at = this.at + 1
    let isPlain = true
    for (;;) {
      const byte = bytes[at]
      if (byte === quote) {
        this.at = at + 1
        return isPlain
      }
      if (byte === backslash) {
        isPlain = false
        at = this.#escape(at)
      } else if (byte === undefined || byte < 0x20) {
        this.at = at
        this.wrong('a text must go on: control characters are escaped in it')
      } else at++
    }
  }

  #escape(at: number): number {
    const bytes = this.#bytes
    const kind = bytes[at + 1]
    if (kind === 0x75) {
      const digits = [bytes[at + 2], bytes[at + 3], bytes[at + 4], bytes[at + 5]]
      if (digits.every(isHex)) return at + 6
    } else if (kind !== undefined && escapes.has(kind)) return at + 2
    this.at = at
    return this.wrong('there is a bad escape')
  }

  #number(): void {
    const bytes = this.#bytes
    let at = this.at
    const digits = () => {
      if (!isDigit(bytes[at])) {
        this.at = at
        this.wrong('a digit must stand')
      }
      while (isDigit(bytes[at])) at++
    }
    if (bytes[at] === minus) at++
    if (bytes[at] === zero) at++
    else digits()
    if (bytes[at] === dot) {
      at++
      digits()
    }
    if (((bytes[at] ?? 0) | 0x20) === 0x65) {
      at++
      if (bytes[at] === 0x2b || bytes[at] === minus) at++
      digits()
    }
    this.at = at
  }

  #word(): void {
    for (const word of words) {
      if (this.#bytes.toString('latin1', this.at, this.at + word.length) !== word) continue
      this.at += word.length
      return
    }
    this.wrong('a value must stand')
  }
}
