// Reads a source's reply: `{"events":[{"id":1,"payload":{…}}]}`, the bare list, or one event a line. One walk over the
// bytes that checks them as JSON (RFC 8259), takes ids exactly (JSON.parse would round those above 2^53) and payloads as
// the bytes they are. What it finds wrong it says with the place, and never with the content.

import { isUtf8 } from 'node:buffer'
import { createGatherer, type Events, idMax, noEvents, SourceFault } from '../../domain/loader.ts'

const depthMax = 500

const [quote, backslash, colon, comma, minus, dot] = [0x22, 0x5c, 0x3a, 0x2c, 0x2d, 0x2e]
const [openList, closeList, openObject, closeObject] = [0x5b, 0x5d, 0x7b, 0x7d]
const [zero, nine, newline] = [0x30, 0x39, 0x0a]
const payloadKey = Buffer.from('"payload"')
const words = ['true', 'false', 'null']
const escapes = new Set([...'"\\/bfnrt'].map((char) => char.charCodeAt(0)))

const isDigit = (byte: number | undefined): boolean =>
  byte !== undefined && byte >= zero && byte <= nine
const isBlank = (byte: number | undefined): boolean =>
  byte === 0x20 || byte === newline || byte === 0x0d || byte === 0x09
const isHex = (byte: number | undefined): boolean =>
  isDigit(byte) || (byte !== undefined && (byte | 0x20) >= 0x61 && (byte | 0x20) <= 0x66)

export type Reply = {
  events: Events
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
export function readLines(body: Buffer): Events {
  const scanner = new Scanner(body)
  for (;;) {
    scanner.blanks()
    if (scanner.at >= body.length) return scanner.gathered.events()
    scanner.event()
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
  readonly gathered: ReturnType<typeof createGatherer>
  readonly #bytes: Buffer

  constructor(bytes: Buffer) {
    if (!isUtf8(bytes)) throw new SourceFault('the reply is not UTF-8')
    this.#bytes = bytes
    this.gathered = createGatherer(bytes)
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
    const reply: Reply = { events: noEvents, newestId: undefined }
    if (this.#bytes[this.at] === openList) return { ...reply, events: this.#events() }
    if (this.#bytes[this.at] !== openObject) this.wrong('a list or an object must begin')
    let found = false
    this.#object((key) => {
      if (key === 'events') {
        if (this.#bytes[this.at] !== openList) throw new SourceFault('"events" must be a list')
        reply.events = this.#events()
        found = true
      } else if (key === 'last_id' && isDigit(this.#bytes[this.at])) {
        reply.newestId = this.#integer('last_id', 0n)
      } else this.#value(1)
    })
    if (!found)
      throw new SourceFault('the reply has no "events": it must be {"events":[…]} or a list')
    return reply
  }

  #events(): Events {
    this.#list(() => this.event())
    return this.gathered.events()
  }

  /** Gathers one. No function and no text of its own for each: a page has thousands. */
  event(): void {
    const bytes = this.#bytes
    if (bytes[this.at] !== openObject) this.#refuse('must be an object with "id" and "payload"')
    let id: bigint | undefined
    let [from, to] = [-1, -1]
    this.at++
    this.blanks()
    let byte = bytes[this.at]
    if (byte === closeObject) this.at++
    while (byte !== closeObject) {
      const key = this.#eventKey()
      if (key === 'id') {
        if (id !== undefined) this.#refuse('has "id" twice')
        id = this.#id()
      } else {
        const begin = this.at
        this.#value(1)
        if (key === 'payload') {
          if (from >= 0) this.#refuse('has "payload" twice')
          ;[from, to] = [begin, this.at]
        }
      }
      this.blanks()
      byte = bytes[this.at]
      if (byte !== closeObject && byte !== comma) this.wrong('"," or "}" must follow')
      this.at++
      if (byte === comma) this.blanks()
    }
    if (id === undefined) this.#refuse('has no "id"')
    if (from < 0) this.#refuse('has no "payload"')
    this.gathered.add(id, from, to)
  }

  #refuse(why: string): never {
    throw new SourceFault(`event ${this.gathered.count + 1} ${why}`)
  }

  /** The two that matter by their bytes. */
  #eventKey(): string {
    const { at } = this
    const bytes = this.#bytes
    if (bytes[at + 1] === 0x69 && bytes[at + 2] === 0x64 && bytes[at + 3] === quote) {
      this.at = at + 4
      this.#colon()
      return 'id'
    }
    if (
      bytes[at + 1] === 0x70 &&
      bytes[at + 8] === quote &&
      payloadKey.equals(bytes.subarray(at, at + 9))
    ) {
      this.at = at + 9
      this.#colon()
      return 'payload'
    }
    return this.#key()
  }

  #colon(): void {
    this.blanks()
    if (this.#bytes[this.at] !== colon) this.wrong('":" must follow')
    this.at++
    this.blanks()
  }

  #id(): bigint {
    const bytes = this.#bytes
    const first = bytes[this.at]
    if (!isDigit(first)) {
      const what = first === quote ? 'a text' : first === minus ? 'negative' : 'none'
      this.#refuse(`has a bad id: it must be a positive integer, and is ${what}`)
    }
    let at = this.at
    let value = 0
    for (let byte = first; isDigit(byte); byte = bytes[++at])
      value = 10 * value + ((byte as number) - zero)
    const end = bytes[at]
    const isPlain = at - this.at <= 15 && first !== zero && (end === comma || end === closeObject)
    if (!isPlain) return this.#integer(`event ${this.gathered.count + 1}: its id`)
    this.at = at
    return BigInt(value)
  }

  #integer(what: string, least = 1n): bigint {
    const from = this.at
    this.#number()
    const text = this.#bytes.toString('latin1', from, this.at)
    if (!/^\d+$/.test(text)) {
      throw new SourceFault(`${what} must be a positive integer, and is ${text.slice(0, 40)}`)
    }
    const id = BigInt(text.length > 19 ? text.slice(0, 20) : text)
    if (id >= least && id <= idMax) return id
    throw new SourceFault(`${what} must be from ${least} to ${idMax}, and is ${text.slice(0, 40)}`)
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
    this.#colon()
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
